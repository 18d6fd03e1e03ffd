"""Command jobs: processes, their environment, output, secrets."""
