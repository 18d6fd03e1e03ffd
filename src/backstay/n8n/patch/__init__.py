"""Adds locks and limits to a workflow, and removes them again."""
