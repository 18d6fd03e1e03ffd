"""Push, pull and compare workflows with an n8n server."""
