"""n8n's execution-saving settings, which decide what n8n can retry.

n8n retries saved executions from the failed node, or from the last saved progress: in the middle of a body, where no
lock is taken. An execution that is not saved cannot be retried, but it cannot be inspected either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backstay.n8n.json_types import as_mapping
from backstay.n8n.model import Workflow
from backstay.n8n.patch.record import read_record, restore_key

#: Without saved progress, n8n retries a crashed execution from its trigger, and so through the lock.
RETRY_FROM_TRIGGER: Mapping[str, Any] = {"saveExecutionProgress": False}
#: For workflows that other workflows call: n8n saves no failed execution.
UNSAVED: Mapping[str, Any] = {"saveDataErrorExecution": "none", **RETRY_FROM_TRIGGER}
#: For workflows that start by themselves: for executions started in the editor, n8n checks only `saveManualExecutions`.
ALL_UNSAVED: Mapping[str, Any] = {**UNSAVED, "saveManualExecutions": False}


def disable_saving(workflow: Workflow, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the settings in place. Return the previous values of those that changed."""
    settings = workflow.data["settings"]
    changed = {name: value for name, value in wanted.items() if settings.get(name) != value}
    before = {name: [settings[name]] if name in settings else [] for name in changed}
    settings.update(changed)
    return before


def restore_saving(workflow: Workflow, undo: Mapping[str, Any]) -> None:
    """Restore the previous settings, except those that were changed since."""
    for name, ours in ALL_UNSAVED.items():
        if name in undo and workflow.settings.get(name) == ours:
            restore_key(workflow.data["settings"], name, undo[name])


def required_settings(workflow: Workflow) -> Mapping[str, Any]:
    """Return the settings that a body under a lock over http needs: in a sub-workflow, or inline with its triggers."""
    known = read_record(workflow)
    lock = as_mapping(known.get("lock"))
    if as_mapping(lock.get("options")).get("transport") == "http" and lock.get("wiring") == "inline":
        return ALL_UNSAVED
    return UNSAVED if "body_of" in known and known.get("transport") == "http" else {}
