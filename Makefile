# Two commands do all the set-up on a machine that has only Python 3.11 (or newer) and make:
#   make quickstart   makes .venv, installs, runs the main job
#   make test         makes .venv, installs, lints, type-checks, runs the tests
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Compiled files are kept, whatever the environment says: the tests start hundreds of processes, and each would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help quickstart test debian browser sandbox bfcl compiled lint ruff types tests bench test-oracle test-agents test-gpu test-cluster test-resume test-envs test-hosts bench-envs programs docs docs-test notebooks lock release clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

# Torch goes first and by exact version: that finds a CPU build where one is offered, and not gigabytes of CUDA. Packages are compiled as
# they are imported: most of their 19,000 files never are.
# A stamp per extra: a second call installs nothing.
$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet --no-compile $(TORCH)
	@touch $@

$(VENV)/.%: $(VENV)/.made pyproject.toml
	$(PIP) install --quiet --quiet --no-compile --editable '.[$*]'
	@touch $@

# What `make test` needs: all three distributions.
$(VENV)/.dev: $(VENV)/.made pyproject.toml packages/turnwise-envs/pyproject.toml experiments/pyproject.toml
	$(PIP) install --quiet --quiet --no-compile --editable '.[dev]' --editable 'packages/turnwise-envs[dev]' --editable experiments
	@touch $@

quickstart: $(VENV)/.quickstart  ## set up and train the tiny agent of recipes/quickstart.toml
	$(BIN)/turnwise train

# mypy runs beside the tests, and a failure of either is the whole's. Three workers for two cores: many tests wait for other processes, those
# of the cluster for minutes.
test:  ## set up, lint, type-check and run every test; WORKERS=N at a time (3)
	@$(MAKE) --no-print-directory ruff
	@$(MAKE) --no-print-directory --keep-going -j4 types tests

tests: bfcl debian compiled
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(or $(WORKERS),3) --dist worksteal

# In a new clone, the tests are compiled once, beside mypy, and not by every worker.
compiled: $(VENV)/.dev
	@[ -d tests/__pycache__ ] || $(BIN)/python -m pytest --collect-only >/dev/null 2>&1 || true

# One after the other, beside what pip installs.
debian:
	@$(MAKE) --no-print-directory browser
	@$(MAKE) --no-print-directory sandbox

# The tests of the pages want a browser. Where none is found and this is root on a Debian, one is installed; anywhere else, and where that
# fails or BROWSER=no, those tests are skipped. Never a reason to fail.
browser:  ## a Chromium for the tests of the pages, where one can be installed
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$(BROWSER)" != no ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing a Chromium for the tests of the pages (BROWSER=no leaves it out)"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { timeout 60 apt-get update && timeout 120 apt-get install -y --no-install-recommends --download-only chromium && \
	    apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 && exit 0; \
	fi; echo "no Chromium: the tests of the pages in a browser are skipped"

# The tests of the shell environment want bubblewrap, in the same way.
sandbox:  ## bubblewrap for the tests of the shell environment, where it can be installed
	@command -v bwrap >/dev/null && exit 0; \
	if [ "$(SANDBOX)" != no ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { timeout 60 apt-get update && timeout 60 apt-get install -y --no-install-recommends bubblewrap; } >/dev/null 2>&1 && exit 0; \
	fi; echo "no bubblewrap: the tests of the shell environment are skipped"

# The tests of the environment bfcl want its package, which pins an older numpy and is therefore installed without its dependencies.
bfcl: $(VENV)/.dev  ## the package for the tests of the environment bfcl, where it can be installed
	@[ -e $(VENV)/.has-bfcl ] || { timeout 120 $(PIP) install --quiet --retries 1 --timeout 15 --no-deps bfcl-eval==2026.3.23 mpmath \
	  >/dev/null 2>&1 && touch $(VENV)/.has-bfcl; } || echo "no bfcl-eval: the tests of the environment bfcl are skipped"

test-gpu: $(VENV)/.dev  ## the tests that need a GPU
	$(BIN)/python -m pytest -m gpu tests/gpu

test-cluster: $(VENV)/.dev  ## kill engines, environments, ranks, nodes and the driver of small runs at ten moments each; OUT=FILE keeps the result
	$(BIN)/python tests/cluster/kills.py $(if $(OUT),--out $(OUT))

test-resume: $(VENV)/.dev  ## kill and resume a small run of every method, and compare weights and logs; ONLY=a,b for some
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python tests/support/resume_methods.py $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT))

