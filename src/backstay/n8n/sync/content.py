"""What of a workflow travels to n8n and back: its name, nodes, connections and settings; and how two compare."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from backstay.n8n.model import Workflow
from backstay.n8n.sync.client import FIELDS

#: What n8n adds to settings that do not say otherwise.
SETTINGS_BY_DEFAULT: Mapping[str, Any] = {"callerPolicy": "workflowsFromSameOwner", "availableInMCP": False}
#: What n8n gives to nodes that have none.
_GIVEN = ("id", "webhookId")
EMPTY: Mapping[str, Any] = {"name": "", "nodes": [], "connections": {}, "settings": {}}


def content(data: Mapping[str, Any]) -> dict[str, Any]:
    """The four fields; where one is missing, as n8n would have it."""
    return {field: data.get(field) or EMPTY[field] for field in FIELDS}


def fingerprint(data: Mapping[str, Any]) -> str:
    """The same for the same content, whatever the order of its fields and what n8n adds by itself."""
    text = json.dumps(plain(data), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()  # half a character has one, too


def plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """The content without n8n's own defaults."""
    found = content(data)
    settings = {k: v for k, v in found["settings"].items() if (k, v) not in SETTINGS_BY_DEFAULT.items()}
    return {**found, "settings": settings}


def echoed(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Theirs without the ids that n8n has given to nodes of ours that had none."""
    named = {node.get("name"): node for node in ours.get("nodes") or ()}
    nodes = [
        {k: v for k, v in node.items() if k not in _GIVEN or k in named.get(node.get("name"), {})}
        for node in theirs.get("nodes") or ()
    ]
    return {**theirs, "nodes": nodes}


def difference(before: Mapping[str, Any], after: Mapping[str, Any], *, old: str, new: str) -> str:
    """A unified diff of two contents; empty where they are the same."""
    if fingerprint(before) == fingerprint(after):
        return ""
    was, becomes = (json.dumps(plain(side), ensure_ascii=False, indent=2).splitlines() for side in (before, after))
    return "\n".join(difflib.unified_diff(was, becomes, fromfile=old, tofile=new, lineterm=""))


def taking(local: Workflow | None, remote: Mapping[str, Any]) -> Workflow:
    """The local file with n8n's content: what only the file knows stays, and so does the way it is written."""
    if local is None:
        return Workflow({"id": str(remote.get("id", "")), **content(remote)})
    changed = local.copy()
    theirs = content(remote)
    ours = local.settings
    # What n8n adds by itself is nobody's edit.
    settings = {k: v for k, v in theirs["settings"].items() if k in ours or (k, v) not in SETTINGS_BY_DEFAULT.items()}
    changed.data.update({**theirs, "settings": settings})
    return changed
