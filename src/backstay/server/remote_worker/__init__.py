"""A worker that reaches its jobs over HTTP alone."""
