# Everything from nothing but python3, make and git. `make demo` and `make test` do their own set-up.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BUDGET ?= 30m
BIN := $(VENV)/bin
# uv does not read pip's settings (and separates by commas). Where pip is told to look for a CPU build of torch, uv has to be told too.
# Where it is not, `make test UV_TORCH_BACKEND=cpu` asks for the CPU build.
comma := ,
empty :=
export UV_FIND_LINKS ?= $(subst $(empty) $(empty),$(comma),$(strip $(PIP_FIND_LINKS)))
# Bytecode is written once, here: torch has 2,000 modules, and every child process of a test imports them.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt
TIME = started=$$SECONDS; trap 'echo "make $@: $$((SECONDS - started)) s"' EXIT;

.PHONY: help demo test quick lint bench torture mutants docs format clean

help:
	@echo "make demo      kill a training run and see it end with the same model (under a minute after set-up)"
	@echo "make test      all tests          make quick     unit tests only, under 60 s"
	@echo "make lint      format, style, imports, types, docs"
	@echo "make bench     measurements       make torture BUDGET=30m   kills at random moments, seeded"
	@echo "make mutants   break our own source on purpose; a test must notice each"
	@echo "make docs      build the pages into site/"

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(INSTALL) torch==2.13.0 -e .
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(INSTALL) torch==2.13.0 --group dev
	touch $@

demo: $(VENV)/.demo
	$(BIN)/stepfast demo

test: $(VENV)/.dev
	@$(TIME) $(BIN)/python -m pytest -m "not torture"

quick: $(VENV)/.dev
	@$(TIME) $(BIN)/python -m pytest -q -m "not slow and not torture"

lint: $(VENV)/.dev
	@$(TIME) set -x; \
	$(BIN)/ruff format --check .; \
	$(BIN)/ruff check .; \
	$(BIN)/lint-imports; \
	$(BIN)/mypy; \
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	$(BIN)/python -m bench.run

torture: $(VENV)/.dev
	$(BIN)/python -m tests.torture --budget $(BUDGET)

mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
