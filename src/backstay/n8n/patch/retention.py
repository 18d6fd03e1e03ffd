"""n8n's execution-saving settings, which decide what n8n can retry.

n8n retries a saved execution from its failed node or its last saved progress. In a workflow with a lock, that point is
after the node that acquires the lock, so the retry would run without the lock. One remedy is that n8n does not save
such an execution: it can then be neither retried nor inspected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backstay.n8n.json_types import as_mapping
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.record import read_record, restore_key

#: Without saved progress, n8n retries a crashed execution from its trigger, so the retry acquires the lock first.
RETRY_FROM_TRIGGER: Mapping[str, Any] = {"saveExecutionProgress": False}
#: Settings for a workflow that other workflows call. With them, n8n saves no failed execution of it, so none can be
#: retried.
UNSAVED: Mapping[str, Any] = {"saveDataErrorExecution": "none", **RETRY_FROM_TRIGGER}
#: For workflows that triggers start. It also covers executions that a user starts in the editor: for these, n8n checks
#: only `saveManualExecutions`.
ALL_UNSAVED: Mapping[str, Any] = {**UNSAVED, "saveManualExecutions": False}


def disable_saving(workflow: N8nWorkflow, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Set the settings `wanted` in the workflow, in place. Return the previous value of each setting that changed:
    `[value]`, or `[]` if it was not set.
    """
    settings = workflow.data["settings"]
    changed = {name: value for name, value in wanted.items() if settings.get(name) != value}
    before = {name: [settings[name]] if name in settings else [] for name in changed}
    settings.update(changed)
    return before


def restore_saving(workflow: N8nWorkflow, undo: Mapping[str, Any]) -> None:
    """Restore the previous settings, except those that the user has changed after `disable_saving`."""
    for name, ours in ALL_UNSAVED.items():
        if name in undo and workflow.settings.get(name) == ours:
            restore_key(workflow.data["settings"], name, undo[name])


def required_settings(workflow: N8nWorkflow) -> Mapping[str, Any]:
    """Return the settings that keep n8n from retrying this workflow's nodes without their lock. Only two kinds of
    workflows need any: one with an inline lock over http, and a sub-workflow that is the body of a lock over http. For
    other workflows, return an empty dict.
    """
    known = read_record(workflow)
    lock = as_mapping(known.get("lock"))
    if as_mapping(lock.get("options")).get("transport") == "http" and lock.get("wiring") == "inline":
        return ALL_UNSAVED
    return UNSAVED if "body_of" in known and known.get("transport") == "http" else {}
