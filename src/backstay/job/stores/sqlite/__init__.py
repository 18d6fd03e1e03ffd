"""Jobs in SQLite."""
