#!/usr/bin/env bash
# Runs test commands in parallel, since tests mostly wait. Prints the output of the first command as
# it is written, then the output of the others, then the checks that were skipped because this
# machine lacks a requirement. Processes started by the commands end with this script.
# usage: test.sh COMMAND...
set -uo pipefail
dir=$(mktemp -d)
export SKIPPED_CHECKS=$dir/skipped
touch "$SKIPPED_CHECKS"

# Each command has its own process group, so that signals reach all its processes.
groups=()
start() { # command
  set -m
  bash -c "$1" </dev/null &
  set +m
  groups+=("$!")
}
finish() {
  for group in "${groups[@]}"; do
    kill -s TERM -- "-$group" 2>/dev/null
  done
  rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start "$1"
for ((each = 2; each <= $#; each++)); do
  start "${!each}" >"$dir/$each" 2>&1
done
status=0
for ((each = 1; each <= $#; each++)); do
  wait "${groups[each - 1]}" || status=$?
  [ "$each" -eq 1 ] || cat "$dir/$each"
done

echo "checks skipped on this machine: $(wc -l <"$SKIPPED_CHECKS")"
sort "$SKIPPED_CHECKS"
exit "$status"
