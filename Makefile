# The two commands are `make run` and `make test`; each installs what it needs
# on a fresh Debian machine that has cargo and root.

.PHONY: build run run-once test lint deny units bench bench-once soak fuzz mutants critest clean

build:
	deploy/install.sh build
	cargo build --release --bins

# Both binaries on an engine, with an example pod, until Ctrl-C.
run: build
	@exec setpriv --pdeathsig TERM -- deploy/run.sh

# The same, until the example serves.
run-once: build
	@ONCE=1 exec setpriv --pdeathsig TERM -- deploy/run.sh

# Every test, those on a real engine included; the last lines tell what was left out.
TEST = cargo test --workspace --no-fail-fast
test:
	deploy/install.sh build engine tests
	cargo build --workspace --bins
	$(TEST) --no-run
	deploy/test.sh "$(TEST) --lib --bins --test '[a-o]*'" "$(TEST) --test '[!a-o]*'" "$(TEST) --doc"

# Format, lints, links of the docs, cycles between modules, unused dependencies, and phrases that
# hide the subject.
CRATES = $(patsubst %/Cargo.toml,%,$(wildcard */Cargo.toml kubelet/*/Cargo.toml))
lint:
	deploy/install.sh lint
	cargo fmt --all --check
	python3 tests/lint/module_cycles.py $(CRATES)
	python3 tests/lint/unused_dependencies.py $(CRATES) tests/fuzz
	python3 tests/lint/words.py README.md CONTRIBUTING.md CHANGELOG.md docs $(filter-out kubelet/%,$(CRATES))
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items

# Licences, sources and bans; advisories need the network.
deny:
	deploy/install.sh build deny
	PATH="$(CURDIR)/target/tools/bin:$$PATH" cargo deny check bans licenses sources

# The units, as systemd reads them.
units: build
	deploy/install.sh units
	deploy/units.sh

# The figures of README and docs/performance.md, measured on this machine: BENCH_RUNS runs, their median and spread.
BENCHES = --bench figures --bench streams --bench logs
bench: build
	deploy/install.sh build engine tests
	cargo bench --workspace $(BENCHES)

# Pods under kills and faults, for SOAK_SECONDS each.
SOAK_SECONDS ?= 3600
soak:
	deploy/install.sh build engine tests
	cargo build --workspace --bins
	E2E_SOAK_SECONDS=$(SOAK_SECONDS) cargo test --workspace --test soak -- --nocapture

# Whether the benches run at all: once, on the tests' own builds.
bench-once:
	deploy/install.sh build engine tests
	cargo build --workspace --bins
	BENCH_RUNS=1 cargo bench --profile dev --workspace $(BENCHES)

# What strangers, images, the engine, plugins and files of others may say, for FUZZ_SECONDS
# each target. The findings are below tests/fuzz/artifacts.
FUZZ_SECONDS ?= 60
fuzz:
	deploy/install.sh build fuzz
	deploy/fuzz.sh $(FUZZ_SECONDS)

# Lines of the pure modules (.cargo/mutants.toml) that no unit test misses when they are changed:
# hours. MUTANTS are further flags, such as `--file kubelet/api-client/src/tokens.rs` or `--shard 1/8`.
mutants:
	deploy/install.sh build mutants
	PATH="$(CURDIR)/target/tools/bin:$$PATH" cargo mutants --output target $(MUTANTS)

# critest's table: CRITEST=/path/to/critest, CRITEST_FLAGS are critest's own, ENGINE the engine's
# address. Beside a newer engine: deploy/engine-of.sh trixie deploy/critest.sh /path/to/critest
critest: build
	deploy/critest.sh $(CRITEST) $(CRITEST_FLAGS)

clean:
	cargo clean
	rm -rf .run
