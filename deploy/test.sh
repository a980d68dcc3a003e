#!/usr/bin/env bash
# Runs commands that run tests side by side, since tests wait most of their time, and lists at the
# end which checks this machine lacks something for. What the first prints is seen as it comes,
# what the others print after it. What the commands started ends with this script.
# usage: test.sh COMMAND...
set -uo pipefail
dir=$(mktemp -d)
export SKIPPED_CHECKS=$dir/skipped
touch "$SKIPPED_CHECKS"

# Each in a process group of its own, so that a signal reaches all that it started.
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

echo "checks that were not made on this machine: $(wc -l <"$SKIPPED_CHECKS")"
sort "$SKIPPED_CHECKS"
exit "$status"
