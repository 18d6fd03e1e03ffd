"""Locks and idempotent calls over HTTP."""
