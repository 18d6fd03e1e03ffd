"""The retry workflow of a lock with the http transport (the lock is acquired through Backstay's HTTP API). It makes
n8n's retry of a failed execution acquire the lock again.

n8n retries an execution at the failed node, with that node's input. The nodes before it, such as the one that acquires
the lock, do not run again. Therefore a locked workflow always fails at a node that calls the retry workflow. When the
body (the nodes under the lock) has failed, the retry workflow raises the body's error. When n8n retries that execution,
the retry workflow acquires the lock, calls the body with the same items, and releases the lock.
"""

from __future__ import annotations

from typing import Any

from backstay.n8n.analysis.body import BodyEntry
from backstay.n8n.model import MAIN, N8nWorkflow
from backstay.n8n.patch import nodes as make
from backstay.n8n.patch.inline import CALLER, add_nodes
from backstay.n8n.patch.nodes import (
    FAILED_JUST_NOW,
    FAILED_OR_RETRIED,
    RAISE_FIRST_ERROR,
    RETRY_ENDED,
    WHAT_WAS_SENT,
    link_to,
)
from backstay.n8n.patch.placement import COLUMN, ROW
from backstay.n8n.patch.retention import UNSAVED
from backstay.n8n.patch.subworkflow_nodes import LockedBodySpec, build_locked_body

_LOCK_INPUT = f"$({make.js_string(FAILED_OR_RETRIED)}).first().json.lock"
#: The number of canvas columns that the retry workflow's own first nodes take. The nodes of the lock are placed to the
#: right of them.
_BEFORE = 2


def retry_key(key: str) -> str:
    return f"{key}_retry"


def build_retry_workflow(workflow: N8nWorkflow, key: str, body: str, options: dict[str, Any]) -> N8nWorkflow:
    """Build the retry workflow of the locked workflow with the key `key`. `body` is the key of the sub-workflow with
    its body.
    """
    own = retry_key(key)
    nodes = [
        make.called_trigger(own, FAILED_OR_RETRIED, [0, 0]),
        make.condition(own, FAILED_JUST_NOW, "$json.lock.retried !== true", [COLUMN, 0]),
        make.stop_and_error(own, RAISE_FIRST_ERROR, f"{_LOCK_INPUT}.error", [2 * COLUMN, -ROW]),
        make.set_json(own, WHAT_WAS_SENT, "$json.sent", [2 * COLUMN, 0]),
        # The last node must emit an item, because the caller continues with its first output. If nodes may emit none.
        make.set_json(own, RETRY_ENDED, "{ ended: true }", [9 * COLUMN, 0]),
    ]
    links: dict[str, Any] = {
        FAILED_OR_RETRIED: [[link_to(FAILED_JUST_NOW)]],
        FAILED_JUST_NOW: [[link_to(RAISE_FIRST_ERROR)], [link_to(WHAT_WAS_SENT)]],
        WHAT_WAS_SENT: [[]],
    }
    made = N8nWorkflow(
        {
            "name": make.derived_name(workflow.name, "locked retry"),
            "nodes": nodes,
            "connections": {name: {MAIN: outputs} for name, outputs in links.items()},
            "settings": {"executionOrder": "v1", **UNSAVED},
            "meta": {"backstay": {"version": 1, "retry_of": key}},
        },
        workflow.layout,
    )
    spec = LockedBodySpec(
        own,
        body,
        {**options, "per_item": False},
        f"={{{{ {_LOCK_INPUT}.scope }}}}",
        shift=_BEFORE,
        then=RETRY_ENDED,
        holder={name: f"={{{{ {_LOCK_INPUT}.{name} }}}}" for name in CALLER},
    )
    add_nodes(made, *build_locked_body(made, spec, [BodyEntry(((WHAT_WAS_SENT, 0),), [], FAILED_OR_RETRIED)]))
    return made
