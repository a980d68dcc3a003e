#!/usr/bin/env python3
"""Fails on dependencies that a crate declares but does not name in its sources.

[dependencies] must be named in `src` or `build.rs`, [dev-dependencies] anywhere in the crate,
[build-dependencies] in `build.rs`. UNNAMED lists exceptions.

usage: unused_dependencies.py CRATE_DIRECTORY...
"""
import pathlib
import re
import sys
import tomllib

from module_cycles import TEXT

# (crate directory, dependency): reason for the exception.
UNNAMED = {
    ("proto", "tonic-prost"): "generated code uses it",
    ("tests/api-server", "k8s-openapi"): "it selects the version of the API for kube",
}

PLACES = {
    "dependencies": ("src", "build.rs"),
    "dev-dependencies": ("src", "tests", "benches", "fuzz_targets"),
    "build-dependencies": ("build.rs",),
}


def sources(directory: pathlib.Path, places: tuple[str, ...], targets: list[str]) -> str:
    """The text of the crate's Rust files in `places`, and of `targets` outside of them."""
    paths = [directory / place for place in (*places, *targets)]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.rs"))]
    return "\n".join(TEXT.sub('""', file.read_text()) for file in files)


def main() -> int:
    count, used = 0, set()
    for argument in sys.argv[1:]:
        directory = pathlib.Path(argument)
        manifest = tomllib.loads((directory / "Cargo.toml").read_text())
        kinds = ("lib", "bin", "test", "bench")
        targets = [manifest.get(kind, []) for kind in kinds]
        targets = [each for kind in targets for each in (kind if isinstance(kind, list) else [kind])]
        paths = [target["path"] for target in targets if "path" in target]
        for table, places in PLACES.items():
            text = sources(directory, places, paths)
            for name in manifest.get(table, {}):
                if (argument, name) in UNNAMED:
                    used.add((argument, name))
                elif not re.search(rf"\b{name.replace('-', '_')}\b", text):
                    print(f"{directory}/Cargo.toml: [{table}] {name} is not used")
                    count += 1
    for argument, name in UNNAMED.keys() - used:
        print(f"unused_dependencies.py: remove {argument} {name} from UNNAMED")
        count += 1
    print(f"unused dependencies: {count}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
