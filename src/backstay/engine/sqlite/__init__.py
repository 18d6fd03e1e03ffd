"""The SQLite engine: one file, any number of processes on one host."""
