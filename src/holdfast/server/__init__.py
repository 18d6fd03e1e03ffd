"""The HTTP server: an ASGI application over one Holdfast, made from one table of routes."""
