"""Workflows that are made in n8n before they have a content, so that others can be hydrated with their ids. Each once.

n8n chooses the id, and a create may have happened although nobody has heard of it: the answer was lost, or we were
killed. So the intent is kept first, with a mark, and what is made carries the mark: whoever finds an intent looks for
what came of it before anything is made again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from backstay.n8n.model import BASE, Workflow
from backstay.n8n.sync.client import Client, Remote
from backstay.n8n.sync.state import State
from backstay.n8n.sync.sync import Change, remember


def mint(
    client: Client, templates: Mapping[str, Workflow], state: State, *, keep: Callable[[], None] = lambda: None
) -> list[Change]:
    """One that is known and still there is left alone. `keep`: writes the state down, for good."""
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
        remember(state, client, key, Workflow(dict(made.data)), made)
        done.append(Change(key, "create", made.id, made.name))
    return done


def _interrupted(client: Client, mark: str) -> Remote | None:
    """What an earlier call has made and never heard of."""
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
