"""The record of a patch in the workflow file (`meta.backstay`): the options, the added nodes, and the state needed
to undo it.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any, Literal

import msgspec

from backstay.errors import BadWorkflow, PatchRefused
from backstay.n8n.json_types import as_mapping, is_mapping
from backstay.n8n.model import Workflow
from backstay.n8n.workspace.json_layout import Verbatim

Part = Literal["limit", "lock"]
PARTS: tuple[Part, ...] = ("limit", "lock")
_VERSION = 1


class _PartRecord(msgspec.Struct):
    """The fields that both parts share: the requested options and the names of the added nodes."""

    options: dict[str, Any]
    nodes: list[str]


class _InlineUndo(msgspec.Struct):
    ends: dict[str, Any]


class _InlineRecord(_PartRecord, tag_field="wiring", tag="inline"):
    undo: _InlineUndo


class _SubworkflowUndo(msgspec.Struct):
    order: list[str]
    sources: list[str]
    begins: list[str]


class _SubworkflowRecord(_PartRecord, tag_field="wiring", tag="sub-workflow"):
    undo: _SubworkflowUndo


def read_record(workflow: Workflow) -> dict[str, Any]:
    """Return the record; a detached empty dict when there is none."""
    return as_mapping(as_mapping(workflow.data.get("meta")).get("backstay"))


def read_part(workflow: Workflow, name: Part) -> dict[str, Any] | None:
    """Return one part of the record; None when it is absent. Raise PatchRefused when it cannot be read."""
    found = read_record(workflow).get(name)
    if found is None:
        return None
    if read_record(workflow).get("version") != _VERSION:
        raise unreadable_record(name)
    try:
        msgspec.convert(found, _PartRecord if name == "limit" else _InlineRecord | _SubworkflowRecord)
    except msgspec.ValidationError as error:
        raise unreadable_record(name) from error
    return as_mapping(found)


def unreadable_record(name: Part) -> PatchRefused:
    return PatchRefused(
        f"another version added the {name}, or its record (meta.backstay) is damaged: remove it with that version, or"
        " restore the file from before"
    )


def added_nodes(workflow: Workflow) -> list[str]:
    """Return the names of all nodes that patches added."""
    return [name for each in PARTS if (recorded := read_part(workflow, each)) is not None for name in recorded["nodes"]]


def begin_record(workflow: Workflow) -> None:
    """Create the record before the first change. Idempotent. Raise PatchRefused when a foreign record exists."""
    if "backstay" not in as_mapping(workflow.data.get("meta")):
        before = _prepare(workflow.data)
        workflow.data["meta"]["backstay"] = {"version": _VERSION, "before": before}
    elif not is_mapping(read_record(workflow).get("before")):
        raise PatchRefused("meta.backstay has an unknown format: remove it from the file first")


def save_part(workflow: Workflow, name: Part, recorded: dict[str, Any]) -> None:
    """Store a part, and move the added nodes to the end of the file in a fixed order, so the order of patches does
    not matter.
    """
    data = workflow.data
    known: dict[str, Any] = {**read_record(workflow), name: recorded}
    parts: dict[str, Any] = {each: known[each] for each in PARTS if each in known}
    data["meta"]["backstay"] = {"version": _VERSION, "before": known["before"], **parts}
    ours = [node for each in parts.values() for node in each["nodes"]]
    nodes = {node["name"]: node for node in data["nodes"]}
    data["nodes"] = [node for node in data["nodes"] if node["name"] not in ours] + [nodes[each] for each in ours]
    for each in ours:
        if each in data["connections"]:
            data["connections"][each] = data["connections"].pop(each)


def _prepare(data: dict[str, Any]) -> dict[str, Any]:
    """Create room for the record and set the execution order that the added nodes rely on. Return the previous
    values, each as a list with the value or empty.
    """
    before: dict[str, Any] = {}
    for key in ("settings", "meta"):
        if not isinstance(data.get(key), dict):
            before[key] = [data[key]] if key in data else []
            data[key] = {}
    settings = data["settings"]
    if settings.get("executionOrder") != "v1":
        before["executionOrder"] = [settings["executionOrder"]] if "executionOrder" in settings else []
        settings["executionOrder"] = "v1"
    return before


def remove_part(workflow: Workflow, name: Part) -> None:
    """Remove a part; with the last part, restore everything that `begin_record` changed."""
    data = workflow.data
    known = read_record(workflow)
    del known[name]
    if any(each in known for each in PARTS):
        return
    before = known["before"]
    del data["meta"]["backstay"]
    if "executionOrder" in before:
        restore_key(data["settings"], "executionOrder", before["executionOrder"])
    for key in ("meta", "settings"):
        if key in before and not data[key]:
            restore_key(data, key, before[key])
    if "text" in before:
        _restore_original_text(workflow, before["text"])


def restore_key(table: dict[str, Any], key: str, was: list[Any]) -> None:
    """Restore a previous value: `was` is a list with the value, or empty when the key was absent."""
    if was:
        table[key] = was[0]
    else:
        table.pop(key, None)


def store_original_text(workflow: Workflow, text: str) -> None:
    """Store the compressed original text, for a file whose layout cannot be reproduced."""
    packed = base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 9))
    read_record(workflow)["before"]["text"] = packed.decode()


def _restore_original_text(workflow: Workflow, packed: str) -> None:
    try:
        text = zlib.decompress(base64.b64decode(packed, validate=True)).decode("utf-8", "surrogatepass")
        original = Workflow.parse(text)
    except (ValueError, zlib.error, BadWorkflow) as error:
        raise PatchRefused("the stored original text (meta.backstay.before.text) is damaged") from error
    # When the file was edited since, the layout writes the edited data plainly instead of the original text.
    workflow.layout = Verbatim.of(original.layout, text, original.data)
    workflow.exact = original.exact
