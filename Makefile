# Everything sets itself up: make demo, make test, make lab. Needs git, make and python3 (3.11 or newer).
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYTHONPATH := tests

.PHONY: demo test lint lab contract sim sim-long mutants bench-diagnose bench-policy bench-sizing bench-guard bench-restart lab-long clean setup

setup: $(VENV)/.complete

$(VENV)/.complete: requirements.lock pyproject.toml tests/setup.sh
	@PYTHON=$(PYTHON) bash tests/setup.sh $(VENV)

demo: setup
	@$(BIN)/python -m demo $(if $(CHECK),--check) --engine $(or $(ENGINE),standin)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup
	@bash tests/packages.sh mosquitto prometheus systemd systemd-container polkitd dbus iproute2
	@bash tests/systemd_python.sh $(VENV)
	@$(MAKE) --no-print-directory lint
	$(BIN)/pytest -n 2 --dist loadfile -m "not nodes and not real" --ignore tests/process $(ARGS)
	$(BIN)/pytest -m "not nodes" tests/process $(ARGS)
	$(BIN)/pytest -m nodes $(ARGS)

# The random worlds of tests/sim/chaos: the fixed seeds (in `make test`, too), or as many others as you like.
sim: setup
	@$(BIN)/python -m sim.chaos --worlds 2000 --seed 0 --jobs 2

sim-long: setup
	@$(BIN)/python -m sim.chaos --worlds $(or $(WORLDS),20000) --seed $(or $(SEED),100000) --jobs $$(nproc)

# Mutation testing of the core, about 15 minutes of processor time (docs/mutants.md); MUTANTS='*core.fence.*' for one module.
MUTATED := build/mutants
mutants: setup
	$(BIN)/pip install -qq --disable-pip-version-check --require-hashes -r mutants.lock
	@PATH=$(CURDIR)/$(BIN):$$PATH bash tests/mutation/run.sh $(MUTATED) $(MUTANTS)

lab: setup
	@bash tests/packages.sh iproute2 mosquitto systemd systemd-container polkitd dbus libfaketime
	@bash tests/systemd_python.sh $(VENV)
	$(BIN)/python -m lab $(ARGS)

# The same again and again -> build/lab-long.json (RUNS rounds, about 25 minutes each; ARGS="--only SCENARIO...").
lab-long: setup
	@$(MAKE) --no-print-directory lab ARGS="--rounds $(or $(RUNS),10) --no-raw $(ARGS)"

# What holds the stand-in engine and the sizing to the real programs, against them (about 10 minutes).
contract: setup
	SPARKD_ENGINE_ENV=$$($(BIN)/python -m lab.engine_env | tail -1) \
	    $(BIN)/pytest -m real tests/contract/test_standin_contract.py tests/contract/test_sizing_contract.py $(ARGS)

# Speed of `sparkctl diagnose` and of the live tail, beside grep with the same patterns; the last line is JSON.
# The start is that of an installed program: pip compiles what it installs, from a checkout somebody has to.
bench-diagnose: setup
	@$(BIN)/python -m compileall -q daemon/sparkd
	@$(BIN)/python -m benchmarks.diagnose $(ARGS)

# The memory ladder against two habits and an oracle, on generated failures; the last line is JSON.
bench-policy: setup
	@$(BIN)/python -m benchmarks.policy --seed $(or $(SEED),1) $(ARGS)

# What sizing predicts beside what the real vLLM (CPU build) holds in a limited control group (root; 15 minutes).
bench-sizing: setup
	@SPARKD_ENGINE_ENV=$$($(BIN)/python -m lab.engine_env | tail -1) $(BIN)/python -m benchmarks.sizing $(ARGS)

# The memory guard beside Debian's earlyoom and nohang, and a real hog (root; about 15 minutes); the last line is JSON.
bench-guard: setup
	@bash tests/packages.sh earlyoom nohang
	@$(BIN)/python -m benchmarks.guard $(ARGS)

# From a process's death to the next one's start: systemd, supervisord, sparkd on two nodes (root; 5 minutes).
bench-restart: setup
	@bash tests/packages.sh mosquitto systemd systemd-container polkitd dbus iproute2 supervisor
	@bash tests/systemd_python.sh $(VENV)
	@$(BIN)/python -m benchmarks.restart $(ARGS)

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
