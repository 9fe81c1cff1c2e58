# A fresh clone needs only make and Python 3.11 or newer. Another Python: PYTHON=python3.12 make test

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Stamps live inside the venv. One made with another PYTHON lacks this stamp, and is made anew.
MADE  := $(VENV)/.made-with-$(subst /,_,$(PYTHON))
LIGHT := $(VENV)/.light
FULL  := $(VENV)/.full
STORES := $(VENV)/.stores
INTEGRATIONS := $(VENV)/.integrations
BROWSER := $(VENV)/.browser

SEED  := $(or $(PENSTOCK_SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
TIMES := $(or $(PENSTOCK_TIMES),20)

# Files with tests that run alone: to collect all others would take as long as to run these.
ALONE  = $(shell grep -rl --include='*.py' 'pytest.mark.alone' tests)

# What needs a server, other frameworks, a browser or a GPU has a target of its own.
ELSEWHERE := stores and not integrations and not gpu and not browser

# Tests start hundreds of interpreters; without bytecode each would compile penstock anew, which doubles its start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-stores test-integrations test-browser test-gpu soak fuzz lint bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' $(MAKEFILE_LIST)

demo: $(LIGHT)  ## see a pipeline run, with its diagnosis
	$(BIN)/penstock demo

# Four at a time, since half of the time they wait for processes; then what must have the machine to itself.
# Exit status 5: ARGS chose nothing of that part.
test: $(FULL)  ## all tests and doctests but the long ones, always with the same random data
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not alone and not soak and not $(ELSEWHERE)" $(ARGS) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest -m "alone and not soak and not $(ELSEWHERE)" $(or $(ARGS),$(ALONE)) || [ $$? -eq 5 ]

test-stores: $(STORES)  ## tests against a local S3 server
	$(BIN)/python -m pytest -m stores $(ARGS)

test-integrations: $(INTEGRATIONS)  ## tests with torch, JAX and training frameworks, as they are
	$(BIN)/python -m pytest -n 2 --dist worksteal -m integrations $(ARGS)

# Needs chromium and its driver; on Debian: apt-get install chromium chromium-driver
test-browser: $(BROWSER)  ## tests of the page in a real browser
	$(BIN)/python -m pytest -m browser $(ARGS)

test-gpu: $(FULL)  ## tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu $(ARGS)

# Random data of these two is new in every run; PENSTOCK_SEED=... makes it that of another run again.
soak: $(FULL)  ## long random runs and many kills
	@echo "PENSTOCK_SEED=$(SEED)"
	PENSTOCK_SEED=$(SEED) $(BIN)/python -m pytest -m soak --timeout 3600 $(ARGS)

fuzz: $(FULL)  ## every test of random data, with PENSTOCK_TIMES (20) times the examples
	@echo "PENSTOCK_SEED=$(SEED) PENSTOCK_TIMES=$(TIMES)"
	PENSTOCK_SEED=$(SEED) PENSTOCK_TIMES=$(TIMES) $(BIN)/python -m pytest -n 2 --dist loadfile \
		-m "(hypothesis or fuzz) and not soak and not $(ELSEWHERE)" --timeout 3600 $(ARGS)

lint: $(FULL)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

bench: $(FULL)  ## every benchmark, one at a time
	@for file in $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)); do \
		echo "== $$file"; $(BIN)/python $$file || exit 1; \
	done

clean:  ## remove the venv, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .soak
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(LIGHT): $(MADE) pyproject.toml
	$(PIP) -e '.[demo]'
	@touch $@

$(FULL): $(MADE) pyproject.toml requirements-test.txt
	$(PIP) -r requirements-test.txt -e '.[test]'
	@touch $@

$(STORES): $(FULL) requirements-stores.txt
	$(PIP) -r requirements-stores.txt
	@touch $@

# torch first: what depends on it must not bring in another build.
$(INTEGRATIONS): $(FULL) requirements-integrations.txt
	$(PIP) -r requirements-integrations.txt
	@touch $@

$(BROWSER): $(FULL) requirements-browser.txt
	$(PIP) -r requirements-browser.txt
	@touch $@
