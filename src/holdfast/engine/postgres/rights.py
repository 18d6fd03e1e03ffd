"""The rights that a user needs who may not create tables: the one list for `holdfast migrate`, the doctor and the docs.

A migration with a new table adds it here, or such users are refused by the first statement that touches it, and with
them whoever shares its group.
"""

from __future__ import annotations

from collections.abc import Iterable

#: By table. Only migrations write `holdfast_meta`.
RIGHTS: dict[str, tuple[str, ...]] = {
    "holdfast_meta": ("SELECT",),
    "holdfast_state": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_tag": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_hint_counter": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_done": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_after": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_unique": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_lane": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_queue": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_rate": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_turn": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_log": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_output": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_worker": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_job_tick": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_run": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_run_event": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_definition": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_artifact": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_artifact_part": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_token": ("SELECT", "INSERT", "UPDATE", "DELETE"),
}


def grants(user: str, tables: Iterable[str] = tuple(RIGHTS)) -> list[str]:
    """What gives a user these rights: one statement for all tables that need the same. `user` is an identifier."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for table in tables:
        alike.setdefault(RIGHTS[table], []).append(table)
    return [f"GRANT {', '.join(rights)} ON {', '.join(tables)} TO {user};" for rights, tables in alike.items()]
