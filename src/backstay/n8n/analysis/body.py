"""A look at a graph before surgery: where its body begins, which wiring is right for it, and why."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from backstay.errors import PatchRefused
from backstay.n8n.analysis import waits
from backstay.n8n.analysis.waits import SUSPENDS_SECONDS
from backstay.n8n.json_types import is_table, items
from backstay.n8n.model import MAIN, Node, Workflow

#: Kinds with one output that give at least one item for the items they get, whatever they are asked to do.
_ONE_FOR_ONE = frozenset(["noOp", "set", "wait", "crypto", "dateTime", "renameKeys", "respondToWebhook"])
#: Kinds with one output that may give none; `alwaysOutputData` mends that.
_ONE_OUTPUT = _ONE_FOR_ONE | frozenset(
    [
        *("code", "httpRequest", "redis", "postgres", "mySql", "googleSheets", "microsoftExcel", "slack", "emailSend"),
        *("aggregate", "sort", "limit", "filter", "itemLists", "splitOut", "executeWorkflow", "extractFromFile"),
        *("convertToFile", "spreadsheetFile", "readWriteFile", "ftp", "awsS3", "telegram", "graphql", "xml", "html"),
    ]
)
#: They answer whoever called the workflow, which a sub-workflow cannot.
_ANSWERS = frozenset(["respondToWebhook", "form", "@n8n/n8n-nodes-langchain.chat"])
_STATIC_DATA = re.compile(r"\$?getWorkflowStaticData\(")
_OWN = re.compile(
    r"\$execution\.(?:id|mode|resumeUrl|resumeFormUrl|customData)|\$workflow\.(?:id|name|active)|\$prevNode"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One way into the body: outputs that lead to the same targets, and the trigger that stands behind them."""

    ports: tuple[tuple[str, int], ...]
    targets: list[dict[str, Any]]
    trigger: str


def refuse_unsound(workflow: Workflow) -> None:
    """What no surgery can work on."""
    twice = [name for name, count in Counter(node.name for node in workflow.nodes).items() if count > 1]
    if twice:
        raise PatchRefused(f"two nodes are named {twice[0]!r}: n8n ties nodes by their names, so rename one")
    if not workflow.triggers:
        raise PatchRefused("it has no trigger that is enabled: nothing starts it, so there is nothing to guard")


@dataclass(frozen=True, slots=True)
class Way:
    """Outputs of which one at a time gives items, and the trigger that stands behind them."""

    ports: tuple[tuple[str, int], ...]
    trigger: str


def entries(workflow: Workflow, ways: list[Way]) -> list[Entry]:
    """The ways that lead somewhere."""
    found: list[Entry] = []
    for way in ways:
        node, output = way.ports[0]
        outputs: list[list[dict[str, Any]] | None] = workflow.connections.get(node, {}).get(MAIN, [])
        if output < len(outputs) and (targets := outputs[output]):
            found.append(Entry(way.ports, targets, way.trigger))
    if not found:
        raise PatchRefused("nothing follows its trigger: there is nothing to guard")
    return found


def trigger_ways(workflow: Workflow) -> list[Way]:
    return [
        Way(((node.name, output),), node.name)
        for node in workflow.triggers
        for output in range(len(workflow.connections.get(node.name, {}).get(MAIN, [])))
    ]


def reachable(workflow: Workflow, starts: list[str]) -> set[str]:
    """By items: what hangs on by other kinds of connections does not run by itself."""
    seen: set[str] = set()
    todo = list(starts)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [edge.target for edge in workflow.leaving(name) if edge.kind == MAIN]
    return seen


def tails(workflow: Workflow, found: list[Entry]) -> list[str]:
    """Where a body that is one line ends, in the file's order."""
    names = reachable(workflow, [to["node"] for entry in found for to in entry.targets])
    return [
        node.name
        for node in workflow.nodes
        if node.name in names and not any(edge.kind == MAIN for edge in workflow.leaving(node.name))
    ]


def why_not_inline(workflow: Workflow, found: list[Entry], *, may_fail: bool) -> str | None:
    """Why one Release behind the body cannot promise to run exactly once; None when it can.

    `may_fail`: something else frees the lock when the body fails, so that this alone is no reason.
    """
    if (bent := _why_no_line(workflow, found)) is not None:
        return bent
    names = reachable(workflow, [to["node"] for entry in found for to in entry.targets])
    nodes = {node.name: node for node in workflow.nodes}
    for name in (node.name for node in workflow.nodes if node.name in names):
        node = nodes[name]
        if node.disabled:
            continue
        if node.kind not in _ONE_OUTPUT or node.data.get("onError") == "continueErrorOutput":
            return f"{name!r} may end a branch, or go several ways"
        if not (node.kind in _ONE_FOR_ONE or node.data.get("alwaysOutputData") is True):
            return f"{name!r} may give no items, and what stands behind it would not run"
        if not may_fail and not _survives(node):
            return f"{name!r} may fail, and then nothing behind it runs"
    return None


