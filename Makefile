# Everything from a clone: each target sets up what it needs (a virtual environment with all
# dependencies; jars and, where there is none, Java follow when they are first used).
# Needed: make and Python 3.11 or newer (PYTHON=... chooses one).

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SERVICES := broker or spark or container or slow
# A browser has a lane of its own: .ci/browser.
FAST := not ($(SERVICES) or browser)
# A file's tests are in one process: they share brokers and jobs. Half the time of the fast tests is
# waiting, so three processes keep two cores busy; a JVM keeps one busy alone.
SHARED := --dist loadfile --no-loadscope-reorder
TWO := -n 2 $(SHARED)
THREE := -n 3 $(SHARED)

# Compiled code is kept, also where the shell says not to: to compile the tests takes a run 7 s.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test fast long explore lives adopt check format clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## watch a fleet being coordinated: Kafka, Spark job and workers on this machine
	@$(BIN)/muster demo

test: $(READY) ## the whole suite: the fast tests, then those with a real Kafka and a real Spark
	@status=0; \
	echo "== fast tests, every example"; \
	MUSTER_EXAMPLES=all $(BIN)/python -m pytest -q $(THREE) -m "$(FAST)" || status=1; \
	echo "== tests with services"; \
	$(BIN)/python -m pytest -q $(TWO) --durations=20 --durations-min=30 -m "($(SERVICES)) and not browser" || status=1; \
	exit $$status

fast: $(READY) ## the fast tests: no JVM, a third of the examples, under two minutes
	@$(BIN)/python -m pytest -q $(THREE) -m "$(FAST)"

long: $(READY) ## hours: a million generations under faults, 20,000 random lives, explorations, a million hostile cases, half an hour of faults and an hour of attacks on the real thing
	@status=0; \
	$(BIN)/python -m pytest -q -s tests/simulation -m slow || status=1; \
	$(MAKE) --no-print-directory lives || status=1; \
	$(MAKE) --no-print-directory explore || status=1; \
	MUSTER_FUZZ_CASES=1000000 $(BIN)/python -m pytest -q tests/security/hostile/test_fuzz.py || status=1; \
	MUSTER_CHAOS_MINUTES=30 $(BIN)/python -m pytest -q -s tests/chaos || status=1; \
	MUSTER_SOAK_MINUTES=60 $(BIN)/python -m pytest -q -s tests/security/hostile/test_soak.py || status=1; \
	exit $$status

# MUSTER_EXPLORE_STATES is where a search stops; a second run goes on from the files of the first.
explore: $(READY) ## every interleaving of small groups, to 200,000 states each, two scenarios at a time; goes on where it stopped
	@PYTHONPATH=.:tests $(BIN)/python -m exploration.run --keep .exploration --states $${MUSTER_EXPLORE_STATES:-200000}

adopt: $(READY) ## governed groups: 2,000 random lives, then every scenario with every client and a Connect cluster
	@MUSTER_ADOPT=all MUSTER_ADOPT_LIVES=1000 $(BIN)/python -m pytest -q $(TWO) tests/adopt

lives: $(READY) ## a million generations under faults, 100,000 in days of a fleet, 20,000 with quarantines and keys, 20,000 random lives that must settle; goes on where it stopped
	@PYTHONPATH=.:tests $(BIN)/python -m fault_injection.whole_lives --keep .lives --report lives.txt \
		--generations $${MUSTER_FAULT_GENERATIONS:-1000000} --lives $${MUSTER_LIVES:-20000}

check: $(READY) ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environment and all caches of the checkout
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "muster needs Python 3.11 or newer (make PYTHON=/path/to/python)"; exit 1; }
	@echo "setting up $(VENV): once, and again when pyproject.toml changes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --quiet --editable '.[all]' --group dev
	@touch $@
