"""What fails in place of a body over http, and runs it again under a lock when n8n retries that failure.

n8n retries an execution at the node that failed, with what came in there; what stands before it, a lock, is not taken
again. So the node that fails is a call of this workflow. Called by the execution whose body failed, it raises the
error; called by a retry of that one, it takes the lock anew, calls the body with the same items, and releases.
"""

from __future__ import annotations

from typing import Any

from backstay.n8n.analysis.body import Entry
from backstay.n8n.model import MAIN, Workflow
from backstay.n8n.patch import nodes as stitches
from backstay.n8n.patch.inline import CALLER, add
from backstay.n8n.patch.nodes import ENDED, FIRST_ERROR, NOT_YET, RETRIED, SENT, to
from backstay.n8n.patch.placement import COLUMN, ROW
from backstay.n8n.patch.retention import UNSAVED
from backstay.n8n.patch.subworkflow_nodes import Around, around

_TOLD = f"$({stitches.quoted(RETRIED)}).first().json.lock"
#: Columns that stand before the lock's own.
_BEFORE = 2


def retry_key(key: str) -> str:
    return f"{key}_retry"


def retried(workflow: Workflow, key: str, body: str, options: dict[str, Any]) -> Workflow:
    own = retry_key(key)
    nodes = [
        stitches.called_trigger(own, RETRIED, [0, 0]),
        stitches.choice(own, NOT_YET, "$json.lock.retried !== true", [COLUMN, 0]),
        stitches.stop(own, FIRST_ERROR, f"{_TOLD}.error", [2 * COLUMN, -ROW]),
        stitches.rewrite(own, SENT, "$json.sent", [2 * COLUMN, 0]),
        # The caller goes on behind what the last node gives at its first output; an If may give nothing there.
        stitches.rewrite(own, ENDED, "{ ended: true }", [9 * COLUMN, 0]),
    ]
    links: dict[str, Any] = {RETRIED: [[to(NOT_YET)]], NOT_YET: [[to(FIRST_ERROR)], [to(SENT)]], SENT: [[]]}
    made = Workflow(
        {
            "name": stitches.beside(workflow.name, "locked retry"),
            "nodes": nodes,
            "connections": {name: {MAIN: outputs} for name, outputs in links.items()},
            "settings": {"executionOrder": "v1", **UNSAVED},
            "meta": {"backstay": {"version": 1, "retry_of": key}},
        },
        workflow.layout,
    )
    asked = Around(
        own,
        body,
        {**options, "per_item": False},
        f"={{{{ {_TOLD}.scope }}}}",
        shift=_BEFORE,
        then=ENDED,
        holder={name: f"={{{{ {_TOLD}.{name} }}}}" for name in CALLER},
    )
    add(made, *around(made, asked, [Entry(((SENT, 0),), [], RETRIED)]))
    return made
