"""Runs the operations of stores that have their own tables, such as jobs, in libpq's pipeline mode."""
