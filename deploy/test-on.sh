#!/usr/bin/env bash
# Runs tests of the node on another machine, over ssh as root: one that has what this machine lacks,
# such as cgroup v2 with systemd. Use a machine for tests: they make cgroups, mounts and network
# namespaces. Binaries and scripts are copied to the directory of the same name there.
# Variables whose names start with E2E_ are passed on. Temporary files are in /var/tmp: /tmp may be
# in memory. BINARIES is the directory of the shim and the kubelet if they are not the debug builds:
# on a slow machine, release builds (`make build`, BINARIES=target/release) have less to wait for.
# usage: test-on.sh [SSH-FLAG...] HOST [TEST-FLAG or FILTER...]
#        test-on.sh -p 2222 -i key root@127.0.0.1 cgroups --test-threads 1
set -euo pipefail
cd "$(dirname "$0")/.."

ssh=(ssh -o BatchMode=yes)
while [ $# -gt 0 ] && [[ $1 == -* ]]; do
  ssh+=("$1" "${2:?test-on.sh: $1 needs a value}")
  shift 2
done
host=${1:?usage: test-on.sh [SSH-FLAG...] HOST [TEST-FLAG or FILTER...]}
shift

deploy/install.sh tests
[ -n "${BINARIES:-}" ] || cargo build --workspace --bins
test=$(cargo test --package e2e --test node --no-run --message-format json |
  python3 -c 'import json, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable") and made["target"]["name"] == "node":
        print(made["executable"])')

# Debug information is nine tenths of the size.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
copy=$dir$PWD
mkdir -p "$copy/target/debug/deps"
for binary in kubelet dockershim; do
  strip -o "$copy/target/debug/$binary" "${BINARIES:-target/debug}/$binary"
done
strip -o "$copy/target/debug/deps/node" "$test"
cp -r deploy "$copy/"
# The other machine may not reach PyPI.
cp -r target/tools "$copy/target/"
mkdir "$copy/tests"

tar -C "$dir" -cz "${PWD#/}" | "${ssh[@]}" "$host" tar -C / -xz --no-same-owner
printf -v arguments ' %q' "$@"
variables=
for name in "${!E2E_@}"; do
  printf -v variables '%s %q' "$variables" "$name=${!name}"
done
"${ssh[@]}" "$host" "cd $(printf %q "$PWD") && deploy/install.sh engine tests &&
  cd tests && env TMPDIR=/var/tmp$variables ../target/debug/deps/node$arguments"
