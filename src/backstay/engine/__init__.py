"""Engines: what stores state and runs operations atomically."""
