"""n8n's side of a test: its nodes, its API, its commands."""
