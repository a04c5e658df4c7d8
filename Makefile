# The words a contributor types. Each target sets itself up on a machine that has only make and
# Python >= 3.11 with venv; what setting up says goes to stderr, so that the last line of stdout of
# demo, trust, chaos, bench, bench-peers, scenarios, house and words is their JSON summary. Afterwards the command itself is .venv/bin/clutch.
#
#   make setup                        .venv from the hashed lock file, Clutch itself editable
#   make check                        format, lint, types, import rules, docs, words
#   make test       [ARGS=...]        all tests, in parallel; ARGS goes to pytest
#   make test-fast  [ARGS=...]        core, transactions and store on SQLite: the tests to run after each edit
#   make test-lowest                  the tests of what talks to libraries, with the lowest versions allowed
#   make docs       [SITE=DIR]        the documentation with its search, in build/site; fails on a warning
#   make demo       [ARGS=...]        clutch demo; e.g. ARGS="--chaos --kills 9"
#   make trust      [SEED=n] [BACKEND=sqlite|postgres|all] [SECONDS=n]  SECONDS cuts it short, and then it is not ok
#   make chaos      [SECONDS=n] [SEED=n] [ONLY=kill,stop,...]  gateways, servers, links and providers that fail, at once
#   make bench      [ONLY=store,growth,boot,calls,w1,w2,fanin,ready,cli,page,fleet] [N=100,1000] [REPS=3]
#                   [LOAD=1 [SECONDS=600]]  ... or 500 watchers and 200 running children, for ten minutes
#   make bench-peers [ONLY=w1,w2,fanin,history,clutch,langgraph,...] [N=100] [REPS=3]  Clutch beside other libraries,
#                   each in build/peers/NAME from its lock file; only making these needs the network
#   make scenarios  [BACKEND=sqlite|postgres|all] [POOLER=session|transaction]  with PgBouncer before PostgreSQL
#   make house                        sizes, names, writers of tables and length of calls, beside their limits
#   make words                        texts that people read, against the words that the product does not use
#   make audit                        the locked packages against known vulnerabilities; needs the network
#   make release    [KEY=FILE]        dist/: both archives, their hashes, sbom and origin; signed with a key of ssh
#   make sbom                         build/sbom.json: what is in an installation, as CycloneDX
#   make fmt                          format, and repair what the linter can
#   make screenshots                  record the pictures of README and docs from real runs: page, phone, terminal
#   make lock       [ARGS=--upgrade]  lock files from pyproject.toml; keeps versions unless told
#   make lock-peers [ARGS=--upgrade]  the same for the libraries of bench-peers, from benchmarks/peers/locks/*.in
#   make help                         these lines
#   make clean                        remove .venv, build results and caches
#
# PYTHON=... names the interpreter that .venv is made from.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp

# The tests start hundreds of Python processes, and uv compiles nothing: without stored bytecode each of them compiles
# its libraries anew, which doubles its start.
export PYTHONDONTWRITEBYTECODE :=

CODE := $(wildcard src tests benchmarks examples)
DOCS_TESTS := $(wildcard tests/docs/test_*.py)

IS_CURRENT := import sys; sys.exit(sys.version_info < (3, 11))
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"

.PHONY: setup check check-format check-lint check-types check-imports check-docs check-words
.PHONY: test test-fast test-lowest docs demo trust chaos bench bench-peers scenarios house words audit release sbom fmt screenshots lock lock-peers help clean
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

# System packages that tests need: installed where that is possible; elsewhere a line on stderr says what is missing and
# what is not tested without it. $(call provide,COMMANDS,PACKAGES,WHAT IS MISSING AND WHAT FOLLOWS)
# Without recommended packages: those of Chromium replace systemd and Perl, and bring a printing system.
APT_GET = apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $(1)
APT_INSTALL = $(APT_GET) || { apt-get update -qq && $(APT_GET); }
define provide
	@for name in $(1); do PATH="$$PATH:/usr/sbin" command -v $$name >/dev/null && exit 0; done; \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { $(call APT_INSTALL,$(2)); } >&2; } || \
	  echo "$(3) (Debian, Ubuntu: apt install $(2))" >&2
endef

BROWSER = $(call provide,chromium chromium-browser google-chrome,chromium chromium-sandbox fonts-liberation,NO BROWSER: the tests of the page are skipped: install Chromium)

.PHONY: browser packages
browser:
	$(BROWSER)

# One target, because two processes of apt cannot run at once, and `make --jobs=2` would start them.
packages:
	$(call provide,bwrap,bubblewrap,NO SANDBOX: bubblewrap >= 0.8 is missing and the shell tool refuses to run: install it)
	$(BROWSER)
	$(call provide,pgbouncer,pgbouncer,NO POOLER: the tests of connection poolers are skipped: install PgBouncer)
	$(call provide,nginx,nginx-light,NO NGINX: its tests as a reverse proxy are skipped: install nginx)
	$(call provide,caddy,caddy,NO CADDY: its tests as a reverse proxy are skipped: install Caddy)

# Six targets, so that `make -k check` shows all that is wrong at once.
check: check-format check-lint check-types check-imports check-docs check-words

check-format: $(STAMP)
	@$(BIN)/ruff format --check $(CODE)

