"""The HTTP server: an ASGI application over one Backstay, made from one table of routes."""
