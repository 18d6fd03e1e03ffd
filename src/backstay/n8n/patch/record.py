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
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.workspace.json_layout import Verbatim

Part = Literal["limit", "lock"]
PARTS: tuple[Part, ...] = ("limit", "lock")
_VERSION = 1


class _PartRecord(msgspec.Struct):
    """The common fields of a record's two parts (`lock` and `limit`): the options that the user chose, and the names of
    the added nodes.
    """

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


def read_record(workflow: N8nWorkflow) -> dict[str, Any]:
    """Return the workflow's record of patches (`meta.backstay`); a new empty dict when there is none."""
    return as_mapping(as_mapping(workflow.data.get("meta")).get("backstay"))


def read_part(workflow: N8nWorkflow, name: Part) -> dict[str, Any] | None:
    """Return the part `lock` or `limit` of the workflow's record; None when the record has no such part. Raise
    PatchRefused when it cannot be read.
    """
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


def added_nodes(workflow: N8nWorkflow) -> list[str]:
    """Return the names of all nodes that patches added."""
    return [name for each in PARTS if (recorded := read_part(workflow, each)) is not None for name in recorded["nodes"]]


def begin_record(workflow: N8nWorkflow) -> None:
    """Begin the record of patches (`meta.backstay`) of a workflow that has none. Call it before the first change of
    the workflow. Raises PatchRefused if `meta.backstay` exists but is no such record.
    """
    if "backstay" not in as_mapping(workflow.data.get("meta")):
        before = _prepare(workflow.data)
        workflow.data["meta"]["backstay"] = {"version": _VERSION, "before": before}
    elif not is_mapping(read_record(workflow).get("before")):
        raise PatchRefused("meta.backstay has an unknown format: remove it from the file first")


def save_part(workflow: N8nWorkflow, name: Part, recorded: dict[str, Any]) -> None:
    """Store one part of the record, and move the nodes of all patches to the end of the file: first the limit's, then
    the lock's. So the file does not depend on which patch came first.
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
    """Create `settings` and `meta` in the workflow's data if they are missing, and set n8n's `executionOrder` to v1,
    which the added nodes rely on. Return the previous value of each changed key: `[value]`, or `[]` if the key was
    missing.
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


def remove_part(workflow: N8nWorkflow, name: Part) -> None:
    """Remove one part of the record. When no other part is left, also restore what `begin_record` changed."""
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
    """Restore the previous value of `table[key]`. `was` is `[value]`, or `[]` when the key was missing."""
    if was:
        table[key] = was[0]
    else:
        table.pop(key, None)


def store_original_text(workflow: N8nWorkflow, text: str) -> None:
    """Store the file's text from before the patch, compressed, in the record. Removing the patch restores it. Only
    needed for a file whose layout cannot be reproduced from its data.
    """
    packed = base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 9))
    read_record(workflow)["before"]["text"] = packed.decode()


def _restore_original_text(workflow: N8nWorkflow, packed: str) -> None:
    try:
        text = zlib.decompress(base64.b64decode(packed, validate=True)).decode("utf-8", "surrogatepass")
        original = N8nWorkflow.parse(text)
    except (ValueError, zlib.error, BadWorkflow) as error:
        raise PatchRefused("the stored original text (meta.backstay.before.text) is damaged") from error
    # If the user has edited the file, this layout writes the edited data instead of the original text.
    workflow.layout = Verbatim.of(original.layout, text, original.data)
    workflow.exact = original.exact
