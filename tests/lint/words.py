"""Fails on comments and strings in which the subject is hidden: "of which", "cannot be had".

Usage: words.py PATH...; each is a file or a directory with Rust or Markdown. What is quoted from
upstream stays as it is and is listed in QUOTED.
"""

import pathlib
import re
import sys

PHRASES = (
    "of which", "is none", "are none", "can be had", "cannot be had",
    "is to be had", "are to be had", "what of", "whoever", "nothing of it", "nothing of them",
    "nothing of that", "is nobody", "are nobody", "makes use of", "be told of",
)
WORDS = re.compile(r"\b(" + "|".join(PHRASES).replace(" ", r"\s+") + r")\b", re.I)

# Comments, strings and characters of Rust; everything else is code.
TEXT = re.compile(
    r"(?P<comment>//[^\n]*)"
    r"|(?P<string>\bb?c?r(?P<hashes>#*)\".*?\"(?P=hashes)|b?c?\"(?:\\.|[^\"\\])*\")"
    r"|b?'(?:\\.|[^'\\])'",
    re.S,
)

# Texts of upstream that its users know.
QUOTED: tuple[str, ...] = ()


def prose(path: pathlib.Path) -> str:
    """The file with blanks for all that is no comment and no string."""
    source = path.read_text()
    if path.suffix != ".rs":
        return source
    found, end = [], 0
    for match in TEXT.finditer(source):
        between, text = source[end : match.start()], match[0]
        # A mark between the pieces, so that no phrase is put together from two of them; lines of
        # one comment are one piece.
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
            # "There is none", "each of which" and the DNS policy None are plain English.
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
