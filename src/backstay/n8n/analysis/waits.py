"""Wait durations, and whether n8n suspends the execution for them.

n8n keeps a short wait in memory. A longer wait, or a wait for an external answer, is persisted, and n8n resumes the
execution later. When a suspended sub-workflow ends, n8n wakes the caller without the outcome: n8n 1.x passes the
caller's own items in place of the result, and no version reports a failure.
"""

from __future__ import annotations

from typing import Any, Literal

from backstay.n8n.model import N8nNode

#: n8n persists a waiting execution from this duration on.
SUSPENDS_SECONDS = 65
#: The first Wait node version whose default unit is seconds; earlier versions default to hours.
_SECONDS_SINCE = 1.1
_UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400}
#: The operation of messenger and mail nodes that waits for a person's reply.
_ASKS = "sendAndWait"

Suspension = Literal["never", "perhaps", "always"]


def wait_seconds(node: N8nNode) -> float | None:
    """Return how many seconds a Wait node waits; None when the duration is not a constant."""
    if node.parameters.get("resume", "timeInterval") != "timeInterval":
        return None
    old = node.version < _SECONDS_SINCE
    amount: Any = node.parameters.get("amount", 1 if old else 5)
    unit = node.parameters.get("unit", "hours" if old else "seconds")
    if isinstance(amount, bool) or not isinstance(amount, (int, float)):
        return None
    return amount * _UNITS.get(str(unit), 1)


def classify_suspension(node: N8nNode) -> Suspension:
    """Classify whether a node suspends its execution: "always", "never", or "perhaps" when the duration of the wait is
    known only at run time, because it is an expression or a date.
    """
    if node.kind != "wait":
        return "always" if node.parameters.get("operation") == _ASKS else "never"
    if node.parameters.get("resume") in ("webhook", "form"):
        return "always"
    seconds = wait_seconds(node)
    if seconds is None:
        return "perhaps"
    return "always" if seconds >= SUSPENDS_SECONDS else "never"


def describe_wait(node: N8nNode) -> str:
    """Describe what the node waits for."""
    seconds = wait_seconds(node) if node.kind == "wait" else None
    return f"waits for {seconds:g} s" if seconds is not None else "waits for an external answer"