check-lint: $(STAMP)
	@$(BIN)/ruff check $(CODE)

check-types: $(STAMP)
	@$(BIN)/mypy $(CODE)

check-imports: $(STAMP)
	@$(BIN)/lint-imports --no-logo

# What the pages name must exist. That their programs run, which takes minutes, is for `make test`.
check-docs: docs
	@$(if $(DOCS_TESTS),$(BIN)/python -m pytest --quiet -m "not slow" $(DOCS_TESTS),:)

# --fail-on-warning: a broken link, a heading that is not there, or a page that index.md does not list fails.
SITE ?= build/site
docs: $(STAMP)
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky --fresh-env --doctree-dir build/pages docs $(SITE)
	@echo "The documentation is in $(SITE)/index.html" >&2

check-words: $(STAMP)
	@$(BIN)/python -m tests.words >/dev/null

# A worker takes one file after the other, the slowest first (tests/conftest.py): none is idle at the end, and what the
# tests of a file share, such as a browser, is started once.
PYTEST_PARALLEL := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: $(STAMP) packages
	@$(PYTEST_PARALLEL) $(ARGS)

test-fast: $(STAMP)
	@$(PYTEST_PARALLEL) -m "not postgres and not slow" tests/core tests/transactions tests/store $(ARGS)

# The lowest versions that pyproject.toml allows, in an environment of their own. What talks to a library is tested there,
# and nothing that only talks to our own code: that is the same with every version.
LOWEST_TESTS := tests/config/test_reading.py tests/config/test_json5.py tests/models/contract tests/models/test_library.py \
	tests/models/test_direct.py tests/models/test_prices.py tests/models/test_providers.py tests/api/test_api.py \
	tests/surfaces/test_http.py tests/surfaces/test_openapi.py tests/surfaces/test_mcp.py tests/surfaces/test_talk.py \
	tests/store/test_dialect.py tests/core/test_schedule.py tests/test_push.py tests/test_blobs.py
LOWEST_STAMP := build/lowest/.stamp

$(LOWEST_STAMP): $(STAMP) requirements-lowest.lock
	@echo "Installing requirements-lowest.lock into build/lowest" >&2
	@$(BIN)/python -m venv --clear build/lowest >&2
	@$(BIN)/uv pip sync --quiet --python build/lowest/bin/python --require-hashes requirements-lowest.lock >&2 || \
	  build/lowest/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    --requirement requirements-lowest.lock >&2
	@$(BIN)/uv pip install --quiet --python build/lowest/bin/python --no-deps --no-build-isolation --offline \
	  --editable . >&2
	@touch $@

test-lowest: $(LOWEST_STAMP)
	@build/lowest/bin/python -m pytest -n 2 --dist loadfile -m "not slow" $(LOWEST_TESTS)

demo: $(STAMP)
	@$(BIN)/clutch demo $(ARGS)

# First every property with all its examples, and every test marked `scaled` with all its cases; `make test` runs a
# quarter of them.
trust: $(STAMP)
	@TEST_EXAMPLES=full $(PYTEST_PARALLEL) --quiet -m "hypothesis or scaled" >&2
	@$(BIN)/python -m tests.trust $(if $(SECONDS),--seconds $(SECONDS)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(BACKEND),--backend $(BACKEND))

# Logs and timeline of a run that fails are kept in build/chaos/SEED.
chaos: $(STAMP)
	@$(BIN)/python -m tests.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(ONLY),--only $(ONLY))

bench: $(STAMP) browser
	@$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(N),--n $(N)) \
	  $(if $(REPS),--reps $(REPS)) $(if $(LOAD),--load $(LOAD)) $(if $(SECONDS),--seconds $(SECONDS))

bench-peers: $(STAMP)
	@$(BIN)/python -m benchmarks.peers $(if $(ONLY),--only $(ONLY)) $(if $(N),--n $(N)) $(if $(REPS),--reps $(REPS))

scenarios: $(STAMP)
	@$(BIN)/python -m tests.scenarios $(if $(BACKEND),--backend $(BACKEND))

# Not part of `make check` yet, because not all of its limits hold yet.
house: $(STAMP)
	@$(BIN)/python -m tests.house

words: $(STAMP)
	@$(BIN)/python -m tests.words

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

screenshots: $(STAMP) browser
	@$(BIN)/python -m tests.docs.screenshots
	@$(BIN)/python -m tests.docs.picture

lock: $(STAMP)
	@$(COMPILE) pyproject.toml --extra all $(ARGS) --output-file requirements.lock
	@$(COMPILE) pyproject.toml --extra all --group dev --constraint requirements.lock $(ARGS) \
	  --output-file requirements-dev.lock
	@$(COMPILE) pyproject.toml --extra all --group dev --resolution lowest-direct $(ARGS) \
	  --output-file requirements-lowest.lock

PEER_LOCKS := $(patsubst %.in,%.lock,$(wildcard benchmarks/peers/locks/*.in))
lock-peers: $(STAMP)
	@$(foreach lock,$(PEER_LOCKS),$(subst make lock",make lock-peers",$(COMPILE)) $(lock:.lock=.in) $(ARGS) \
	  --output-file $(lock) >/dev/null &&) :

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

clean:
	@rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
