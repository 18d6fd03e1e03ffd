"""The Redis and Valkey engine."""
