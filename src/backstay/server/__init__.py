"""The HTTP server: an ASGI application over one Backstay, built from one table of routes."""
