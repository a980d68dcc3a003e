#!/usr/bin/env bash
# Runs all fuzz targets of tests/fuzz, or the named ones, in sequence. No crate here has unsafe
# code, so the targets detect panics, hangs and unbounded memory use. They need no sanitizer, which
# would make them several times slower, and no nightly compiler.
# FUZZ_DEV=1 uses the build of the tests: it is ready sooner, but the targets run much slower, and
# an input may take longer before it counts as a hang.
# usage: fuzz.sh <seconds> [<target>...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
profile=fuzz built=$PWD/target/fuzz timeout=10
[ -z "${FUZZ_DEV:-}" ] || profile=dev built=$PWD/target/debug timeout=60

targets=("$@")
[ ${#targets[@]} -gt 0 ] || for each in tests/fuzz/fuzz_targets/*.rs; do
  targets+=("$(basename "$each" .rs)")
done
RUSTC_WORKSPACE_WRAPPER=$PWD/deploy/fuzz-rustc.sh \
  cargo build --workspace --features fuzz/libfuzzer "${targets[@]/#/--bin=}" --profile "$profile"

cd tests/fuzz
for target in "${targets[@]}"; do
  mkdir -p "corpus/$target" "artifacts/$target"
  corpora=("corpus/$target")
  [ ! -d "seeds/$target" ] || corpora+=("seeds/$target")
  echo "fuzzing $target for $seconds s"
  "$built/$target" -artifact_prefix="artifacts/$target/" -max_total_time="$seconds" \
    -rss_limit_mb=4096 -timeout="$timeout" -print_final_stats=1 "${corpora[@]}"
done
