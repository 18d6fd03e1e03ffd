"""Jobs in Redis."""
