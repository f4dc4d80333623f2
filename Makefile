# Everything here works from a fresh clone with Python, pip, venv, make and git.

# constraints.txt was made with 3.11, so take that where it is. (Tried by running it: a pyenv shim
# is on PATH for versions that are not active.)
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c '' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

# Ray would ask the network at each start.
export RAY_USAGE_STATS_ENABLED ?= 0

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14
	@echo 'ARGS="..." is handed to the demo, the benchmarks, the soak or pytest: make demo ARGS="--seconds 60"'

.PHONY: venv
venv: $(STAMP) ## make .venv and install the project with all extras

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

.PHONY: demo
demo: $(STAMP) ## train APPO on CartPole through a server that is killed half-way
	$(BIN)/python -m redis_state_sync.demo $(ARGS)

.PHONY: demo-core
demo-core: $(STAMP) ## the same in 15 seconds, without Ray and torch
	$(BIN)/python -m redis_state_sync.demo --core $(ARGS)

.PHONY: lint
lint: $(STAMP) ## ruff, its formatter, and import-linter's layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: $(STAMP) ## let ruff fix what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: types
types: $(STAMP) ## strict mypy on src
	$(BIN)/mypy

.PHONY: docs
docs: $(STAMP) ## write what docs/ takes from the code: settings, commands, public names
	$(BIN)/python -m tools.docs $(ARGS)

.PHONY: test
test: lint types ## lint, types and all tests (about 50 minutes, mostly waiting)
	$(BIN)/python -m pytest $(ARGS)

# They wait for servers to be replaced, or for what must not be answered.
SLOW := test_failover.py test_sentinel.py test_tls.py test_limits.py test_cluster.py \
	test_cluster_changes.py
.PHONY: test-fast
test-fast: $(STAMP) ## unit tests and the contract of every store (seven minutes)
	$(BIN)/python -m pytest tests/unit tests/contract $(SLOW:%=--ignore=tests/contract/%) $(ARGS)

.PHONY: model
model: $(STAMP) ## search longer for an order of events that breaks a promise (minutes)
	$(BIN)/python -m pytest tests/model --hypothesis-profile=long $(ARGS)

.PHONY: bench
bench: $(STAMP) ## measure beside Ray's state server, on an idle machine: ARGS="poll fetch --rounds 5"
	$(BIN)/python -m benchmarks --write-docs $(ARGS)

.PHONY: bench-smoke
bench-smoke: $(STAMP) ## the benchmarks in short, with wide margins (under 2 minutes)
	$(BIN)/python -m pytest tests/benchmarks $(ARGS)

.PHONY: bench-staleness
bench-staleness: $(STAMP) ## staleness of training batches, five arms, on an idle machine (an hour; goes on)
	$(BIN)/python -m benchmarks.staleness --write-docs $(ARGS)

.PHONY: bench-curves
bench-curves: $(STAMP) ## learning curves of the same arms, on an idle machine (goes on where it was ended)
	$(BIN)/python -m benchmarks.curves --write-docs $(ARGS)

.PHONY: soak
soak: $(STAMP) ## kill, freeze, cut, fill and damage for half an hour: ARGS="--seconds 3600 --seed 7"
	$(BIN)/python -m tests.chaos.soak $(ARGS)

FUZZ_SECONDS ?= 600
.PHONY: fuzz
fuzz: $(STAMP) ## look for bytes that break the decoders (10 minutes; FUZZ_SECONDS=60 make fuzz)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

.PHONY: images
images: $(STAMP) ## make docs/images/watch.svg anew, from a real server
	$(BIN)/python docs/make_watch_image.py $(ARGS)

.PHONY: clean
clean: ## remove .venv, caches and built files
	rm -rf $(VENV) build dist out .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples tools -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
