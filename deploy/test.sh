#!/usr/bin/env bash
# Runs commands that run tests side by side, since tests wait most of their time, and lists at the
# end which checks this machine lacks something for. What the first prints is seen as it comes,
# what the others print after it. usage: test.sh COMMAND...
set -uo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export SKIPPED_CHECKS=$dir/skipped
touch "$SKIPPED_CHECKS"

for ((each = 2; each <= $#; each++)); do
  bash -c "${!each}" >"$dir/$each" 2>&1 &
  others[each]=$!
done
bash -c "$1"
status=$?
for ((each = 2; each <= $#; each++)); do
  wait "${others[each]}" || status=$?
  cat "$dir/$each"
done

echo "checks that were not made on this machine: $(wc -l <"$SKIPPED_CHECKS")"
sort "$SKIPPED_CHECKS"
exit "$status"
