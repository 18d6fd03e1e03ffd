"""Command jobs: run shell scripts as processes; capture output, set the environment, mask secrets, store artifacts."""
