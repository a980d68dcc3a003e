#!/usr/bin/env bash
# Verifies the units with systemd-analyze, with the release build instead of installed binaries.
# Warnings are failures too.
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
