"""Hubs: they carry the hints that wake waiters."""
