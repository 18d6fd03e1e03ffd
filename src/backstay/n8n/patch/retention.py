"""What n8n keeps of executions, and with it what can be retried.

n8n retries what it has kept, from the node that failed or from where it was last written down: in the midst of a body,
where no lock is taken. What is not kept cannot be retried; nor can it be looked at, and that is the price.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backstay.n8n.json_types import table
from backstay.n8n.model import Workflow
from backstay.n8n.patch.record import put_back, record

#: A crashed execution is retried from its trigger, and so through the lock: nothing was written down in between.
FROM_THE_START: Mapping[str, Any] = {"saveExecutionProgress": False}
#: For what others call: nothing of a failed execution is kept.
UNSAVED: Mapping[str, Any] = {"saveDataErrorExecution": "none", **FROM_THE_START}
#: For what starts by itself: n8n asks only this setting about executions that were started by hand in the editor.
ALL_UNSAVED: Mapping[str, Any] = {**UNSAVED, "saveManualExecutions": False}


def keep_less(workflow: Workflow, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """In place; answers what stood there before, for those that changed."""
    settings = workflow.data["settings"]
    changed = {name: value for name, value in wanted.items() if settings.get(name) != value}
    before = {name: [settings[name]] if name in settings else [] for name in changed}
    settings.update(changed)
    return before


def keep_as_before(workflow: Workflow, undo: Mapping[str, Any]) -> None:
    """What somebody has set otherwise since then stays."""
    for name, ours in ALL_UNSAVED.items():
        if name in undo and workflow.settings.get(name) == ours:
            put_back(workflow.data["settings"], name, undo[name])


def wanted_of(workflow: Workflow) -> Mapping[str, Any]:
    """What should be set in a body under a lock over http: one that became a sub-workflow, or one that had to stay."""
    known = record(workflow)
    lock = table(known.get("lock"))
    if table(lock.get("options")).get("transport") == "http" and lock.get("wiring") == "inline":
        return ALL_UNSAVED
    return UNSAVED if "body_of" in known and known.get("transport") == "http" else {}
