# `make` alone lists what there is.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench soak clean

READY := .venv/.ready

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with everything pinned (instant when nothing changed)

$(READY): pyproject.toml requirements/uv.txt requirements/dev.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup

demo: setup ## Watch a lock change hands when its holder dies
	@.venv/bin/python examples/handover.py

test: setup ## Run the checks and every test, as CI does
	@scripts/test

check: setup ## Lint, format, types, layers, Lua
	@scripts/check

bench: setup ## Compare with peers, side by side in one run
	@scripts/bench

soak: setup ## Run the long tests
	@scripts/soak

clean: ## Remove .venv, caches and build output
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
