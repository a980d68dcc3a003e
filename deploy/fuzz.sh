#!/usr/bin/env bash
# Runs the fuzz targets, or those named, one after the other. The fuzzer's
# instrumentation is a compiler's option that only nightly has; RUSTC_BOOTSTRAP lets
# the stable one have it. No crate here has unsafe code: a target looks for panics, hangs and
# memory without end, so it needs no sanitizer, which would make it several times slower.
# With FUZZ_DEV=1 nothing is optimized: built in a fraction of the time, and slower by far.
# usage: fuzz.sh <seconds> [<crate>/<target>...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
export RUSTC_BOOTSTRAP=1 PATH=$PWD/target/tools/bin:$PATH

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for crate in streaming dockershim kubelet; do
    for target in $(cargo fuzz list --fuzz-dir "$crate/fuzz"); do
      targets+=("$crate/$target")
    done
  done
fi

for each in "${targets[@]}"; do
  crate=${each%/*} target=${each#*/}
  corpora=("$crate/fuzz/corpus/$target")
  mkdir -p "${corpora[0]}"
  [ ! -d "$crate/fuzz/seeds/$target" ] || corpora+=("$crate/fuzz/seeds/$target")
  echo "fuzzing $each for $seconds s"
  cargo fuzz run --fuzz-dir "$crate/fuzz" --target-dir "target/fuzz/$crate" \
    --sanitizer none --codegen-units 16 ${FUZZ_DEV:+--dev} "$target" "${corpora[@]}" -- \
    -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=10 -print_final_stats=1
done
