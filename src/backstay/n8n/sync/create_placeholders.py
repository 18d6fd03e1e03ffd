"""Create empty workflows in n8n, so that other workflows can be hydrated with their ids. Each is created once.

n8n chooses the id, and a create may take effect although its response is lost or the process is killed. So the intent
is stored first with a unique mark, and the created workflow carries the mark. A later run that finds an intent searches
for the marked workflow before it creates another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from backstay.n8n.model import BASE, Workflow
from backstay.n8n.sync.client import Client, RemoteWorkflow
from backstay.n8n.sync.state import State
from backstay.n8n.sync.sync import Change, record_sync


def create_placeholders(
    client: Client, templates: Mapping[str, Workflow], state: State, *, keep: Callable[[], None] = lambda: None
) -> list[Change]:
    """Create the missing workflows. Known ones that still exist are left alone. `keep` persists the state."""
    done: list[Change] = []
    for key, template in templates.items():
        known = state.workflows.get(key) if state.url in ("", client.url) else None
        found = client.workflow(known.id) if known is not None else None
        if found is not None:
            done.append(Change(key, "same", found.id, found.name))
            continue
        made = _interrupted(client, state.begun.get(key, ""))
        if made is None:
            mark = str(uuid.uuid4())
            state.url, state.begun[key] = client.url, mark
            keep()
            made = client.create(_empty(template.name or key, mark))
        record_sync(state, client, key, Workflow(dict(made.data)), made)
        done.append(Change(key, "create", made.id, made.name))
    return done


def _interrupted(client: Client, mark: str) -> RemoteWorkflow | None:
    """Return the workflow that an earlier, interrupted run created."""
    for remote in client.workflows() if mark else ():
        if not remote.is_archived and any(node.get("id") == mark for node in remote.data.get("nodes") or ()):
            return remote
    return None


def _empty(name: str, mark: str) -> dict[str, Any]:
    note = {
        "id": mark,
        "name": "Being Pushed",
        "type": f"{BASE}stickyNote",
        "typeVersion": 1,
        "position": [0, 0],
        "parameters": {"content": "backstay n8n push is about to put a workflow here."},
    }
    return {"name": name, "nodes": [note], "connections": {}, "settings": {"executionOrder": "v1"}}
