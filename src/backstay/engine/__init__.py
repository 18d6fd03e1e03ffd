"""Engines: they store state and run operations atomically, on SQLite, PostgreSQL or Redis."""
