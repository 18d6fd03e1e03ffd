"""Patches that add locks and rate limits to a workflow, and remove them again."""
