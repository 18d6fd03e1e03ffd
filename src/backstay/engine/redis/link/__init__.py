"""Connections to one Redis server: async, blocking, TLS, credentials."""
