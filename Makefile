# Everything that a fresh machine needs: `make demo` and `make test` install what they use into .venv.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

# The library below its peers: what an auditor reads, and runs without torch, plots and data sets. Doctests are tests too.
ROOMS := base kernels crypto indices graph methods protocol sim audit
QUICK := tests/core tests/protocol tests/sim tests/audit $(ROOMS:%=src/cesar/%)

# What handles secrets and frames is covered branch by branch; `make test` fails where less of it is run than this. Rooms are
# named by their paths: by their names they would be imported, and numpy with them, before the tests do.
COVERED := kernels crypto indices protocol
COVERAGE := --cov-branch --cov-report=term --cov-fail-under=90 $(COVERED:%=--cov=src/cesar/%)

.PHONY: help demo test quick test-all test-slow hooks browser lint docs format vectors pictures release clean network-tools lock lock-check sbom

help:  ## Show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

.venv/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

.venv/lab: .venv/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[lab,peers]'
	touch $@

.venv/stamp: .venv/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: .venv/lab  ## Train 16 sites on handwritten digits in five ways and write a page that compares them
	$(BIN)/cesar demo

test: FLAGS = $(COVERAGE)
test: .venv/stamp browser network-tools lint docs quick  ## Lint, check types and layers, run the tests
	$(BIN)/pytest -n $(WORKERS) -m 'not slow' $(QUICK:%=--ignore=%)

quick: .venv/stamp  ## Run the library's tests in about a minute; torch and the laboratory cannot be imported
	$(BIN)/pytest -n $(WORKERS) -m 'not slow' --bare $(FLAGS) $(QUICK)

browser:  ## Install Chromium for the tests that look at pages (where apt-get and the rights are there)
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
		&& apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
		|| echo 'no chromium: the tests that open pages are skipped'

network-tools:  ## Install what the tests of sites behind firewalls need (where apt-get and the rights are there)
	@{ command -v nft && command -v tcpdump && [ -x /usr/sbin/sshd ]; } >/dev/null \
		|| { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq \
		&& apt-get install -y -qq --no-install-recommends iproute2 nftables openssh-server tcpdump >/dev/null; } \
		|| echo 'no nft, sshd or tcpdump: the tests of sites behind firewalls are skipped'

test-slow: .venv/stamp  ## Run the long tests
	$(BIN)/pytest -n $(WORKERS) -m slow

PYTHONS ?= python3.11 python3.12 python3.13

test-all:  ## Run the library's quick tests with every Python that it is for (PYTHONS names them)
	@for python in $(PYTHONS); do \
		echo "$$python:" && rm -rf build/$$python && $$python -m venv build/$$python \
		&& build/$$python/bin/pip install --quiet --editable '.[peers]' pytest pytest-xdist hypothesis \
		&& build/$$python/bin/pytest -q -n $(WORKERS) -p no:cacheprovider -m 'not slow' --bare $(QUICK) || exit 1; \
	done

hooks: .venv/stamp  ## Check style, types, layers and spelling before every commit in this clone
	$(BIN)/pre-commit install

lint: .venv/stamp  ## Check style, types, layers and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

docs: .venv/stamp  ## Build the documentation into site/; a warning is an error
	@$(BIN)/zensical build --clean --strict >.venv/docs.log 2>&1 || { cat .venv/docs.log; exit 1; }
	@! grep griffe: .venv/docs.log  # a docstring that cannot be read

format: .venv/stamp  ## Rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

vectors: .venv/stamp  ## Write the test vectors anew (with code that does not import cesar)
	$(BIN)/python tools/vectors/generate.py

pictures: .venv/stamp  ## Draw the pictures of the documentation anew
	$(BIN)/python tools/pictures/architecture.py
	$(BIN)/python tools/pictures/who_sees_what.py
	$(BIN)/python tools/pictures/concepts.py
	$(BIN)/python tools/pictures/live_table.py
	$(BIN)/cesar reproduce report docs/results --out build/results.html --markdown docs/results.md

LOCK = $(BIN)/uv pip compile pyproject.toml --extra peers --extra lab --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --quiet
LOCK_IMAGE = $(BIN)/uv pip compile pyproject.toml --extra peers --constraints requirements.lock --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --quiet
LOCK_BUILD = $(BIN)/uv pip compile - --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet

lock: .venv/stamp  ## Write requirements.lock anew: the newest versions that fit, with their hashes, for a release
	$(LOCK) --upgrade --output-file requirements.lock
	$(LOCK_IMAGE) --output-file containers/peers.lock
	echo 'hatchling>=1.26' | $(LOCK_BUILD) --upgrade --output-file containers/build.lock

lock-check: .venv/stamp  ## See that requirements.lock is what pyproject.toml asks for
	cp requirements.lock .venv/requirements.lock
	$(LOCK) --output-file .venv/requirements.lock
	diff -u requirements.lock .venv/requirements.lock
	$(LOCK_IMAGE) --output-file .venv/peers.lock
	diff -u containers/peers.lock .venv/peers.lock

sbom: .venv/stamp  ## Write the software bill of materials of a release into dist/
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --mc-type library --output-reproducible --of JSON -o dist/cesar-learning.cdx.json

release: .venv/stamp  ## Build wheel and source distribution into dist/, and check what an index would show
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean:  ## Remove what was made
	rm -rf .venv build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
