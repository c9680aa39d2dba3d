# For people; each target makes what it needs. `.ci/run` is for machines.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help tools build demo test test-rust test-loom test-shuttle test-python test-traps test-light
.PHONY: test-frameworks test-torch test-pythons test-long test-trials kill soak fuzz lint bench bench-loader clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MATURIN := $(BIN)/maturin develop --release
CRATES := --workspace --exclude ropeway-python --exclude ropeway-harness
ROUNDS ?= 1000
SEED ?=

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 15

tools:  ## say what is missing to build ropeway
	@.ci/tools "$(PYTHON)"

build: $(VENV)/.package  ## build ropeway into .venv
	@$(MATURIN) --skip-install

demo: build $(VENV)/.demo  ## train a small network on augmented photos for half a minute
	@$(BIN)/ropeway demo || test $$? = 130  # Ctrl-C is no failure

test: test-rust test-loom test-shuttle test-python test-traps test-light  ## run all tests

test-rust: tools  ## ... those of the Rust crates
	cargo test $(CRATES)
	cargo test -p ropeway --features crash-points --test crash

test-loom: tools  ## ... the models, in every interleaving within a bound
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target-loom cargo test -p ropeway --release --test loom

test-shuttle: tools  ## ... the models, in many random interleavings
	RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target-shuttle cargo test -p ropeway --release --test shuttle

test-python: build $(VENV)/.dev $(VENV)/.demo  ## ... those of the Python package
	$(BIN)/python -m pytest

test-traps: build $(VENV)/.dev $(VENV)/.demo  ## ... some of them again with traps for stale pointers
	ROPEWAY_DEBUG=1 $(BIN)/python -m pytest tests/exchange tests/test_pool_python.py tests/test_queue.py tests/test_message.py

test-light: build  ## ... with array frameworks that are set up quickly
	@$(BIN)/python tests/frameworks/environments.py --light

test-frameworks: build  ## ... with every array framework, each in an environment of its own
	@$(BIN)/python tests/frameworks/environments.py $(FRAMEWORKS)

test-torch: build  ## ... of the drop-in, side by side with torch's own loader
	@$(BIN)/python tests/frameworks/environments.py torch

test-pythons: build  ## the Python tests with one wheel on every CPython that is here
	@.ci/pythons

test-long: tools  ## Rust tests that take long
	cargo test --release -p ropeway -- --ignored

test-trials: build $(VENV)/.dev $(VENV)/.demo  ## trials of public reports in their full length, whatever the start method
	ROPEWAY_FULL_TRIALS=1 $(BIN)/python -m pytest $(addprefix tests/trials/, \
		test_r03_interrupt.py test_r29_memory_of_readers.py test_r33_killed_worker.py test_r40_slow_consumer.py)

kill: build  ## kill processes in ROUNDS rounds and a tenth as many of Python; print what was left
	cargo build --release -p ropeway-harness
	@target/release/ropeway-kill $(ROUNDS) $(SEED)
	@$(BIN)/python harness/kill.py $$(( $(ROUNDS) / 10 )) $(SEED)

soak: build  ## use everything for SECONDS, deaths included; what is there must not grow
	@$(BIN)/python harness/soak.py $(or $(SECONDS),1800) $(SEED)

lint: build $(VENV)/.dev $(VENV)/.demo  ## check format, lints and types
	cargo fmt --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest ropeway._core

fuzz: tools  ## feed garbage to what reads what others wrote: make fuzz SECONDS=60
	@.ci/fuzz $(or $(SECONDS),60)

bench: build $(VENV)/.bench  ## measure against other ways of handing over arrays
	cargo build --release -p ropeway-bench
	@$(BIN)/ropeway bench

bench-loader: build  ## measure loaders beside torch's, Grain, SPDL: make bench-loader PAGE=docs/loaders.md
	@$(BIN)/python tests/frameworks/environments.py loaders
	@.envs/loaders/bin/ropeway bench loader $(if $(PAGE),all --page $(PAGE))

clean:  ## remove whatever was built
	rm -rf target target-* fuzz/target fuzz/artifacts $(VENV) .envs .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find python tests -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/ropeway/*.so

$(VENV)/.package: pyproject.toml | tools
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "maturin>=1.16,<2"
	@$(MATURIN)
	@touch $@

$(VENV)/.dev $(VENV)/.demo $(VENV)/.bench: $(VENV)/.%: $(VENV)/.package
	@$(MATURIN) --extras $*
	@touch $@
