"""The privileges on Backstay's tables that a database user needs who may not create tables. `backstay migrate`, the
doctor and the docs all use this list.

A migration that creates a table must add it here. Otherwise the first statement on that table fails for these users,
and all other operations of its batch fail with it.
"""

from __future__ import annotations

from collections.abc import Iterable

#: The privileges by table. Only migrations write `backstay_meta`.
RIGHTS: dict[str, tuple[str, ...]] = {
    "backstay_meta": ("SELECT",),
    "backstay_state": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_tag": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_hint_counter": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_done": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_after": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_unique": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_lane": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_queue": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_rate": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_turn": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_log": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_output": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_worker": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_job_tick": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_run": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_run_event": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_definition": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_artifact": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_artifact_part": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_token": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "backstay_secret": ("SELECT", "INSERT", "UPDATE", "DELETE"),
}


def grants(user: str, tables: Iterable[str] = tuple(RIGHTS)) -> list[str]:
    """Return the GRANT statements for a user, one for all tables with the same rights. `user` is already quoted."""
    by_rights: dict[tuple[str, ...], list[str]] = {}
    for table in tables:
        by_rights.setdefault(RIGHTS[table], []).append(table)
    return [f"GRANT {', '.join(rights)} ON {', '.join(tables)} TO {user};" for rights, tables in by_rights.items()]
