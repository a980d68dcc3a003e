#!/usr/bin/env python3
"""Fails on cycles between the modules of a crate.

Modules with the same parent must not form a cycle, neither directly nor through their descendants.
Cycles between a module and its parent are allowed. Tests are ignored. Sources are scanned as text
for `use` declarations and for paths that begin with `crate`, `self` or `super`.

usage: module_cycles.py CRATE_DIRECTORY...
"""
import os
import re
import sys
from collections import defaultdict

# Known cycles: crate directory, parent module, its children. The check fails if one no longer
# exists.
KNOWN = {
    # The crate's one error type contains those of some modules.
    (
        "dockershim",
        "crate",
        ("cli", "config", "error", "images", "logs", "model", "naming", "network", "security"),
    ),
    # The verbs that answer with a URL take it from the streaming server, which calls other verbs.
    ("dockershim", "crate", ("container", "image", "sandbox", "streaming")),
    ("dockershim", "network::cni", ("chain", "error", "leftover_plugins", "plugin")),
    ("kubelet/prober", "crate", ("manager", "worker")),
    ("streaming", "spdy", ("connection", "stream", "transport")),
}

# Text to skip: comments, strings, characters.
TEXT = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|\bb?r(?P<hashes>#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"'
    r"|b?'(?:\\.|[^'\\])'",
    re.S,
)
TEST = re.compile(r"#\[cfg\(test\)\]")
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+);")
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"\b((?:crate|self|super)(?:::\w+)+)")


def without_tests(source):
    """The source without items that are compiled only for tests."""
    kept, at = [], 0
    for found in TEST.finditer(source):
        if found.start() < at:
            continue
        kept.append(source[at : found.start()])
        end = found.end()
        while end < len(source) and source[end] not in ";{":
            end += 1
        depth = 0
        while end < len(source):
            depth += {"{": 1, "}": -1}.get(source[end], 0)
            if depth == 0:
                break
            end += 1
        at = end + 1
    return "".join(kept) + source[at:]


def paths(tree, prefix=()):
    """The paths of a `use` declaration."""
    parts, depth, part = [], 0, ""
    for char in tree + ",":
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += char
    for part in filter(None, parts):
        if "{" in part:
            head, rest = part.split("{", 1)
            names = tuple(name for name in re.sub(r"\s", "", head).split("::") if name)
            yield from paths(rest.rsplit("}", 1)[0], prefix + names)
        else:
            yield prefix + tuple(re.sub(r"\s+as\s+\w+", "", part).split("::"))


def modules(directory):
    """The sources of a crate's modules, by module path."""
    root, found, tests = os.path.join(directory, "src"), {}, set()
    for folder, _, files in os.walk(root):
        for file in (file for file in files if file.endswith(".rs")):
            path = os.path.join(folder, file)
            name = tuple(os.path.relpath(path, root)[:-3].split(os.sep))
            name = name[:-1] if name[-1] in ("mod", "lib", "main") else name
            with open(path, encoding="utf-8") as opened:
                source = TEXT.sub('""', opened.read())
            tests |= {name + (test,) for test in TEST_MODULE.findall(source)}
            found[name] = found.get(name, "") + without_tests(source)

    def is_test(name):
        prefixes = (name[:length] for length in range(1, len(name) + 1))
        return any(part in tests or part[-1].endswith("tests") for part in prefixes)

    return {name: source for name, source in found.items() if not is_test(name)}


def uses(name, source):
    """The paths that a module refers to, relative to the crate's root."""
    declared = [path for tree in USE.findall(source) for path in paths(tree)]
    named = [tuple(path.split("::")) for path in PATH.findall(USE.sub("", source))]
    for path in declared + named:
        base = {"crate": (), "self": name}.get(path[0])
        if path[0] == "super":
            base = name
            while path and path[0] == "super":
                base, path = base[:-1], path[1:]
            yield base + path
        elif base is not None:
            yield base + path[1:]


def re_exports(root):
    """What the crate's root re-exports by name, and from where."""
    declared = re.findall(r"\bpub use\s+(\w[^;]*);", root)
    return {path[-1]: path for tree in declared for path in paths(tree) if len(path) > 1}


def cycles(graph):
    """The strongly connected components of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(tuple(sorted(stack[at:])))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def crate_cycles(directory):
    known = modules(directory)
    exported = re_exports(known.get((), ""))
    siblings = defaultdict(lambda: defaultdict(set))
    for name, source in known.items():
        for target in uses(name, source):
            target = exported.get(target[0], target) if target else target
            while target and target not in known:
                target = target[:-1]
            shared = 0
            while shared < min(len(name), len(target)) and name[shared] == target[shared]:
                shared += 1
            if shared < min(len(name), len(target)):
                siblings[name[:shared]][name[shared]].add(target[shared])
    for parent, graph in siblings.items():
        for cycle in cycles(graph):
            yield directory, "::".join(parent) or "crate", cycle


def main():
    sys.setrecursionlimit(10_000)
    directories = [directory.rstrip("/") for directory in sys.argv[1:]]
    found = {cycle for directory in directories for cycle in crate_cycles(directory)}
    known = {cycle for cycle in KNOWN if cycle[0] in directories}
    for directory, parent, cycle in sorted(found - known):
        print(f"{directory}: modules of {parent} form a cycle: {', '.join(cycle)}")
    for directory, parent, cycle in sorted(known - found):
        print(f"{directory}: remove from KNOWN, the cycle no longer exists: {parent}: {', '.join(cycle)}")
    print(f"module cycles: {len(directories)} crates, {len(known & found)} known cycles")
    sys.exit(found != known)


if __name__ == "__main__":
    main()
