"""Races: processes compete for locks or run jobs while faults are injected, and a checker verifies their history."""
