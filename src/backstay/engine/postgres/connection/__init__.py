"""Connections to PostgreSQL: those that Backstay opens itself, those of a pool that belongs to the caller, and the
pipelined sending of statements.
"""
