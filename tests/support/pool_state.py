"""Inspect a user's ConnectionPool, and exhaust it."""

from __future__ import annotations


def all_returned(pool):
    """Whether all connections of the pool are idle in it."""
    stats = pool.get_stats()
    return stats["pool_available"] == stats["pool_size"] == pool.max_size


def settings(connection):
    """Return the settings and prepared statements that the engine must leave unchanged."""
    names = ("lock_timeout", "idle_in_transaction_session_timeout", "enable_seqscan", "search_path", "application_name")
    found = {name: connection.execute(f"SHOW {name}", prepare=False).fetchone() for name in names}
    prepared = "SELECT name, statement FROM pg_prepared_statements ORDER BY name"
    found["prepared"] = connection.execute(prepared, prepare=False).fetchall()
    connection.commit()
    return found


def drain_into(stack, pool):
    """Take every connection of the pool."""
    return [stack.enter_context(pool.connection()) for _ in range(pool.max_size)]
