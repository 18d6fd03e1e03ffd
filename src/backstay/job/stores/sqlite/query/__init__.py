"""Read jobs of the SQLite store."""
