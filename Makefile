# Every target sets up what it needs. The work is done by the scripts in ci/.
#   MODEL=path   the model folder or .gguf file to serve (default: the embedded model)
#   ARGS='...'   more arguments for serve, test and bench

PYTHON_BIN := .venv/bin/python
BENCHMARKS := kernels engine server interleave sharing
MODEL ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev build serve test test-slow demo bench lint types format wheel clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup:  ## make .venv, build the extension, fetch the embedded model
	@ci/install test

setup-dev:  ## the same, with linters and the wheel builder
	@ci/install dev

build:  ## build the extension again
	@rm -f .venv/pomona-installed
	@ci/install test

serve: setup  ## serve MODEL on http://127.0.0.1:8642/v1
	@exec .venv/bin/pomona serve $(MODEL) $(ARGS)

test: setup  ## all tests but the slow ones
	@ci/test -m "not slow" $(ARGS)

test-slow: setup  ## the slow tests
	@ci/test -m slow $(ARGS)

demo: setup  ## start the server, hold a three-turn chat, stop it
	@$(PYTHON_BIN) ci/demo.py

bench: setup  ## measure this machine (an hour; ARGS=--quick: a few minutes that prove only that all runs)
	@for name in $(BENCHMARKS); do $(PYTHON_BIN) bench/$$name.py $(ARGS) || exit 1; done

lint: setup-dev  ## check the style of Python and C++
	@ci/lint

types: setup-dev  ## check the types
	@ci/types

format: setup-dev  ## rewrite Python and C++ in our style
	@ci/format

wheel: setup-dev  ## build dist/*.whl and try it in an empty environment
	@ci/wheel

clean:  ## remove what was built, and .venv
	rm -rf .venv build dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
