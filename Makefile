# Two commands do everything on a machine with Python 3.11+, make and git:
#   make demo    set up and run the demonstration
#   make test    set up and run ruff, mypy and pytest
# Both build .venv the first time (exact versions: constraints.txt, their hashes: requirements/) and reuse it afterwards.

PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo $$p; break; }; done)
BIN := .venv/bin
# pip would compile on one core what COMPILE does on all.
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# Wheels alone, each with a SHA-256 of requirements/; a source would run while it is built.
HASHED := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps --require-hashes --only-binary :all:
NEEDED := -r requirements/build.txt -r requirements/runtime.txt
# Last, into what is there: torch, whose build depends on the machine, and FairMargin itself.
OWN := $(PIP) torch && $(PIP) --no-deps --no-build-isolation --editable .
PINS := pyproject.toml constraints.txt $(wildcard requirements/*.txt)
# A few files are templates or for other versions of Python, and are left as they are.
COMPILE := $(BIN)/python -m compileall -qq -j 0 .venv/lib src || true
# Where this is set, every process would compile the sources anew.
export PYTHONDONTWRITEBYTECODE :=
OUT ?= demo
FUZZ_MINUTES ?= 10

.PHONY: help demo test pytest quick fuzz lint types bench figures docs house hashes clean
help:
	@echo "make demo     set up and run the demonstration, a few minutes (writes $(OUT)/report.html)"
	@echo "make test     set up and run ruff, mypy and every test"
	@echo "make quick    the inner loop: tests not marked slow"
	@echo "make fuzz     random configurations, commands and files for $(FUZZ_MINUTES) minutes (FUZZ_MINUTES=…)"
	@echo "make bench    the loss benchmarks of docs/performance.md"
	@echo "make figures  redraw the pictures of docs/"
	@echo "make docs     build the documentation site into build/site"
	@echo "make house    measure the package: modules, names, docstrings, long lines"
	@echo "make hashes   renew requirements/ after a change of constraints.txt"
	@echo "make clean    remove .venv and caches"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "FairMargin needs Python 3.11 or newer and found none; install one, or name it: make PYTHON=/path/to/python $(MAKECMDGOALS)"; exit 1; }
	@echo "== making .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }

.venv/.runtime: $(PINS) | $(BIN)/python
	@echo "== installing FairMargin into .venv (once; about a minute)"
	@$(HASHED) $(NEEDED)
	@$(OWN)
	@$(COMPILE)
	@touch $@

.venv/.dev: $(PINS) | $(BIN)/python
	@echo "== installing FairMargin and its test tools into .venv (once; about a minute)"
	@$(HASHED) $(NEEDED) -r requirements/dev.txt
	@$(OWN)
	@$(COMPILE)
	@touch .venv/.runtime $@

.venv/.bench: .venv/.dev
	@echo "== installing what the benchmarks compare with"
	@$(HASHED) -r requirements/bench.txt
	@touch $@

# The site's tools alone: its reference is made from the source, so PyTorch is not needed.
.venv/.docs: $(PINS) | $(BIN)/python
	@echo "== installing what builds the site"
	@$(HASHED) -r requirements/docs.txt
	@touch $@

demo: .venv/.runtime
	@echo "== fairmargin demo"
	@$(BIN)/fairmargin demo --out "$(OUT)"

lint: .venv/.dev
	@echo "== ruff"
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: .venv/.dev
	@echo "== mypy"
	@$(BIN)/mypy

# mypy takes one core for a minute, in which pytest would leave the other one idle.
test: lint
	@$(MAKE) --no-print-directory -j2 types pytest

pytest: .venv/.dev
	@echo "== pytest"
	@$(BIN)/python -m pytest -q --durations=15

quick: .venv/.dev
	@$(BIN)/python -m pytest -q -m "not slow"

# One case again: .venv/bin/python -m tests.fuzz --replay KIND:SEED
fuzz: .venv/.dev
	@$(BIN)/python -W ignore -m tests.fuzz --minutes $(FUZZ_MINUTES)

bench: .venv/.bench
	@$(BIN)/python -m benchmarks.losses

figures: .venv/.runtime
	@$(BIN)/python docs/make_figures.py

docs: .venv/.docs
	@$(BIN)/python tools/docs_site.py
	@$(BIN)/zensical build --strict
	@echo "open build/site/index.html"

house: | $(BIN)/python
	@$(BIN)/python tools/house.py

# After a change of constraints.txt: asks the package index.
hashes: .venv/.bench .venv/.docs
	@$(BIN)/python tools/pins.py

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
