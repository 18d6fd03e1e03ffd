"""Workflow runs in SQLite."""
