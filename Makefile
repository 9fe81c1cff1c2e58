# A fresh clone needs only make and Python 3.11 or newer. Another Python: PYTHON=python3.12 make test

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Stamps live inside the venv. One made with another PYTHON lacks this stamp, and is made anew.
MADE  := $(VENV)/.made-with-$(subst /,_,$(PYTHON))
LIGHT := $(VENV)/.light
FULL  := $(VENV)/.full

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' $(MAKEFILE_LIST)

demo: $(LIGHT)  ## see a pipeline run, with its diagnosis
	$(BIN)/penstock demo

# Two at a time, and then what must have the machine to itself. Exit status 5: ARGS chose nothing of that part.
test: $(FULL)  ## all tests and doctests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone" $(ARGS) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest -m alone $(ARGS) || [ $$? -eq 5 ]

lint: $(FULL)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

bench: $(FULL)  ## every benchmark, one at a time
	@for file in $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)); do \
		echo "== $$file"; $(BIN)/python $$file || exit 1; \
	done

clean:  ## remove the venv, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
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
