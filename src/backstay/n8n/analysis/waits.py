"""How long a node holds an execution up, and whether n8n suspends it meanwhile.

A short wait stays in memory. A longer one, and one for an answer from outside, is written down, and the execution goes
on later. A sub-workflow's caller is then told when it has ended, but not how: n8n 1.x hands the caller's own items back
in place of the result, and no n8n tells it of a failure.
"""

from __future__ import annotations

from typing import Any, Literal

from backstay.n8n.model import Node

#: From here on n8n writes a waiting execution down.
SUSPENDS_SECONDS = 65
#: The version of the Wait node that counts in seconds where nothing is said; hours before.
_SECONDS_SINCE = 1.1
_UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400}
#: Of messengers and mail: a question to people.
_ASKS = "sendAndWait"

Suspends = Literal["never", "perhaps", "always"]


def waited(node: Node) -> float | None:
    """How many seconds a Wait node waits; None where that is not fixed."""
    if node.parameters.get("resume", "timeInterval") != "timeInterval":
        return None
    old = node.version < _SECONDS_SINCE
    amount: Any = node.parameters.get("amount", 1 if old else 5)
    unit = node.parameters.get("unit", "hours" if old else "seconds")
    if isinstance(amount, bool) or not isinstance(amount, (int, float)):
        return None
    return amount * _UNITS.get(str(unit), 1)


def suspends(node: Node) -> Suspends:
    """Whether a node suspends its execution. `perhaps`: an expression, or a date, decides."""
    if node.kind != "wait":
        return "always" if node.parameters.get("operation") == _ASKS else "never"
    if node.parameters.get("resume") in ("webhook", "form"):
        return "always"
    seconds = waited(node)
    if seconds is None:
        return "perhaps"
    return "always" if seconds >= SUSPENDS_SECONDS else "never"


def shown(node: Node) -> str:
    """What it waits for, in words."""
    seconds = waited(node) if node.kind == "wait" else None
    return f"waits for {seconds:g} s" if seconds is not None else "waits for an answer from outside"
