"""Hubs: hints that wake waiters."""
