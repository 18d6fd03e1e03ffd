"""Run servers in this process, and call their HTTP API."""
