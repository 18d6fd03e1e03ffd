"""Reference tables of the primitives' inputs, outputs and Redis keys, for the docs.

Names and types are read from the primitives themselves, so only the descriptions are written here.
"""

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
from backstay.n8n.json_types import as_list, as_mapping, as_text
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.primitives import Transport, primitive

#: The descriptions of the primitives' inputs: by primitive, then by input. A primitive whose inputs are not exactly
#: these makes `_table` raise ValueError.
INPUTS: dict[str, dict[str, str]] = {
    "lock_acquisition": {
        "scope": "the name of the protected resource; required",
        "ttl_seconds": f"the lock expires after this time unless it is released; default {TTL_SECONDS}",
        "execution_id": "the execution that owns the lock, for clean-up: pass `={{ $execution.id }}`;"
        " default: the primitive's own execution",
        "wait_till_lock_released": "wait while the lock is held, or fail at once; default true",
        "max_wait_seconds": f"the longest wait; default {MAX_WAIT_SECONDS}",
        "lock_id": "the ownership token that a release must present; default: a random UUID",
        "workflow_id": "the holding workflow's id, for operators; default empty",
        "workflow_name": "the holding workflow's name, for operators; default empty",
    },
    "lock_release": {
        "scope": "the `scope` that lock_acquisition returned; required",
        "lock_id": "the `lock_id` that lock_acquisition returned; required",
    },
    "error_handler_lock_cleanup": {},
    "rate_limit_check": {
        "scope": "the name of what is counted; required",
        "limit": "the number of calls that a window allows; required",
        "windowSeconds": "the length of a window; required",
    },
}
OUTPUTS: dict[str, dict[str, str]] = {
    "lock_acquisition": {
        "acquired": "always true; the call fails when the lock is not acquired",
        "count": "the counter's value: 1",
        "scope": "pass it to lock_release",
        "lock_id": "pass it to lock_release",
        "key": "the key of the counter",
        "meta_key": "the key of the holder's identity",
        "workflow_id": "as given",
        "workflow_name": "as given",
        "execution_id": "as given",
        "locked_at": "the time of the acquisition: ISO 8601, UTC",
    },
    "lock_release": {
        "released": "always true; the call fails when another holder has the lock",
        "idempotent": "true when the lock was already gone, so nothing was deleted",
        "scope": "as given",
        "lock_id": "as given",
    },
    "error_handler_lock_cleanup": {
        "cleaned": "whether any lock was released",
        "cleaned_count": "the number of released scopes",
        "scopes": "the released scopes",
        "reason": "a human-readable explanation; also names the scopes that were skipped",
    },
    "rate_limit_check": {
        "allowed": "whether this call is within the limit",
        "scope": "as given",
        "count": "the number of calls in this window, including this one",
        "limit": "as given",
    },
}
#: The node that builds each primitive's output.
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
    """Return the names and types of a primitive's inputs, in the order in which its trigger node lists them."""
    return _fields(_trigger(primitive(key, transport)), "workflowInputs", "values")


def outputs_of(key: str, transport: Transport) -> dict[str, str]:
    node = primitive(key, transport).find(_LAST[key])
    return {} if node is None else _fields(node.parameters, "assignments", "assignments")


def keys_table() -> str:
    rows = [
        (
            f"`{LOCK_PREFIX}<scope>`",
            "integer",
            "the number of INCRs since the lock was free; the execution whose INCR returned 1 holds the lock",
            "after `ttl_seconds`, on release, or on clean-up",
        ),
        (
            f"`{LOCK_PREFIX}<scope>{META_SUFFIX}`",
            "JSON",
            f"the holder's identity: {', '.join(f'`{field}`' for field in IDENTITY)}",
            "like the counter",
        ),
        (
            f"`{LIMIT_PREFIX}<scope>-<window>`",
            "integer",
            "the number of calls in this window; `<window>` is ⌊time in seconds / `windowSeconds`⌋",
            "`windowSeconds` after the last call",
        ),
    ]
    lines = ["| key | type | holds | ends |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def _trigger(workflow: N8nWorkflow) -> dict[str, Any]:
    starts = [node.parameters for node in workflow.nodes if node.kind == "executeWorkflowTrigger"]
    return starts[0] if starts else {}


def _fields(parameters: dict[str, Any], *path: str) -> dict[str, str]:
    """Return the names and types of a node's fields, in order. `path`: the nested keys of the node's parameters under
    which the list of these fields is found.
    """
    found: Any = parameters
    for step in path:
        found = as_mapping(found).get(step)
    return {as_text(as_mapping(row).get("name")): as_text(as_mapping(row).get("type")) for row in as_list(found)}


def _table(key: str, what: str, real: dict[str, str], documented: dict[str, str]) -> str:
    if real.keys() != documented.keys():
        raise ValueError(f"{key}: the primitive's {what}s are {sorted(real)}, the docs describe {sorted(documented)}")
    lines = [f"| {what} | type | |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {kind} | {documented[name]} |" for name, kind in real.items())])
