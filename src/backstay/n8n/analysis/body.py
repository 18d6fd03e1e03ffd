"""Analyse a workflow before a lock is added.

The body is what will run under the lock: the nodes after the triggers. The analysis finds its entries and ends, and
decides whether it can stay in the workflow (inline) or must move to a sub-workflow.
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
from backstay.n8n.model import MAIN, N8nNode, N8nWorkflow

#: Node kinds with one output that always emit at least one item when they receive items.
_ONE_FOR_ONE = frozenset(["noOp", "set", "wait", "crypto", "dateTime", "renameKeys", "respondToWebhook"])
#: All node kinds with one output. Those not in _ONE_FOR_ONE may emit no items, unless `alwaysOutputData` is set.
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
    """One entry into the body: the place where the items of one trigger enter it.

    ports: the node outputs before the body, each as (node name, index of the output).
    targets: the connections from the first of these outputs to the first nodes of the body.
    trigger: the trigger's name.
    """

    ports: tuple[tuple[str, int], ...]
    targets: list[dict[str, Any]]
    trigger: str


def refuse_unpatchable(workflow: N8nWorkflow) -> None:
    """Raise PatchRefused for a workflow that no patch supports: duplicate node names, or no enabled trigger."""
    twice = [name for name, count in Counter(node.name for node in workflow.nodes).items() if count > 1]
    if twice:
        raise PatchRefused(f"two nodes are named {twice[0]!r}: n8n connects nodes by name, so rename one")
    if not workflow.triggers:
        raise PatchRefused("the workflow has no enabled trigger, so nothing starts it and there is nothing to protect")


@dataclass(frozen=True, slots=True)
class TriggerPath:
    """The last node outputs before the body on the way of one trigger's items.

    ports: these outputs, each as (node name, index of the output). Usually this is one output of the trigger. With a
        rate limit there may be two, for allowed and for denied items; an item leaves through one of them.
    trigger: the trigger's name.
    """

    ports: tuple[tuple[str, int], ...]
    trigger: str


def find_body_entries(workflow: N8nWorkflow, paths: list[TriggerPath]) -> list[BodyEntry]:
    """Return an entry into the body for each trigger path whose first output is connected to a node. Raise PatchRefused
    when no path has such an output.
    """
    found: list[BodyEntry] = []
    for path in paths:
        node, output = path.ports[0]
        outputs: list[list[dict[str, Any]] | None] = workflow.connections.get(node, {}).get(MAIN, [])
        if output < len(outputs) and (targets := outputs[output]):
            found.append(BodyEntry(path.ports, targets, path.trigger))
    if not found:
        raise PatchRefused("no node follows the trigger, so there is nothing to protect")
    return found


def trigger_paths(workflow: N8nWorkflow) -> list[TriggerPath]:
    """Return the trigger paths of a workflow without a rate limit: one for each output of each enabled trigger."""
    return [
        TriggerPath(((node.name, output),), node.name)
        for node in workflow.triggers
        for output in range(len(workflow.connections.get(node.name, {}).get(MAIN, [])))
    ]


def find_reachable(workflow: N8nWorkflow, starts: list[str]) -> set[str]:
    """Return the nodes that items reach from these starts. Only `main` connections count: the other kinds attach tools
    and models to an AI node and do not run them.
    """
    seen: set[str] = set()
    todo = list(starts)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [edge.target for edge in workflow.leaving(name) if edge.kind == MAIN]
    return seen


def find_body_ends(workflow: N8nWorkflow, found: list[BodyEntry]) -> list[str]:
    """Return the body's nodes without a successor, in file order. For a linear body this is its last node."""
    names = find_reachable(workflow, [to["node"] for entry in found for to in entry.targets])
    return [
        node.name
        for node in workflow.nodes
        if node.name in names and not any(edge.kind == MAIN for edge in workflow.leaving(node.name))
    ]


def find_inline_obstacle(workflow: N8nWorkflow, found: list[BodyEntry], *, may_fail: bool) -> str | None:
    """Return why a single Release node after the body would not run exactly once; None when it would.

    `may_fail`: an error workflow releases the lock if the body fails. Then a node that may fail is no obstacle.
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


def _find_branching(workflow: N8nWorkflow, found: list[BodyEntry]) -> str | None:
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


def find_final_response(workflow: N8nWorkflow, found: list[BodyEntry], body: list[N8nNode]) -> N8nNode | None:
    """Return the Respond to Webhook node at the end of a linear body, if it can be taken out of the body and respond
    after the lock is released: it must not read any of the body's nodes. None when there is no such node.
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


def _continues_on_failure(node: N8nNode) -> bool:
    """Whether the nodes after this node run even if it fails: its settings tell n8n to continue after an error, or the
    node cannot fail.
    """
    if node.data.get("onError") == "continueRegularOutput" or (
        node.data.get("continueOnFail") is True and "onError" not in node.data
    ):
        return True
    plain = "{{" not in json.dumps(node.parameters) and '"=' not in json.dumps(node.parameters)
    return node.kind == "noOp" or (node.kind in ("set", "wait") and plain and node.parameters.get("mode") != "raw")


def _has_cycle(workflow: N8nWorkflow, names: set[str]) -> bool:
    following = {name: {edge.target for edge in workflow.leaving(name) if edge.kind == MAIN} for name in names}
    try:
        TopologicalSorter(following).prepare()
    except CycleError:
        return True
    return False


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


def find_move_obstacle(workflow: N8nWorkflow, body: list[N8nNode]) -> MoveObstacle | None:
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


def context_warnings(body: list[N8nNode]) -> list[str]:
    """Return warnings for nodes that behave differently in a sub-workflow: those that read data of the execution
    or the workflow, and those that may suspend the execution.
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


def reads_node(body: list[N8nNode], name: str) -> bool:
    """Whether an expression in the body reads the named node, as in `$('Webhook')`."""
    quoted = re.escape(name)
    dotted = rf"|\$node\.{quoted}\b" if re.fullmatch(r"\w+", name) else ""
    reads = re.compile(rf"""(?:\$|\$items)\(\s*(['"`]){quoted}\1|\$node\[\s*(['"`]){quoted}\2\s*\]{dotted}""")
    return any(reads.search(text) for node in body for text in _strings(node.parameters))


def _strings(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    inner = data.values() if is_mapping(data) else as_list(data)
    return [text for item in inner for text in _strings(item)]


def caller_reads_result(triggers: list[N8nNode]) -> bool:
    """Whether one of the triggers returns the output of the workflow's last node to the caller of the workflow, such
    as another workflow or the client of a webhook.
    """
    return any(
        node.kind == "executeWorkflowTrigger"
        or node.parameters.get("responseMode") == "lastNode"
        or node.type.endswith((".chatTrigger", ".mcpTrigger"))
        for node in triggers
    )
