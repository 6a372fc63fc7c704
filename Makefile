# `make` lists what there is. Every target makes its own set-up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test unit soak lint protos error-table clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,demo]'
	@touch $@

demo: $(INSTALLED) ## install, then train on three agents of this machine
	$(BIN)/edgeswarm demo

# Files that take long begin first: at the end one of them would run beside nothing.
test: unit ## all tests: unit first, then those with real processes
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests/e2e tests -m '(e2e or root or thorough) and not soak'

unit: $(INSTALLED) ## the quick tests alone (no jobs over agents)
	$(BIN)/pytest -q -n 2 --dist worksteal tests --ignore=tests/e2e -m 'not e2e and not root and not thorough and not soak'

soak: $(INSTALLED) ## the tests that take minutes each
	$(BIN)/pytest -q tests -m soak

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p .links && ln -sfn ../agent .links/edgeswarm_agent && ln -sfn ../coordinator .links/edgeswarm_coordinator
	$(BIN)/mypy -p edgeswarm -p edgeswarm_agent -p edgeswarm_coordinator -p tests -p bench

protos: $(INSTALLED) ## generate edgeswarm/wire/v1 from protos/
	$(BIN)/python -m tests.regenerate_protos

error-table: $(INSTALLED) ## write docs/errors.md from the registry of errors
	$(BIN)/python -m tests.regenerate_error_table

clean: ## remove what the other targets made
	rm -rf $(VENV) .links build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
