"""Analysis before a lock is added: find the body's entries and ends, and decide whether it stays inline or must move to
a sub-workflow.
"""

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
from backstay.n8n.json_types import as_list, is_mapping
from backstay.n8n.model import MAIN, Node, Workflow

#: Node kinds with one output that always emit at least one item for the items they receive.
_ONE_FOR_ONE = frozenset(["noOp", "set", "wait", "crypto", "dateTime", "renameKeys", "respondToWebhook"])
#: Node kinds with one output that may emit no items, unless `alwaysOutputData` is set.
_ONE_OUTPUT = _ONE_FOR_ONE | frozenset(
    [
        *("code", "httpRequest", "redis", "postgres", "mySql", "googleSheets", "microsoftExcel", "slack", "emailSend"),
        *("aggregate", "sort", "limit", "filter", "itemLists", "splitOut", "executeWorkflow", "extractFromFile"),
        *("convertToFile", "spreadsheetFile", "readWriteFile", "ftp", "awsS3", "telegram", "graphql", "xml", "html"),
    ]
)
#: Node kinds that respond to the workflow's caller, which a sub-workflow cannot do.
_RESPONDERS = frozenset(["respondToWebhook", "form", "@n8n/n8n-nodes-langchain.chat"])
_STATIC_DATA = re.compile(r"\$?getWorkflowStaticData\(")
_EXECUTION_CONTEXT = re.compile(
    r"\$execution\.(?:id|mode|resumeUrl|resumeFormUrl|customData)|\$workflow\.(?:id|name|active)|\$prevNode"
)


@dataclass(frozen=True, slots=True)
class BodyEntry:
    """One entry into the body: output ports that lead to the same targets, and the trigger whose items they carry."""

    ports: tuple[tuple[str, int], ...]
    targets: list[dict[str, Any]]
    trigger: str


def refuse_unpatchable(workflow: Workflow) -> None:
    """Raise PatchRefused for a workflow that no patch supports: duplicate node names, or no enabled trigger."""
    twice = [name for name, count in Counter(node.name for node in workflow.nodes).items() if count > 1]
    if twice:
        raise PatchRefused(f"two nodes are named {twice[0]!r}: n8n connects nodes by name, so rename one")
    if not workflow.triggers:
        raise PatchRefused("the workflow has no enabled trigger, so nothing starts it and there is nothing to protect")


@dataclass(frozen=True, slots=True)
class TriggerPath:
    """Alternative output ports that carry one trigger's items; each item leaves through exactly one of them."""

    ports: tuple[tuple[str, int], ...]
    trigger: str


def find_body_entries(workflow: Workflow, paths: list[TriggerPath]) -> list[BodyEntry]:
    """Return an entry for each path that has targets. Raise PatchRefused when no path has any."""
    found: list[BodyEntry] = []
    for path in paths:
        node, output = path.ports[0]
        outputs: list[list[dict[str, Any]] | None] = workflow.connections.get(node, {}).get(MAIN, [])
        if output < len(outputs) and (targets := outputs[output]):
            found.append(BodyEntry(path.ports, targets, path.trigger))
    if not found:
        raise PatchRefused("no node follows the trigger, so there is nothing to protect")
    return found


def trigger_paths(workflow: Workflow) -> list[TriggerPath]:
    """Return one path for each output of each enabled trigger."""
    return [
        TriggerPath(((node.name, output),), node.name)
        for node in workflow.triggers
        for output in range(len(workflow.connections.get(node.name, {}).get(MAIN, [])))
    ]


def find_reachable(workflow: Workflow, starts: list[str]) -> set[str]:
    """Return the nodes that items reach from these starts. Other connection kinds do not start their nodes."""
    seen: set[str] = set()
    todo = list(starts)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [edge.target for edge in workflow.leaving(name) if edge.kind == MAIN]
    return seen


def find_body_ends(workflow: Workflow, found: list[BodyEntry]) -> list[str]:
    """Return the body's last nodes in file order. Only meaningful for a linear body."""
    names = find_reachable(workflow, [to["node"] for entry in found for to in entry.targets])
    return [
        node.name
        for node in workflow.nodes
        if node.name in names and not any(edge.kind == MAIN for edge in workflow.leaving(node.name))
    ]


def find_inline_obstacle(workflow: Workflow, found: list[BodyEntry], *, may_fail: bool) -> str | None:
    """Return why a single Release node after the body would not run exactly once; None when it would.

    `may_fail`: an error workflow releases the lock when the body fails, so a possible failure is not an obstacle.
    """
    if (bent := _find_branching(workflow, found)) is not None:
        return bent
    names = find_reachable(workflow, [to["node"] for entry in found for to in entry.targets])
    nodes = {node.name: node for node in workflow.nodes}
    for name in (node.name for node in workflow.nodes if node.name in names):
        node = nodes[name]
        if node.disabled:
            continue
        if node.kind not in _ONE_OUTPUT or node.data.get("onError") == "continueErrorOutput":
            return f"{name!r} may end a branch or split into several"
        if not (node.kind in _ONE_FOR_ONE or node.data.get("alwaysOutputData") is True):
            return f"{name!r} may emit no items, and the nodes after it would not run"
        if not may_fail and not _continues_on_failure(node):
            return f"{name!r} may fail, and then no node after it runs"
    return None


