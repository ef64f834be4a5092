# Every target does its own set-up; a machine with Python 3.11 and make needs nothing else.

PYTHON ?= python3
# The environment of tests and checks: .venv, or .venv-3.12 and so on where another PYTHON is named.
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
# Processes that run tests at once.
JOBS ?= 2
# Kills, and power cuts, in `make crash`.
N ?= 1000
# Seconds for each target in `make fuzz`, and the targets.
SECONDS ?= 600
TARGETS ?= codec path pack snapshot bundle http

# Quick tests use a file system in memory where there is one with enough space: opening a store takes a tenth of the time.
MEMORY = $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 1000000 { print "PYTEST_DEBUG_TEMPROOT=/dev/shm" }')

PIP = -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup page chromium demo picture pictures test test-quick pythons check crash fuzz bench peers reference docs wheel release clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: .venv-demo/ready ## see it at work: an agent is killed, resumed, and corrected
	@.venv-demo/bin/holdfast demo

picture: $(VENV)/ready ## draw the picture of the README: docs/pictures/demo.svg
	@folder=$$(mktemp -d) && cd $$folder && PATH=$(CURDIR)/$(VENV)/bin:$$PATH holdfast demo --picture $(CURDIR)/docs/pictures/demo.svg; rm -r $$folder

pictures: setup ## take the pictures of docs/page.md in a browser
	@folder=$$(mktemp -d) && HOLDFAST_SCREENS=$$folder $(VENV)/bin/python -m pytest -q tests/web/test_page_screens.py && \
		for each in runs-light run-light difference-dark rollback-light inbox-light loop-light compare-light; do \
		cp $$folder/$$each.png docs/pictures/page-$$each.png; done; rm -r $$folder

setup: $(VENV)/ready page chromium ## make .venv with the package and everything for tests and checks

test: setup ## run all tests
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal

test-quick: setup ## run the tests that take little time: all areas, no browser, no PostgreSQL
	$(MEMORY) $(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal -p no:schemathesis -m "not slow"

pythons: ## run the quick tests on every other supported Python that this machine has
	@for each in $$($(PYTHON) tests/pythons.py); do $(MAKE) --no-print-directory test-quick PYTHON=$$each || exit 1; done

check: $(VENV)/ready ## check format, style, words, types and layers
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python .ci/check_words.py
	$(VENV)/bin/mypy
	@for each in $$(find tests -name conftest.py); do MYPYPATH=tests:tests/cli:tests/store $(VENV)/bin/mypy --no-error-summary $$each || exit 1; done
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python docs/write_reference.py --check
	$(VENV)/bin/python docs/write_origins.py --check

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

crash: $(VENV)/ready ## kill -9 processes and workers, and cut the power, again and again: make crash N=5000
	HOLDFAST_KILLS=$(N) HOLDFAST_CUTS=$(N) HOLDFAST_INTERRUPTS=$(N) HOLDFAST_FAULTS=50 HOLDFAST_FLIPS=2000 HOLDFAST_FLEET=7 $(VENV)/bin/python -m pytest --timeout 0 tests/crash

fuzz: .venv-fuzz/ready ## feed mutated bytes to every door, with coverage feedback: make fuzz SECONDS=3600
	@for each in $(TARGETS); do .venv-fuzz/bin/python tests/fuzz/fuzz.py $$each --seconds $(SECONDS) || exit 1; done

bench: .venv-bench/ready ## measure speed and size against the raw limit and the peers, into docs/benchmarks.md
	.venv-bench/bin/python -m bench --write docs/benchmarks.md

peers: .venv-peers/ready ## run the frameworks' own tests with Holdfast's classes, into docs/integrations/peers.md
	.venv-peers/bin/python -m peers --jobs $(JOBS) --write docs/integrations/peers.md

reference: $(VENV)/ready ## write the reference pages from the docstrings, and the tables of claims from the tests
	@$(VENV)/bin/python docs/write_reference.py
	@$(VENV)/bin/python docs/write_origins.py

docs: $(VENV)/ready ## make the pages into site/, all warnings being errors
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet --site-dir site
	@echo "open site/index.html; for the search: $(PYTHON) -m http.server --directory site"

wheel: $(VENV)/ready page ## make a wheel and a source archive, both with the page, into dist/
	@HOLDFAST_REQUIRE_PAGE=1 $(VENV)/bin/python -m hatchling build

release: wheel ## build wheel and source archive, and check both: metadata, contents, an install in a new environment
	@$(VENV)/bin/python -m pytest -q tests/test_hatch_build.py tests/test_packaging.py
	@rm -rf .venv-release && $(PYTHON) -m venv .venv-release
	@.venv-release/bin/python $(PIP) install dist/*.whl
	@cd .venv-release && bin/holdfast --version && bin/holdfast --help >/dev/null && bin/python -c 'import holdfast; holdfast.open(":memory:").close()'
	@rm -rf .venv-release
	@echo "checked: $$(ls dist)"

clean: ## remove the environments, caches and builds
	rm -rf .venv .venv-* build dist site page/node_modules src/holdfast/web/page .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find bench peers src tests -name __pycache__ -prune -exec rm -rf {} +

# Each environment is the package, editable, with its extras; made again when the files that it depends on change.
$(VENV)/ready: EXTRAS = [dev]
.venv-bench/ready: EXTRAS = [bench]
.venv-fuzz/ready: EXTRAS = [fuzz]
.venv-peers/ready: EXTRAS = [peers]

$(VENV)/ready .venv-bench/ready .venv-demo/ready .venv-fuzz/ready .venv-peers/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Holdfast needs Python 3.11 or newer, and '$(PYTHON)' is not: make PYTHON=python3.11 …" >&2; exit 1; }
	@echo "setting up $(@D)"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(PIP) install --constraint constraints.txt --editable '.$(EXTRAS)'
	@touch $@
