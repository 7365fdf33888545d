# Everything that a fresh machine needs: `make demo` and `make test` install what they use into .venv.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

.PHONY: help demo test test-slow lint format vectors clean

help:  ## Show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

.venv/stamp: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: .venv/stamp  ## Run the demonstration: one secure round, what each node learned, what it cost
	$(BIN)/cesar demo

test: .venv/stamp lint  ## Lint, check types and layers, run the tests
	$(BIN)/pytest -n $(WORKERS) -m 'not slow'

test-slow: .venv/stamp  ## Run the long tests
	$(BIN)/pytest -n $(WORKERS) -m slow

lint: .venv/stamp  ## Check style, types, layers and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

format: .venv/stamp  ## Rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

vectors: .venv/stamp  ## Write the test vectors anew (with code that does not import cesar)
	$(BIN)/python tools/vectors/generate.py

clean:  ## Remove what was made
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
