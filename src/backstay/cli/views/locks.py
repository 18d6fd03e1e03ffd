"""Format a lock as a table row, a page or JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from backstay.cli.durations import span
from backstay.cli.output import describe_caller, printable, say, say_table
from backstay.errors import HolderInfo
from backstay.gate.view import Inspection

COLUMNS = ("NAME", "HELD BY", "SINCE", "EXPIRES IN", "WAITING", "FENCE", "CAPACITY")
RIGHT = ("SINCE", "EXPIRES IN", "WAITING", "FENCE", "CAPACITY")


def row(lock: Inspection, now: float) -> tuple[str, ...]:
    """Return the cells of one lock for `locks ls`: its first holder, and how many more there are."""
    if lock.holders:
        first = lock.holders[0]
        more = f" +{len(lock.holders) - 1}" if len(lock.holders) > 1 else ""
        holder = (describe_caller(first) + more, f"{span(held_for(first, now))} ago", span(expires_in(first, now)))
    elif lock.trouble:
        return (printable(lock.name), "(cannot be read)", *["?"] * (len(COLUMNS) - 2))
    else:
        holder = ("-", "-", "-")
    return (printable(lock.name), *holder, str(lock.waiter_count), str(lock.fence), capacity(lock))


def capacity(lock: Inspection) -> str:
    return "read-write" if lock.capacity is None else str(lock.capacity)


def page(lock: Inspection, now: float) -> None:
    """Print one lock: its holders and its queue."""
    say(f"{printable(lock.name)}: capacity {capacity(lock)}, fence {lock.fence}")
    if lock.holders:
        say("\nHeld by")
        say_table(
            ("WHO", "LOCK ID", "MODE", "SINCE", "EXPIRES IN", "FENCE"),
            (
                (
                    describe_caller(h),
                    printable(h.lock_id),
                    mode(h.exclusive),
                    f"{span(held_for(h, now))} ago",
                    span(expires_in(h, now)),
                    str(h.fence),
                )
                for h in lock.holders
            ),
            right=("SINCE", "EXPIRES IN", "FENCE"),
        )
    else:
        say("\nNot held.")
    if lock.queue:
        say("\nWaiting")
        say_table(
            ("POSITION", "WHO", "LOCK ID", "MODE", "FOR"),
            (
                (
                    f"{w.position + 1}{' (offered)' if w.offered else ''}",
                    describe_caller(w),
                    printable(w.lock_id),
                    mode(w.exclusive),
                    span(w.waiting),
                )
                for w in lock.queue
            ),
            right=("FOR",),
        )


def mode(exclusive: bool) -> str:
    return "exclusive" if exclusive else "shared"


def as_json(lock: Inspection) -> dict[str, Any]:
    """Return the lock as the object that `--json` prints. The field `trouble` exists only if the lock's record cannot
    be read, and says why. In `queue`, the waiter with `position` 0 is the next one to get the lock.
    """
    return {
        **({"trouble": lock.trouble} if lock.trouble else {}),
        "name": lock.name,
        "held": lock.held,
        "fence": str(lock.fence),
        "capacity": lock.capacity,
        "holders": [holder_json(h) for h in lock.holders],
        "queue": [
            {
                "lock_id": w.lock_id,
                "position": w.position,
                "waiting": round(w.waiting, 6),
                "offered": w.offered,
                "exclusive": w.exclusive,
                "execution_id": w.execution_id,
                "workflow_id": w.workflow_id,
                "workflow_name": w.workflow_name,
            }
            for w in lock.queue
        ],
    }


def holder_json(holder: HolderInfo) -> dict[str, Any]:
    return {
        "lock_id": holder.lock_id,
        "fence": str(holder.fence),
        "exclusive": holder.exclusive,
        "execution_id": holder.execution_id,
        "workflow_id": holder.workflow_id,
        "workflow_name": holder.workflow_name,
        "locked_at": holder.locked_at,
        "expires_at": holder.expires_at,
    }


def held_for(holder: HolderInfo, now: float) -> float:
    return now - datetime.fromisoformat(holder.locked_at).timestamp()


def expires_in(holder: HolderInfo, now: float) -> float:
    return datetime.fromisoformat(holder.expires_at).timestamp() - now
