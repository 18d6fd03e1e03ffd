"""The rights that a user needs who may not create tables: the one list for `backstay migrate`, the doctor and the docs.

A migration with a new table adds it here, or such users are refused by the first statement that touches it, and with
them whoever shares its group.
"""

from __future__ import annotations

from collections.abc import Iterable

#: By table. Only migrations write `backstay_meta`.
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
}


def grants(user: str, tables: Iterable[str] = tuple(RIGHTS)) -> list[str]:
    """What gives a user these rights: one statement for all tables that need the same. `user` is an identifier."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for table in tables:
        alike.setdefault(RIGHTS[table], []).append(table)
    return [f"GRANT {', '.join(rights)} ON {', '.join(tables)} TO {user};" for rights, tables in alike.items()]
