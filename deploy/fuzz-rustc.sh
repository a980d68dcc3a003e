#!/usr/bin/env bash
# Compiler wrapper for the crates of this workspace when cargo builds the fuzz targets: adds the
# coverage instrumentation that libFuzzer needs. Generic code of libraries is compiled into these
# crates; libraries themselves are not instrumented, so that other builds can share them.
# usage: fuzz-rustc.sh RUSTC ARGUMENT...
case " $* " in
# Build scripts are not linked with libFuzzer.
*" --crate-name build_script_build "*) ;;
*)
  set -- "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
  ;;
esac
exec "$@"
