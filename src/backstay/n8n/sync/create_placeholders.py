"""Create empty workflows in n8n, so that the workflows that call them can contain their ids. Each is created only once.

n8n chooses the id, and a request may create a workflow although its response is lost or this process is killed. To
prevent a duplicate, a unique mark is stored in the sync state first, and the new workflow contains it. A later run that
finds a mark in the state searches n8n for the marked workflow before it creates another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from backstay.n8n.model import BASE, N8nWorkflow
from backstay.n8n.sync.client import N8nClient, RemoteWorkflow
from backstay.n8n.sync.state import SyncState
from backstay.n8n.sync.sync import SyncChange, record_sync


def create_placeholders(
    client: N8nClient,
    templates: Mapping[str, N8nWorkflow],
    state: SyncState,
    *,
    keep: Callable[[], None] = lambda: None,
) -> list[SyncChange]:
    """Create an empty workflow in n8n for each template that n8n has no workflow for. Return a SyncChange per template,
    with the workflow's id. `keep` is called to persist `state` before each create request.
    """
    done: list[SyncChange] = []
    for key, template in templates.items():
        known = state.workflows.get(key) if state.url in ("", client.url) else None
        found = client.workflow(known.id) if known is not None else None
        if found is not None:
            done.append(SyncChange(key, "same", found.id, found.name))
            continue
        made = _find_interrupted(client, state.begun.get(key, ""))
        if made is None:
            mark = str(uuid.uuid4())
            state.url, state.begun[key] = client.url, mark
            keep()
            made = client.create(_build_placeholder(template.name or key, mark))
        record_sync(state, client, key, N8nWorkflow(dict(made.data)), made)
        done.append(SyncChange(key, "create", made.id, made.name))
    return done


def _find_interrupted(client: N8nClient, mark: str) -> RemoteWorkflow | None:
    """Return the workflow with this mark, which an earlier, interrupted run created; None when there is none."""
    for remote in client.workflows() if mark else ():
        if not remote.is_archived and any(node.get("id") == mark for node in remote.data.get("nodes") or ()):
            return remote
    return None


def _build_placeholder(name: str, mark: str) -> dict[str, Any]:
    note = {
        "id": mark,
        "name": "Being Pushed",
        "type": f"{BASE}stickyNote",
        "typeVersion": 1,
        "position": [0, 0],
        "parameters": {"content": "backstay n8n push is about to put a workflow here."},
    }
    return {"name": name, "nodes": [note], "connections": {}, "settings": {"executionOrder": "v1"}}
