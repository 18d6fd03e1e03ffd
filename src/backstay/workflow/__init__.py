"""Workflows: DAGs of jobs, defined in Python or YAML, and their runs."""
