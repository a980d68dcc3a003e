"""Fails on indirect phrases in comments and strings, such as "of which" or "cannot be had".

Usage: words.py PATH...; each path is a Rust or Markdown file, or a directory of such files. Quoted
upstream texts are exceptions, listed in QUOTED.
"""

import pathlib
import re
import sys

# Regular expressions, in which a space matches any white space.
PHRASES = (
    "of which", "is none", "are none", "can be had", "cannot be had", "to be had", "what of",
    "nothing of it", "nothing of them", "nothing of that", "says? nothing of", "makes use of",
    # Actors without a name, but not the user `nobody`.
    "whoever", "who(m|so)ever", "is nobody", "are nobody", "(any|every|no|some)body('s| [a-z]+)",
    "(that|to) (any|every|no|some)body", "of them all",
    # Passive voice.
    "(is|are|was|were|been?) told", "told of", "tells? of", "(hears?|heard) (of|from)",
    "looked at", "left alone", "(is|are) to (be|have)", "(is|are|was|were) given up", "(is|are) let",
    "(holds?|held) up", "let go of", "takes? the place of",
    # States and results without a subject.
    "(is|are) not there", "is there already", "not so within", "of no use", "what there is",
    "what (it|they) says?", "(comes?|becomes?) of", "as it were", "the news",
    # Old words.
    "in vain", "anew", "for ever", "for want of", "but for", "lest", "beforehand", "no hindrance",
    "ever so", "trying on", "go(es)? on without", "of its own accord", "in its turn",
    "has its turn", "(there|where)(of|in|upon)",
)
WORDS = re.compile(r"\b(" + "|".join(PHRASES).replace(" ", r"\s+") + r")\b", re.I)

# Comments, strings and characters in Rust; everything else is code.
TEXT = re.compile(
    r"(?P<comment>//[^\n]*)"
    r"|(?P<string>\bb?c?r(?P<hashes>#*)\".*?\"(?P=hashes)|b?c?\"(?:\\.|[^\"\\])*\")"
    r"|b?'(?:\\.|[^'\\])'",
    re.S,
)

# Upstream texts that users know.
QUOTED: tuple[str, ...] = ()


def prose(path: pathlib.Path) -> str:
    """The file with everything blanked except comments and strings."""
    source = path.read_text()
    if path.suffix != ".rs":
        return source
    found, end = [], 0
    for match in TEXT.finditer(source):
        between, text = source[end : match.start()], match[0]
        # Code between two pieces becomes marks, so that no phrase spans them. Consecutive comment
        # lines are one piece.
        goes_on = match["comment"] and not between.strip()
        found.append(between if goes_on else re.sub(r"\S", "|", between))
        if match["comment"]:
            text = re.sub(r"^//[/!]?", lambda slashes: " " * len(slashes[0]), text)
        found.append(text)
        end = match.end()
    return "".join(found)


def files(argument: str) -> list[pathlib.Path]:
    path = pathlib.Path(argument)
    if path.is_file():
        return [path]
    found = [*path.rglob("*.rs"), *path.rglob("*.md")]
    return sorted(each for each in found if "target" not in each.parts)


def main() -> int:
    count = 0
    for path in [each for argument in sys.argv[1:] for each in files(argument)]:
        text = prose(path)
        for match in WORDS.finditer(text):
            # "There is none", "each of which" and the DNS policy None are allowed.
            before = text[: match.start()].rstrip()
            if before.endswith(("there", "There", "each", "one")) or match[0].endswith("None"):
                continue
            if any(match[0] in quote and quote in text for quote in QUOTED):
                continue
            line = text.count("\n", 0, match.start()) + 1
            phrase = " ".join(match[0].split())
            print(f"{path}:{line}: {phrase!r}: name the subject and state the fact")
            count += 1
    print(f"words: {count} to rewrite")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