def _why_no_line(workflow: Workflow, found: list[Entry]) -> str | None:
    """Why the body is not one line of nodes; None when it is."""
    names = reachable(workflow, [to["node"] for entry in found for to in entry.targets])
    if any(len(entry.targets) > 1 for entry in found):
        return "it has parallel branches"
    known = {node.name for node in workflow.nodes}
    for name in sorted(names):
        if name not in known:
            raise PatchRefused(f"a connection leads to {name!r}, and there is no such node")
        leaving = [edge for edge in workflow.leaving(name) if edge.kind == MAIN]
        if len(leaving) > 1:
            return f"{name!r} leads to several places"
        if any(edge.output or edge.input for edge in leaving) or any(
            to.get("index", 0) for e in found for to in e.targets
        ):
            return f"{name!r} is not one step of a single line"
    return "it has a loop" if _cycle(workflow, names) else None


def last_answer(workflow: Workflow, found: list[Entry], body: list[Node]) -> Node | None:
    """An answer that ends a body of one line and names none of its nodes: it can be given behind the lock as well."""
    if _why_no_line(workflow, found) is not None:
        return None
    ends = [node for name in tails(workflow, found) if (node := workflow.find(name)) is not None]
    if len(ends) != 1 or ends[0].kind != "respondToWebhook" or ends[0].disabled:
        return None
    (answer,) = ends
    first = any(to["node"] == answer.name for entry in found for to in entry.targets)
    reads = "$prevNode" in json.dumps(answer.parameters) or any(mentions([answer], node.name) for node in body)
    return None if first or reads else answer


def _survives(node: Node) -> bool:
    """Whether the execution goes on whatever happens in this node."""
    if node.data.get("onError") == "continueRegularOutput" or (
        node.data.get("continueOnFail") is True and "onError" not in node.data
    ):
        return True
    plain = "{{" not in json.dumps(node.parameters) and '"=' not in json.dumps(node.parameters)
    return node.kind == "noOp" or (node.kind in ("set", "wait") and plain and node.parameters.get("mode") != "raw")


def _cycle(workflow: Workflow, names: set[str]) -> bool:
    following = {name: {edge.target for edge in workflow.leaving(name) if edge.kind == MAIN} for name in names}
    try:
        TopologicalSorter(following).prepare()
    except CycleError:
        return True
    return False


# ── what a body may not do in a sub-workflow ──


@dataclass(frozen=True, slots=True)
class Fixed:
    """Why a body cannot become a sub-workflow, and what could be done about that."""

    why: str
    way_out: str


_ANSWER_LAST = (
    "Respond: When Last Node Finishes would do, or, in one line of nodes and without --per-item, an answer by the last"
    " of them that reads no other by name"
)
_WAIT_LESS = f"Waits of less than {SUSPENDS_SECONDS} s, in a loop if need be, would do"
_TAKE_OUT = "A workflow without it would do"


def why_not_moved(workflow: Workflow, body: list[Node]) -> Fixed | None:
    """None when the body can become a sub-workflow."""
    for node in body:
        if node.disabled:
            continue
        if node.kind in _ANSWERS or node.type in _ANSWERS:
            why = "answers whoever called the workflow, and from a sub-workflow that answer never arrives"
            return Fixed(f"{node.name!r} {why}", _ANSWER_LAST)
        if _STATIC_DATA.search(json.dumps(node.parameters)):
            why = "uses the workflow's static data, and a sub-workflow has its own, which is empty"
            return Fixed(f"{node.name!r} {why}", _TAKE_OUT)
        if waits.suspends(node) == "always":
            why = f"{waits.shown(node)}, which suspends a sub-workflow: n8n does not tell its caller whether it failed"
            return Fixed(f"{node.name!r} {why}, nor always what it gave", _WAIT_LESS)
    for trigger in workflow.triggers:
        if edge := next(iter(workflow.entering(trigger.name)), None):
            return Fixed(
                f"{edge.source!r} is tied to the trigger {trigger.name!r} and cannot move without it", _TAKE_OUT
            )
    return None


def own_ids(body: list[Node]) -> list[str]:
    """Warnings: what a body reads of its execution or workflow is the sub-workflow's from now on."""
    found: list[str] = []
    for node in body:
        if not node.disabled and (read := _OWN.search(json.dumps(node.parameters))):
            found.append(f"{node.name!r} reads {read[0]}: from now on that is the sub-workflow's")
        if not node.disabled and waits.suspends(node) == "perhaps":
            found.append(
                f"{node.name!r} must not wait for {SUSPENDS_SECONDS} s or more: that suspends the execution, and then"
                " the lock is kept and released, but what the body returns may be lost, and a failure shows in the"
                " body's own execution only"
            )
    return found


def mentions(body: list[Node], name: str) -> bool:
    """Whether an expression of these nodes reads a node by its name."""
    quoted = re.escape(name)
    dotted = rf"|\$node\.{quoted}\b" if re.fullmatch(r"\w+", name) else ""
    reads = re.compile(rf"""(?:\$|\$items)\(\s*(['"`]){quoted}\1|\$node\[\s*(['"`]){quoted}\2\s*\]{dotted}""")
    return any(reads.search(text) for node in body for text in _strings(node.parameters))


def _strings(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    inner = data.values() if is_table(data) else items(data)
    return [text for item in inner for text in _strings(item)]


def answers_with_result(triggers: list[Node]) -> bool:
    """Whether somebody reads what the workflow's last node gives."""
    return any(
        node.kind == "executeWorkflowTrigger"
        or node.parameters.get("responseMode") == "lastNode"
        or node.type.endswith((".chatTrigger", ".mcpTrigger"))
        for node in triggers
    )
