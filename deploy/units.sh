#!/usr/bin/env bash
# Has systemd read the units, with the binaries of the release build in place of installed
# ones. What it only warns of is a failure too.
set -euo pipefail
cd "$(dirname "$0")/.."
units=$(mktemp -d)
trap 'rm -rf "$units"' EXIT
for unit in deploy/systemd/*; do
  sed "s#/usr/local/bin/#$PWD/target/release/#" "$unit" >"$units/${unit##*/}"
done
said=$(systemd-analyze verify --man=no "$units"/* 2>&1) || {
  printf '%s\n' "$said" >&2
  exit 1
}
if grep -F "$units/" <<<"$said" >&2; then exit 1; fi
