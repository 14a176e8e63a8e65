# Everything a newcomer or CI calls; `make help` lists it. Needs Python 3.11 or newer, and make.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTEST_ARGS ?=

# Where torch may come from besides the default index, such as https://download.pytorch.org/whl/cpu for a smaller build
# without CUDA.
TORCH_INDEX ?=

# Two torch processes on one machine spin against each other in OpenMP unless this is set before torch is imported.
export OMP_WAIT_POLICY := passive

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## Trains a small model with both services on this machine, in under a minute
	@$(BIN)/tandem demo

.PHONY: setup
setup: $(INSTALLED) ## Prepares .venv; instant when nothing changed

# The stamp is older than what it was made from when dependencies or versions changed: then pip runs again.
$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --quiet --constraint constraints.txt --extra-index-url $(TORCH_INDEX) torch)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

.PHONY: test
test: setup ## All tests, in one pytest run (PYTEST_ARGS='-k name' narrows it)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: faults
faults: setup ## Every fault that we can cause, in half an hour or more; the last line is JSON
	@$(BIN)/python -m pytest tests/faults -m '' --fault-summary $(PYTEST_ARGS)

.PHONY: fuzz
fuzz: setup ## A million damaged inputs for every decoder, in five minutes; the last line is JSON
	@PYTHONPATH=. $(BIN)/python tests/fuzz/fuzz_decoders.py

.PHONY: lint
lint: setup ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: setup ## mypy, strict
	$(BIN)/mypy

.PHONY: layers
layers: setup ## import-linter: who may import whom
	$(BIN)/lint-imports

.PHONY: protos-check
protos-check: setup ## buf lint, generated code as committed, no breaking change of the wire
	$(BIN)/buf lint . --config protos/buf.yaml
	$(BIN)/python -m protos.generate --check
	BUF=$(BIN)/buf .ci/breaking-protos

.PHONY: check
check: lint types layers protos-check ## All of the above checks but the tests

.PHONY: wheel-test
wheel-test: setup ## Builds the wheel, installs it elsewhere and uses it from there
	$(BIN)/python -m pytest tests/integration/test_wheel.py $(PYTEST_ARGS)

.PHONY: compose-test
compose-test: setup ## Builds the image, runs the pair with compose and stops it (BASE_IMAGE=... for another base)
	$(BIN)/python tests/compose/check_compose.py

.PHONY: clean
clean: ## Removes what tools left behind; runs/ and .venv stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
