# make demo        set up, prepare the model, index the sample knowledge, print a context
# make test        set up, run the tests (under 5 minutes), two files at a time (JOBS=n)
# make test-all    also whole data sets, a million pairs, twenty kills
# make check       format, lint, types
# make bench       measure; writes benchmarks/results, and the tables of the READMEs from it
#
# Only Python, pip and make are needed. Torch comes as a CPU build: from TORCH_INDEX on Linux, where the default build of
# PyPI brings gigabytes of CUDA, and from PyPI elsewhere.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
ifeq ($(shell uname -s),Linux)
TORCH := --retries 0 --extra-index-url $(TORCH_INDEX) torch==$(TORCH_VERSION)+cpu
else
TORCH := torch==$(TORCH_VERSION)
endif

# HelloAgents wants openai 1, others want a newer one: its tests run with a folder of their own
APART := $(VENV)/apart
HELLO_AGENTS := "hello-agents==1.0.0" "openai<2" sniffio python-dotenv

JOBS ?= 2
KB := .demo/kb
CTX := $(BIN)/ctx-vector

.PHONY: demo test test-all check bench clean

demo: $(VENV)/.installed
	$(CTX) models prepare
	$(CTX) index data/knowledge --kb $(KB)
	$(CTX) build "如何优化Pandas的内存占用?" --kb $(KB) --system "你是一位Pandas顾问。" \
	  --history data/history/pandas_zh.jsonl --max-tokens 1500 --citations --explain

test: $(VENV)/.tested
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test-all: $(VENV)/.tested
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "slow or not slow"

check: $(VENV)/.tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.tested
	$(BIN)/python benchmarks/encode.py
	$(BIN)/python benchmarks/cold_start.py
	$(BIN)/python benchmarks/cli_cold.py
	$(BIN)/python benchmarks/index.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/build.py
	$(BIN)/python benchmarks/selection.py
	$(BIN)/python benchmarks/audit.py
	$(BIN)/python benchmarks/history.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/xquad.py
	$(BIN)/python benchmarks/late.py
	$(BIN)/python benchmarks/late_forms.py
	$(BIN)/python benchmarks/locomo.py
	$(BIN)/python benchmarks/locomo_settings.py
	$(BIN)/python benchmarks/freshness.py
	$(BIN)/python benchmarks/other_facts.py
	$(BIN)/python benchmarks/recency_forms.py
	$(BIN)/python benchmarks/mcp_server.py
	$(BIN)/python benchmarks/inspector.py
	$(BIN)/python benchmarks/readme_tables.py

$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade pip
	$(PIP) install -q $(TORCH)
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(PIP) install -q -c constraints.txt -e .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e . --group dev
	$(PIP) install -q --no-deps --target $(APART)/hello-agents $(HELLO_AGENTS)
	touch $@

clean:
	rm -rf $(VENV) .demo
