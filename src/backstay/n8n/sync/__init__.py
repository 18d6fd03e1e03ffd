"""Push, pull and compare with an n8n server."""
