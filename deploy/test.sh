#!/usr/bin/env bash
# Runs a command that runs tests, and lists at the end which checks this machine lacks
# something for. usage: test.sh COMMAND...
set -uo pipefail
SKIPPED_CHECKS=$(mktemp)
export SKIPPED_CHECKS
trap 'rm -f "$SKIPPED_CHECKS"' EXIT
"$@"
status=$?
echo "checks that were not made on this machine: $(wc -l <"$SKIPPED_CHECKS")"
sort "$SKIPPED_CHECKS"
exit "$status"