def _find_branching(workflow: Workflow, found: list[BodyEntry]) -> str | None:
    """Return why the body is not a linear chain of nodes; None when it is."""
    names = find_reachable(workflow, [to["node"] for entry in found for to in entry.targets])
    if any(len(entry.targets) > 1 for entry in found):
        return "the body has parallel branches"
    known = {node.name for node in workflow.nodes}
    for name in sorted(names):
        if name not in known:
            raise PatchRefused(f"a connection leads to {name!r}, but no node has that name")
        leaving = [edge for edge in workflow.leaving(name) if edge.kind == MAIN]
        if len(leaving) > 1:
            return f"{name!r} leads to several nodes"
        if any(edge.output or edge.input for edge in leaving) or any(
            to.get("index", 0) for e in found for to in e.targets
        ):
            return f"{name!r} is not a step of a linear chain"
    return "the body has a loop" if _has_cycle(workflow, names) else None


def find_final_response(workflow: Workflow, found: list[BodyEntry], body: list[Node]) -> Node | None:
    """Return the Respond to Webhook node that ends a linear body and reads none of the body's nodes, so that it can
    also respond after the lock is released; None when there is no such node.
    """
    if _find_branching(workflow, found) is not None:
        return None
    ends = [node for name in find_body_ends(workflow, found) if (node := workflow.find(name)) is not None]
    if len(ends) != 1 or ends[0].kind != "respondToWebhook" or ends[0].disabled:
        return None
    (answer,) = ends
    first = any(to["node"] == answer.name for entry in found for to in entry.targets)
    reads = "$prevNode" in json.dumps(answer.parameters) or any(reads_node([answer], node.name) for node in body)
    return None if first or reads else answer


def _continues_on_failure(node: Node) -> bool:
    """Whether the execution continues whatever happens in this node."""
    if node.data.get("onError") == "continueRegularOutput" or (
        node.data.get("continueOnFail") is True and "onError" not in node.data
    ):
        return True
    plain = "{{" not in json.dumps(node.parameters) and '"=' not in json.dumps(node.parameters)
    return node.kind == "noOp" or (node.kind in ("set", "wait") and plain and node.parameters.get("mode") != "raw")


def _has_cycle(workflow: Workflow, names: set[str]) -> bool:
    following = {name: {edge.target for edge in workflow.leaving(name) if edge.kind == MAIN} for name in names}
    try:
        TopologicalSorter(following).prepare()
    except CycleError:
        return True
    return False


# ── obstacles to moving the body into a sub-workflow ──


@dataclass(frozen=True, slots=True)
class MoveObstacle:
    """Why a body cannot become a sub-workflow, and how the workflow's author can remove the obstacle."""

    reason: str
    remedy: str


_RESPOND_LAST = (
    "Set the webhook to respond When Last Node Finishes; or, in a linear body and without --per-item, respond from the"
    " last node, which may read no other node by name"
)
_SHORTER_WAITS = f"Use waits of less than {SUSPENDS_SECONDS} s, in a loop if necessary"
_REMOVE_IT = "Remove it from the workflow"


def find_move_obstacle(workflow: Workflow, body: list[Node]) -> MoveObstacle | None:
    """Return what prevents the body from becoming a sub-workflow; None when nothing does."""
    for node in body:
        if node.disabled:
            continue
        if node.kind in _RESPONDERS or node.type in _RESPONDERS:
            why = "responds to the workflow's caller, and a response from a sub-workflow never arrives"
            return MoveObstacle(f"{node.name!r} {why}", _RESPOND_LAST)
        if _STATIC_DATA.search(json.dumps(node.parameters)):
            why = "uses the workflow's static data, and a sub-workflow has its own, empty static data"
            return MoveObstacle(f"{node.name!r} {why}", _REMOVE_IT)
        if waits.classify_suspension(node) == "always":
            why = f"{waits.describe_wait(node)}, which suspends a sub-workflow: n8n never reports its failure"
            return MoveObstacle(f"{node.name!r} {why} to the caller, and not always its result", _SHORTER_WAITS)
    for trigger in workflow.triggers:
        if edge := next(iter(workflow.entering(trigger.name)), None):
            return MoveObstacle(
                f"{edge.source!r} is attached to the trigger {trigger.name!r} and cannot move without it", _REMOVE_IT
            )
    return None


def context_warnings(body: list[Node]) -> list[str]:
    """Return warnings for nodes that behave differently in a sub-workflow: those that read the execution or the
    workflow, and those that may suspend.
    """
    found: list[str] = []
    for node in body:
        if not node.disabled and (read := _EXECUTION_CONTEXT.search(json.dumps(node.parameters))):
            found.append(f"{node.name!r} reads {read[0]}: it now returns the sub-workflow's value")
        if not node.disabled and waits.classify_suspension(node) == "perhaps":
            found.append(
                f"{node.name!r} must not wait for {SUSPENDS_SECONDS} s or more: that suspends the execution. The lock"
                " is still held and released, but the body's result may be lost, and a failure shows only in the"
                " body's own execution"
            )
    return found


def reads_node(body: list[Node], name: str) -> bool:
    """Whether an expression in these nodes reads the named node."""
    quoted = re.escape(name)
    dotted = rf"|\$node\.{quoted}\b" if re.fullmatch(r"\w+", name) else ""
    reads = re.compile(rf"""(?:\$|\$items)\(\s*(['"`]){quoted}\1|\$node\[\s*(['"`]){quoted}\2\s*\]{dotted}""")
    return any(reads.search(text) for node in body for text in _strings(node.parameters))


def _strings(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    inner = data.values() if is_mapping(data) else as_list(data)
    return [text for item in inner for text in _strings(item)]


def caller_reads_result(triggers: list[Node]) -> bool:
    """Whether the output of the workflow's last node is returned to a caller."""
    return any(
        node.kind == "executeWorkflowTrigger"
        or node.parameters.get("responseMode") == "lastNode"
        or node.type.endswith((".chatTrigger", ".mcpTrigger"))
        for node in triggers
    )
