"""Idempotent calls: one key, one execution, one outcome."""
