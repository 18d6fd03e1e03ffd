"""Workflow documents: YAML and JSON, read with positions and validated."""
