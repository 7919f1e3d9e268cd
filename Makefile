# Everything runs in .venv, which is made on first use: a machine needs Python 3.11, pip and make.
PYTHON ?= python3
# Another version for a trial: make clean; make check TORCH='torch==2.11.*'
TORCH ?= $(shell grep '^torch==' constraints.txt)
# Tests start lipkit in other processes, each of which would compile it anew.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
READY := .venv/.ready
# Two workers with one thread each are faster than one worker with two: the tests are many and small.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations=10

# What pyproject.toml marks lasts longer, and is left to `make test-all` and `make check`.
QUICK := not (process or compile or train or browser or slow)

.PHONY: demo test test-all check docs dist clean

demo: $(READY)
	$(BIN)/python -m lipkit.cli.main demo --out demo-out

test: $(READY)
	$(PYTEST) -m '$(QUICK)'

test-all: $(READY)
	$(PYTEST)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(MAKE) docs
	$(MAKE) dist
	$(MAKE) test-all

# Warnings are errors: a link that leads nowhere stops here. Not with --quiet, which hides the warnings and ends well in spite of them.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The archives as they would be uploaded. The build tools come from .venv, so nothing is downloaded here.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf .venv build dist site demo-out .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation is taken up again.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lipkit needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	sed "s/^torch==.*/$(TORCH)/" constraints.txt > .venv/constraints.txt
	$(BIN)/python -m pip install --constraint .venv/constraints.txt --editable '.[all,dev]'
	touch $@
