"""The primitives field by field, for the docs: names and types are read from the primitives themselves."""

from __future__ import annotations

from typing import Any

from backstay.interop.n8n_wire.keys import (
    IDENTITY,
    LIMIT_PREFIX,
    LOCK_PREFIX,
    MAX_WAIT_SECONDS,
    META_SUFFIX,
    TTL_SECONDS,
)
from backstay.n8n.json_types import items, table, text
from backstay.n8n.model import Workflow
from backstay.n8n.primitives import Transport, primitive

#: What each field means. A field that a primitive has and this has not, or the other way round, is an error.
INPUTS: dict[str, dict[str, str]] = {
    "lock_acquisition": {
        "scope": "what is protected; needed",
        "ttl_seconds": f"how long the lock lasts if nobody frees it; {TTL_SECONDS}",
        "execution_id": "whose lock it is, for clean-up: pass `={{ $execution.id }}`; this execution's own",
        "wait_till_lock_released": "wait while somebody else has it, or fail at once; true",
        "max_wait_seconds": f"how long to wait; {MAX_WAIT_SECONDS}",
        "lock_id": "what frees it; a random UUID",
        "workflow_id": "for people: which workflow has it; empty",
        "workflow_name": "the same by name; empty",
    },
    "lock_release": {
        "scope": "as lock_acquisition gave it; needed",
        "lock_id": "as lock_acquisition gave it; needed",
    },
    "error_handler_lock_cleanup": {},
    "rate_limit_check": {
        "scope": "what is counted; needed",
        "limit": "how many in a window; needed",
        "windowSeconds": "how long a window is; needed",
    },
}
OUTPUTS: dict[str, dict[str, str]] = {
    "lock_acquisition": {
        "acquired": "true; when it is not acquired, the call fails",
        "count": "what the counter said: 1",
        "scope": "pass it to lock_release",
        "lock_id": "pass it to lock_release",
        "key": "the counter's key",
        "meta_key": "the identity's key",
        "workflow_id": "as given",
        "workflow_name": "as given",
        "execution_id": "as given",
        "locked_at": "when it was acquired: ISO 8601, UTC",
    },
    "lock_release": {
        "released": "true; when somebody else has it, the call fails",
        "idempotent": "true when there was nothing to free (any more): nothing was deleted",
        "scope": "as given",
        "lock_id": "as given",
    },
    "error_handler_lock_cleanup": {
        "cleaned": "whether anything was freed",
        "cleaned_count": "how many scopes were",
        "scopes": "which",
        "reason": "why, in words; also what was left alone",
    },
    "rate_limit_check": {
        "allowed": "whether this one is within the limit",
        "scope": "as given",
        "count": "how many there were in this window, with this one",
        "limit": "as given",
    },
}
#: The node that makes what a primitive gives.
_LAST = {
    "lock_acquisition": "Build Acquire Output",
    "lock_release": "Build Result",
    "error_handler_lock_cleanup": "Log Cleanup",
    "rate_limit_check": "Build Result",
}


def inputs_table(key: str) -> str:
    return _table(key, "input", inputs_of(key, "redis"), INPUTS[key])


def outputs_table(key: str) -> str:
    return _table(key, "output", outputs_of(key, "redis"), OUTPUTS[key])


def inputs_of(key: str, transport: Transport) -> dict[str, str]:
    """Names and types, in their order."""
    return _fields(_trigger(primitive(key, transport)), "workflowInputs", "values")


def outputs_of(key: str, transport: Transport) -> dict[str, str]:
    node = primitive(key, transport).find(_LAST[key])
    return {} if node is None else _fields(node.parameters, "assignments", "assignments")


def keys_table() -> str:
    rows = [
        (
            f"`{LOCK_PREFIX}<scope>`",
            "integer",
            "how many have counted since it was free; who made it 1 holds the lock",
            "with `ttl_seconds`, by release, by clean-up",
        ),
        (
            f"`{LOCK_PREFIX}<scope>{META_SUFFIX}`",
            "JSON",
            f"the holder: {', '.join(f'`{field}`' for field in IDENTITY)}",
            "the same",
        ),
        (
            f"`{LIMIT_PREFIX}<scope>-<window>`",
            "integer",
            "how many in this window; `<window>` is the time in seconds divided by `windowSeconds`, without the rest",
            "`windowSeconds` after the last one",
        ),
    ]
    lines = ["| key | type | holds | ends |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def _trigger(workflow: Workflow) -> dict[str, Any]:
    starts = [node.parameters for node in workflow.nodes if node.kind == "executeWorkflowTrigger"]
    return starts[0] if starts else {}


def _fields(parameters: dict[str, Any], *path: str) -> dict[str, str]:
    """Names and types, in the order of the node."""
    found: Any = parameters
    for step in path:
        found = table(found).get(step)
    return {text(table(row).get("name")): text(table(row).get("type")) for row in items(found)}


def _table(key: str, what: str, real: dict[str, str], told: dict[str, str]) -> str:
    if real.keys() != told.keys():
        raise ValueError(f"{key}: its {what}s are {sorted(real)}, and the docs tell of {sorted(told)}")
    lines = [f"| {what} | type | |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {kind} | {told[name]} |" for name, kind in real.items())])
