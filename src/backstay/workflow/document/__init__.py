"""Workflow documents in YAML and JSON: parsed with positions, validated, converted to definitions."""
