# `make` without a target lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup web demo test check bench soak test-n8n-server clean

READY := .venv/.ready

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with everything pinned (instant when nothing changed)

$(READY): pyproject.toml requirements/uv.txt requirements/dev.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup

web: setup ## Build the dashboard into the package (instant when nothing changed)
	@scripts/web

demo: setup ## Run a server, two workers and a CI-like workflow; without a terminal it stops when the run ends
	@if [ -t 1 ]; then scripts/web || echo "the page is not built: the demo goes on without it" >&2; fi
	@.venv/bin/python examples/demo.py

test: setup ## Run the checks and every test, as CI does
	@scripts/test

check: setup ## Lint, format, types, layers, Lua
	@scripts/check

bench: setup ## Compare with peers, side by side in one run
	@scripts/bench

soak: setup ## Run the long tests
	@scripts/soak

test-n8n-server: setup ## Install an n8n server (1.3 GB) and run the tests that need it
	@scripts/n8n_server

clean: ## Remove .venv, caches and build output
	@rm -rf .venv .n8n build dist web/node_modules src/backstay/server/dashboard .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