lint: ruff types  ## ruff and mypy

ruff: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# TextWorld and ALFWorld in a virtual environment of their own. TextWorld is published for x86-64 alone, because it carries a compiler that
# ALFWorld's games never need: elsewhere its Python part is taken from that same wheel.
ORACLE := $(VENV)/oracle
ORACLE_PIP := $(ORACLE)/bin/python -m pip --disable-pip-version-check --quiet install
ORACLE_EXTRA := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["oracle"])

$(ORACLE)/.made:
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE_PIP) --upgrade pip
	set -e; wanted=$$($(ORACLE)/bin/python -c '$(ORACLE_EXTRA)'); textworld=$$(echo $$wanted | tr ' ' '\n' | grep textworld); \
	$(ORACLE_PIP) --only-binary textworld $$wanted || { \
	  $(ORACLE_PIP) --no-deps --only-binary :all: --platform manylinux2014_x86_64 \
	    --target $$($(ORACLE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') $$textworld; \
	  $(ORACLE_PIP) $$wanted; }
	@touch $@

test-oracle: $(VENV)/.dev $(ORACLE)/.made  ## play N new ALFWorld games (SEED=0) against TextWorld itself; WRITE=1 keeps the result
	OMP_NUM_THREADS=1 $(BIN)/python tests/oracle/compare.py --games $(or $(N),300) --seed $(or $(SEED),0) $(if $(VARIED),--varied $(VARIED)) $(if $(WRITE),--write)

# Five clients for agents, in a virtual environment of their own: their dependencies change often, and Turnwise needs none of them.
AGENTS := $(VENV)/agents

$(AGENTS)/.made:
	$(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python -m pip --disable-pip-version-check --quiet install openai openai-agents 'pydantic-ai-slim[openai]' langchain-openai smolagents
	@touch $@

test-agents: $(VENV)/.dev $(AGENTS)/.made  ## let five real clients use a tool and train a tiny model through the endpoint
	OMP_NUM_THREADS=1 TURNWISE_AGENTS=$(abspath $(AGENTS))/bin/python $(BIN)/python -m pytest tests/engines/test_agents.py --durations=15

# Every environment on its real package, in a virtual environment of their own that also sees the packages of $(VENV). What pip cannot
# install next to Turnwise goes into private folders below it; what it cannot install at all (a browser, Java, bubblewrap) comes from Debian
# where this is root, and is otherwise reported as missing.
comma := ,
ENVS := $(VENV)/envs
ENVS_PIP := $(ENVS)/bin/python -m pip --disable-pip-version-check --quiet install
ENVS_RUN := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE PYTHONPATH=$(CURDIR):$(CURDIR)/packages/turnwise-envs/src TURNWISE_ENVS=all OPENENV_PYTHON=$(abspath $(VENV)/openenv)/bin/python TURNWISE_CACHE=$(abspath $(ENVS))/cache $(ENVS)/bin/python

$(ENVS)/.made: $(VENV)/.dev
	$(PYTHON) -m venv $(ENVS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir({!r})".format(sysconfig.get_path("purelib")))' \
	  > $$($(ENVS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/turnwise-test.pth
	$(ENVS_PIP) --upgrade pip
	@touch $@

# OpenEnv's server wants an older mcp than Turnwise: it runs in a Python of its own.
$(VENV)/openenv/.made:
	$(PYTHON) -m venv $(VENV)/openenv
	$(VENV)/openenv/bin/python -m pip --disable-pip-version-check --quiet install openenv==0.10.0
	@touch $@

programs:  ## Chromium with its driver, Java and bubblewrap for the tests of the environments, where they can be installed
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  for pair in chromium:chromium chromedriver:chromium-driver java:default-jre-headless bwrap:bubblewrap; do \
	    command -v $${pair%%:*} >/dev/null || { echo "installing $${pair##*:}"; { timeout 60 apt-get update; \
	      timeout 300 apt-get install -y --no-install-recommends $${pair##*:}; } >/dev/null 2>&1; }; \
	  done; \
	fi; for name in chromium chromedriver java bwrap; do command -v $$name >/dev/null || echo "no $$name: what needs it is skipped"; done

test-envs: $(ENVS)/.made $(VENV)/openenv/.made programs  ## every environment on its real package; ONLY=a,b for some
	@for name in $(or $(subst $(comma), ,$(ONLY)),$$($(ENVS_RUN) -c 'from turnwise.config.addons import ENVIRONMENTS; print("gymnasium", *ENVIRONMENTS)')); do \
	  $(ENVS_RUN) -m turnwise envs --install $$name; \
	  $(ENVS_RUN) -m pytest -rfEs -k "test_$$(echo $$name | tr - _) or (test_environments and $$name)" tests/envs_package tests/envs/test_gymnasium.py || failed=1; \
	done; exit $${failed:-0}

# Each host in a virtual environment of its own, with the versions in tests/hosts/requirements: most of them exclude each other. A host that
# cannot be installed here is reported, and the others run.
HOSTS := $(VENV)/hosts

$(HOSTS)/%/.made: tests/hosts/requirements/%.txt pyproject.toml
	$(or $(shell sed -n 's/^# python: //p' tests/hosts/requirements/$*.txt 2>/dev/null),$(PYTHON)) -m venv $(HOSTS)/$*
	$(HOSTS)/$*/bin/python -m pip --disable-pip-version-check --quiet install --upgrade pip
	$(HOSTS)/$*/bin/python -m pip --disable-pip-version-check --quiet install --no-compile pytest hypothesis numpy
	if grep -q '^torch==' $<; then $(HOSTS)/$*/bin/python -m pip --disable-pip-version-check --quiet install --no-compile "$$(grep '^torch==' $<)"; fi
	$(HOSTS)/$*/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	@touch $@

test-hosts:  ## credit inside other trainers, each with the trainer's own package; ONLY=a,b for some
	@for name in $(or $(subst $(comma), ,$(ONLY)),$(basename $(notdir $(wildcard tests/hosts/requirements/*.txt)))); do \
	  $(MAKE) --no-print-directory $(HOSTS)/$$name/.made || { echo "$$name cannot be installed here: its tests are skipped"; continue; }; \
	  OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE PYTHONPATH=$(CURDIR) $(HOSTS)/$$name/bin/python -m pytest -rs tests/hosts/test_$$name*.py || failed=1; \
	done; exit $${failed:-0}

bench-envs: $(ENVS)/.made programs  ## the speeds of every environment that `make test-envs` has installed, into benchmarks/ and the tables of docs/
	$(ENVS_RUN) benchmarks/environments.py panel --only speeds $(ONLY) --write >/dev/null
	$(ENVS_RUN) benchmarks/bench.py

docs: $(VENV)/.docs  ## build the documentation site into docs/_build
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build
	@echo "docs/_build/index.html"

docs-test: $(VENV)/.dev $(VENV)/.docs  ## build the site and check that it needs no network and that no link is broken
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/docs/test_site.py

notebooks: $(VENV)/.docs  ## run every notebook from its first cell to its last
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/run.py

# The header says for which Python and system. `+cpu` is left out: the same versions exist for CUDA.
lock: $(VENV)/.dev  ## renew requirements.lock from what the tests run with
	@{ echo "# The versions of all packages that the tests ran with: Python $$($(BIN)/python -c 'import platform as p; print(p.python_version(), "on", p.system(), p.machine())')."; \
	echo "# Made by \`make lock\` (pip freeze after \`make test\`). Use it as a constraint, in a clone:"; \
	echo "#   pip install -c requirements.lock torch && pip install -c requirements.lock -e '.[quickstart]'"; \
	$(PIP) freeze --exclude-editable | sed 's/+cpu$$//' | grep -viE '^(bfcl.eval|[^=]+ @)'; } >requirements.new && mv requirements.new requirements.lock

release:  ## build wheels and sdists of both packages, and check them in empty environments
	$(PYTHON) packages/release.py

bench: $(VENV)/.dev  ## run the benchmarks and write their results beside them
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/credit.py speed --write
	$(BIN)/python benchmarks/bench.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info packages/*/build packages/*/src/*.egg-info experiments/build experiments/src/*.egg-info
