"""What weaving notes down in the file, so that it can be undone: `meta.backstay`, and what stood there before."""

from __future__ import annotations

import base64
import zlib
from typing import Any, Literal

import msgspec

from backstay.errors import BadWorkflow, PatchRefused
from backstay.n8n.json_types import is_table, table
from backstay.n8n.model import Workflow
from backstay.n8n.workspace.json_layout import Verbatim

Part = Literal["limit", "lock"]
PARTS: tuple[Part, ...] = ("limit", "lock")
_VERSION = 1


class _Limit(msgspec.Struct):
    """What both say: what was asked for, and the nodes that were added."""

    options: dict[str, Any]
    nodes: list[str]


class _Ends(msgspec.Struct):
    ends: dict[str, Any]


class _Inline(_Limit, tag_field="wiring", tag="inline"):
    undo: _Ends


class _Order(msgspec.Struct):
    order: list[str]
    sources: list[str]
    begins: list[str]


class _Moved(_Limit, tag_field="wiring", tag="sub-workflow"):
    undo: _Order


def record(workflow: Workflow) -> dict[str, Any]:
    """A copy where there is none."""
    return table(table(workflow.data.get("meta")).get("backstay"))


def part(workflow: Workflow, name: Part) -> dict[str, Any] | None:
    """None: there is none. Raises PatchRefused for one that cannot be read."""
    found = record(workflow).get(name)
    if found is None:
        return None
    if record(workflow).get("version") != _VERSION:
        raise unreadable(name)
    try:
        msgspec.convert(found, _Limit if name == "limit" else _Inline | _Moved)
    except msgspec.ValidationError as error:
        raise unreadable(name) from error
    return table(found)


def unreadable(name: Part) -> PatchRefused:
    return PatchRefused(
        f"its {name} was added by another version, or what that wrote down (meta.backstay) is damaged: remove it with"
        " that one, or take the file from before"
    )


def our_nodes(workflow: Workflow) -> list[str]:
    """Names of all nodes that weaving has added."""
    return [name for each in PARTS if (noted := part(workflow, each)) is not None for name in noted["nodes"]]


def begin(workflow: Workflow) -> None:
    """Before the first change. Twice is once. Raises PatchRefused where somebody else's record stands."""
    if "backstay" not in table(workflow.data.get("meta")):
        before = _open(workflow.data)
        workflow.data["meta"]["backstay"] = {"version": _VERSION, "before": before}
    elif not is_table(record(workflow).get("before")):
        raise PatchRefused("what its meta.backstay says is of no version that is known here: take that out first")


def note(workflow: Workflow, name: Part, noted: dict[str, Any]) -> None:
    """Writes a part down, and brings our nodes to the end of the file in one order, whichever came first."""
    data = workflow.data
    known: dict[str, Any] = {**record(workflow), name: noted}
    parts: dict[str, Any] = {each: known[each] for each in PARTS if each in known}
    data["meta"]["backstay"] = {"version": _VERSION, "before": known["before"], **parts}
    ours = [node for each in parts.values() for node in each["nodes"]]
    nodes = {node["name"]: node for node in data["nodes"]}
    data["nodes"] = [node for node in data["nodes"] if node["name"] not in ours] + [nodes[each] for each in ours]
    for each in ours:
        if each in data["connections"]:
            data["connections"][each] = data["connections"].pop(each)


def _open(data: dict[str, Any]) -> dict[str, Any]:
    """Room for the record, and the order of execution that the added nodes rely on. A list: what was there, if any."""
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


def forget(workflow: Workflow, name: Part) -> None:
    """A part is gone; with the last one everything is as it was."""
    data = workflow.data
    known = record(workflow)
    del known[name]
    if any(each in known for each in PARTS):
        return
    before = known["before"]
    del data["meta"]["backstay"]
    if "executionOrder" in before:
        put_back(data["settings"], "executionOrder", before["executionOrder"])
    for key in ("meta", "settings"):
        if key in before and not data[key]:
            put_back(data, key, before[key])
    if "text" in before:
        _word_for_word(workflow, before["text"])


def put_back(table: dict[str, Any], key: str, was: list[Any]) -> None:
    if was:
        table[key] = was[0]
    else:
        table.pop(key, None)


def keep_text(workflow: Workflow, text: str) -> None:
    """For a file whose layout we cannot write again: its whole text, small."""
    packed = base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 9))
    record(workflow)["before"]["text"] = packed.decode()


def _word_for_word(workflow: Workflow, packed: str) -> None:
    try:
        text = zlib.decompress(base64.b64decode(packed, validate=True)).decode("utf-8", "surrogatepass")
        original = Workflow.parse(text)
    except (ValueError, zlib.error, BadWorkflow) as error:
        raise PatchRefused("what it kept of the file before (meta.backstay.before.text) is damaged") from error
    # Edited since: the edits count, and the layout writes them plainly.
    workflow.layout = Verbatim.of(original.layout, text, original.data)
    workflow.exact = original.exact
