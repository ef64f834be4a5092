# Every target does its own set-up; a machine with Python 3.11 and make needs nothing else.

PYTHON ?= python3
# Processes that run tests at once.
JOBS ?= 2
# Kills in `make crash`.
N ?= 1000

PIP = -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-quick check crash bench clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: .venv-demo/ready ## see it at work: a small conversation, committed, rolled back, forked
	@.venv-demo/bin/python -m holdfast.demo

setup: .venv/ready ## make .venv with the package and everything for tests and checks

test: .venv/ready ## run all tests
	.venv/bin/python -m pytest -n $(JOBS)

test-quick: .venv/ready ## run the tests that take less than a minute together
	.venv/bin/python -m pytest -n $(JOBS) -m "not slow"

check: .venv/ready ## check format, style, types and layers
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

crash: .venv/ready ## kill -9 a committing process again and again: make crash N=5000
	HOLDFAST_KILLS=$(N) .venv/bin/python -m pytest --timeout 0 tests/crash

bench: .venv-bench/ready ## measure speed and size beside the raw limit and the peers, into docs/benchmarks.md
	.venv-bench/bin/python -m bench --write docs/benchmarks.md

clean: ## remove the environments, caches and builds
	rm -rf .venv .venv-bench .venv-demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find bench src tests -name __pycache__ -prune -exec rm -rf {} +

# Each environment is the package, editable, with its extras; made anew when what it is made from changes.
.venv/ready: EXTRAS = [dev]
.venv-bench/ready: EXTRAS = [bench]

.venv/ready .venv-bench/ready .venv-demo/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Holdfast needs Python 3.11 or newer, and '$(PYTHON)' is not: make PYTHON=python3.11 …" >&2; exit 1; }
	@echo "setting up $(@D)"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(PIP) install --constraint constraints.txt --editable '.$(EXTRAS)'
	@touch $@
