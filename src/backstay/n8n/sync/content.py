"""Compare and update a workflow's content: the fields that n8n's API carries (name, nodes, connections, settings)."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.sync.client import FIELDS

#: Settings that n8n adds with these values when they are missing.
SETTINGS_BY_DEFAULT: Mapping[str, Any] = {"callerPolicy": "workflowsFromSameOwner", "availableInMCP": False}
#: Fields that n8n adds to a node that lacks them.
_ASSIGNED = ("id", "webhookId")
EMPTY: Mapping[str, Any] = {"name": "", "nodes": [], "connections": {}, "settings": {}}


def content(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workflow's name, nodes, connections and settings, with n8n's default for a missing field."""
    return {field: data.get(field) or EMPTY[field] for field in FIELDS}


def fingerprint(data: Mapping[str, Any]) -> str:
    """Return a hash that ignores the order of fields and n8n's own defaults."""
    text = json.dumps(strip_defaults(data), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()  # a name may contain a lone surrogate


def strip_defaults(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content without the settings that n8n adds by default."""
    found = content(data)
    settings = {k: v for k, v in found["settings"].items() if (k, v) not in SETTINGS_BY_DEFAULT.items()}
    return {**found, "settings": settings}


def without_assigned_ids(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return n8n's content (`theirs`) without the ids that n8n added to nodes. An id that the node of the same name in
    our content (`ours`) also has is kept.
    """
    named = {node.get("name"): node for node in ours.get("nodes") or ()}
    nodes = [
        {k: v for k, v in node.items() if k not in _ASSIGNED or k in named.get(node.get("name"), {})}
        for node in theirs.get("nodes") or ()
    ]
    return {**theirs, "nodes": nodes}


def difference(before: Mapping[str, Any], after: Mapping[str, Any], *, old: str, new: str) -> str:
    """Return a unified diff of two contents; empty when they are equal."""
    if fingerprint(before) == fingerprint(after):
        return ""
    was, becomes = (
        json.dumps(strip_defaults(side), ensure_ascii=False, indent=2).splitlines() for side in (before, after)
    )
    return "\n".join(difflib.unified_diff(was, becomes, fromfile=old, tofile=new, lineterm=""))


def apply_remote(local: N8nWorkflow | None, remote: Mapping[str, Any]) -> N8nWorkflow:
    """Return the local workflow with n8n's content. Its layout, and the fields that n8n does not have, are kept."""
    if local is None:
        return N8nWorkflow({"id": str(remote.get("id", "")), **content(remote)})
    changed = local.copy()
    theirs = content(remote)
    ours = local.settings
    # Leave out settings that n8n has added by default: they are no edit of the user.
    settings = {k: v for k, v in theirs["settings"].items() if k in ours or (k, v) not in SETTINGS_BY_DEFAULT.items()}
    changed.data.update({**theirs, "settings": settings})
    return changed
