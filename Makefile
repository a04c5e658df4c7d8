# The words a contributor types. Each target sets itself up on a machine that has only make and
# Python >= 3.11 with venv; what setting up says goes to stderr, so that the last line of stdout of
# demo, trust, bench and scenarios is their JSON summary. Afterwards the command itself is .venv/bin/clutch.
#
#   make setup                        .venv from the hashed lock file, Clutch itself editable
#   make check                        format, lint, types, import rules, docs
#   make test       [ARGS=...]        all tests, in parallel; ARGS goes to pytest
#   make demo       [ARGS=...]        clutch demo; e.g. ARGS="--chaos --kills 9"
#   make trust      [SECONDS=n] [SEED=n] [BACKEND=sqlite|postgres|all]
#   make bench      [ONLY=store,growth,boot,calls,w1,w2,fanin,ready,cli] [N=100,1000] [REPS=3]
#                   [LOAD=1 [SECONDS=600]]  ... or 500 watchers and 200 running children, for ten minutes
#   make scenarios  [BACKEND=sqlite|postgres|all]
#   make audit                        the locked packages against known vulnerabilities; needs the network
#   make release    [KEY=FILE]        dist/: both archives, their hashes, sbom and origin; signed with a key of ssh
#   make sbom                         build/sbom.json: what is in an installation, as CycloneDX
#   make fmt                          format, and repair what the linter can
#   make picture                      record the terminal in the README anew
#   make lock       [ARGS=--upgrade]  lock files from pyproject.toml; keeps versions unless told
#   make help                         these lines
#   make clean                        remove .venv, build results and caches
#
# PYTHON=... names the interpreter that .venv is made from.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp

CODE := $(wildcard src tests benchmarks)
DOCS_TESTS := $(wildcard tests/docs/test_*.py)

IS_CURRENT := import sys; sys.exit(sys.version_info < (3, 11))
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"

.PHONY: setup check check-format check-lint check-types check-imports check-docs
.PHONY: test demo trust bench scenarios audit release sbom fmt picture lock help clean
.DEFAULT_GOAL := check

setup: $(STAMP)

# uv takes its own version and hash from the lock. uv does not read pip's configuration, so where only
# pip knows the way to an index, pip installs the same lock.
$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c '$(IS_CURRENT)' 2>/dev/null || { \
	  echo "Clutch needs Python 3.11 or newer, and '$(PYTHON)' is not that. Install one, or name it:" \
	    "make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments. Install its venv package" \
	    "(Debian, Ubuntu: apt install python3-venv), or name another: make PYTHON=..." >&2; exit 1; }
	@$(BIN)/python -c 'import pip; $(IS_CURRENT)' 2>/dev/null || { \
	  echo "Making .venv with $$($(PYTHON) --version)" >&2; $(PYTHON) -m venv --clear .venv >&2; }
	@echo "Installing requirements-dev.lock into .venv" >&2
	@awk '/^[a-z]/ {wanted = /^uv==/} wanted' requirements-dev.lock >.venv/uv.lock
	@$(PIP_INSTALL) --requirement .venv/uv.lock >&2
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements-dev.lock >&2 || \
	  $(PIP_INSTALL) --requirement requirements-dev.lock >&2
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --offline \
	  --editable . >&2
	@touch $@

# Commands of agents run in bubblewrap. Where it can be installed, it is; where not, this says so, and the
# tests of the shell fail rather than pass without walls.
.PHONY: sandbox
sandbox:
	@command -v bwrap >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get install -y -qq bubblewrap || { apt-get update -qq && apt-get install -y -qq bubblewrap; }; } >&2; } || \
	  echo "NO SANDBOX: bubblewrap >= 0.8 is not installed and cannot be installed from here. Install it" \
	    "(Debian, Ubuntu: apt install bubblewrap); until then the shell tool refuses to run" >&2

# The page behind `clutch open` is tested in a real browser.
.PHONY: browser
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { [ "$$(id -u)" = 0 ] && \
	  command -v apt-get >/dev/null && \
	  { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } >&2; } || \
	  echo "NO BROWSER: Chromium is not installed and cannot be installed from here. Install it" \
	    "(Debian, Ubuntu: apt install chromium); until then the tests of the page are skipped" >&2

# Five targets, so that `make -k check` shows all that is wrong at once.
check: check-format check-lint check-types check-imports check-docs

check-format: $(STAMP)
	@$(BIN)/ruff format --check $(CODE)

check-lint: $(STAMP)
	@$(BIN)/ruff check $(CODE)

check-types: $(STAMP)
	@$(BIN)/mypy $(CODE)

check-imports: $(STAMP)
	@$(BIN)/lint-imports --no-logo

check-docs: $(STAMP)
	@$(if $(DOCS_TESTS),$(BIN)/python -m pytest --quiet $(DOCS_TESTS),:)

test: $(STAMP) sandbox browser
	@$(BIN)/python -m pytest -n auto $(ARGS)

demo: $(STAMP)
	@$(BIN)/clutch demo $(ARGS)

trust: $(STAMP)
	@$(BIN)/python -m clutch.testing trust $(if $(SECONDS),--seconds $(SECONDS)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(BACKEND),--backend $(BACKEND))

bench: $(STAMP)
	@$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(N),--n $(N)) \
	  $(if $(REPS),--reps $(REPS)) $(if $(LOAD),--load $(LOAD)) $(if $(SECONDS),--seconds $(SECONDS))

scenarios: $(STAMP)
	@$(BIN)/python -m tests.scenarios $(if $(BACKEND),--backend $(BACKEND))

audit: $(STAMP)
	@$(BIN)/python -m pytest --quiet tests/security/test_supply.py >&2
	@$(BIN)/python -m tests.security.audit

release: $(STAMP)
	@$(BIN)/python -m tests.security.release $(if $(KEY),--key $(KEY))

fmt: $(STAMP)
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

sbom: $(STAMP)
	@$(BIN)/python -m tests.security.sbom

picture: $(STAMP)
	@$(BIN)/python -m tests.docs.picture

lock: $(STAMP)
	@$(COMPILE) pyproject.toml --extra postgres $(ARGS) --output-file requirements.lock
	@$(COMPILE) pyproject.toml --extra postgres --group dev --constraint requirements.lock $(ARGS) \
	  --output-file requirements-dev.lock

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

clean:
	@rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
