# Every target does its own set-up; a machine with Python 3.11 and make needs nothing else.

PYTHON ?= python3
# Processes that run tests at once.
JOBS ?= 2
# Kills in `make crash`.
N ?= 1000

PIP = -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup page chromium demo picture pictures test test-quick check crash bench docs wheel clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: .venv-demo/ready ## see it at work: an agent is killed, goes on, makes a mistake and is put right
	@.venv-demo/bin/holdfast demo

picture: .venv/ready ## draw the picture of the README anew: docs/pictures/demo.svg
	@folder=$$(mktemp -d) && cd $$folder && PATH=$(CURDIR)/.venv/bin:$$PATH holdfast demo --picture $(CURDIR)/docs/pictures/demo.svg; rm -r $$folder

pictures: setup ## take the pictures of docs/page.md anew, in a browser
	@folder=$$(mktemp -d) && HOLDFAST_SCREENS=$$folder .venv/bin/python -m pytest -q tests/web/test_page_screens.py && \
		for each in runs-light run-light difference-dark rollback-light inbox-light compare-light; do \
		cp $$folder/$$each.png docs/pictures/page-$$each.png; done; rm -r $$folder

setup: .venv/ready page chromium ## make .venv with the package and everything for tests and checks

test: setup ## run all tests
	.venv/bin/python -m pytest -n $(JOBS)

test-quick: setup ## run the tests that take less than a minute together
	.venv/bin/python -m pytest -n $(JOBS) -m "not slow"

check: .venv/ready ## check format, style, types and layers
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	@for each in tests/conftest.py tests/*/conftest.py; do MYPYPATH=tests/cli:tests/store .venv/bin/mypy --no-error-summary $$each || exit 1; done
	.venv/bin/lint-imports

page: ## build the web page into the package, where Node.js is there
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory src/holdfast/web/page/index.html; \
		else echo "no Node.js here: the web page is not built, the rest works without it (Node.js 20 or newer: make page)"; fi

src/holdfast/web/page/index.html: $(shell find page -path page/node_modules -prune -o -type f -print)
	@echo "building the page"
	@cd page && npm install --no-progress --loglevel=error && npm run --silent build -- --logLevel warn
	@touch $@

chromium:
	@if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "installing chromium, for the tests of the page"; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; fi

crash: .venv/ready ## kill -9 committing processes and workers of a fleet again and again: make crash N=5000
	HOLDFAST_KILLS=$(N) HOLDFAST_FLEET=7 .venv/bin/python -m pytest --timeout 0 tests/crash

bench: .venv-bench/ready ## measure speed and size beside the raw limit and the peers, into docs/benchmarks.md
	.venv-bench/bin/python -m bench --write docs/benchmarks.md

docs: .venv/ready ## make the pages into site/, all warnings being errors
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet --site-dir site
	@echo "open site/index.html; for the search: $(PYTHON) -m http.server --directory site"

wheel: .venv/ready page ## make a wheel and a source archive, both with the page, into dist/
	@.venv/bin/python -m hatchling build

clean: ## remove the environments, caches and builds
	rm -rf .venv .venv-bench .venv-demo build dist site page/node_modules src/holdfast/web/page .mypy_cache .ruff_cache .pytest_cache .hypothesis \
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
