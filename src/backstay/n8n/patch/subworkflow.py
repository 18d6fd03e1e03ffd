"""Move the nodes under a lock (the body) into a sub-workflow, and back.

When a sub-workflow fails, its caller can continue. So the caller releases the lock in every case.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

from backstay.errors import PatchRefused
from backstay.n8n.analysis.body import BodyEntry, reads_node
from backstay.n8n.model import MAIN, N8nNode, N8nWorkflow
from backstay.n8n.patch import nodes as make
from backstay.n8n.patch.inline import add_nodes
from backstay.n8n.patch.limit import find_gated_entries, first_output_targets
from backstay.n8n.patch.nodes import (
    BODY_INPUT,
    CALLED_BY_LOCK,
    EACH_ITEM,
    LOCK_GATE,
    RAISE_NO_LOCK,
    WHICH_TRIGGER,
    link_to,
    number_name,
)
from backstay.n8n.patch.placement import COLUMN, ROW
from backstay.n8n.patch.record import read_part, read_record, restore_key
from backstay.n8n.patch.reply import detach_reply, reattach_reply
from backstay.n8n.patch.retention import RETRY_FROM_TRIGGER, UNSAVED, disable_saving, restore_saving
from backstay.n8n.patch.retry import build_retry_workflow, retry_key
from backstay.n8n.patch.subworkflow_nodes import LockedBodySpec, build_locked_body

#: Settings that stay with the locked workflow: its error handling, and which workflows may call it.
_CALLER_ONLY_SETTINGS = ("errorWorkflow", "callerPolicy", "callerIds")
#: Seconds that the nodes around the body may take, in addition to the body's timeout and the wait for the lock.
_MARGIN_SECONDS = 60


def body_key(key: str) -> str:
    return f"{key}_body"


def body_of(workflow: N8nWorkflow) -> list[N8nNode]:
    """Return the body: all nodes except triggers, sticky notes and the nodes that a limit added."""
    ours = (read_part(workflow, "limit") or {"nodes": []})["nodes"]
    staying = {node.name for node in workflow.triggers}
    return [node for node in workflow.nodes if not (node.is_note or node.name in staying or node.name in ours)]


def move_body(
    workflow: N8nWorkflow,
    key: str,
    options: dict[str, Any],
    scope: str,
    found: list[BodyEntry],
    *,
    result: bool,
    answer: str = "",
) -> tuple[dict[str, Any], dict[str, N8nWorkflow]]:
    """Move the workflow's body to a sub-workflow. In place of the body, the workflow gets nodes that acquire the lock,
    call the sub-workflow and release the lock. Return the data that `restore_body` needs, and the new workflows by key:
    the sub-workflow and, over http, the retry workflow.

    `answer`: the name of the webhook's response node, which stays in this workflow and runs after the release; "" if
    there is none.
    """
    body = [node for node in body_of(workflow) if node.name != answer]
    marked = _needs_trigger_marks(body, found)
    if options["per_item"] and marked:
        raise PatchRefused(
            "with a lock per item, all triggers must lead to the same nodes, and no node may read a trigger by name"
        )
    limit = (read_part(workflow, "limit") or {"nodes": []})["nodes"]
    undo: dict[str, Any] = {
        "order": [node.name for node in workflow.nodes if node.name not in limit],
        "sources": [name for name in workflow.connections if name not in limit],
        "top": min((node.position[1] for node in body), default=None),
        "begins": [entry.trigger if marked else found[0].trigger for entry in found],
    }
    if answer:
        undo["answer"] = [answer, detach_reply(workflow, answer)]
    others = {body_key(key): _build_body(workflow, key, options, body, found, marked=marked)}
    names = {node.name for node in body}
    workflow.data["nodes"] = [node for node in workflow.data["nodes"] if node["name"] not in names]
    for name in [name for name in workflow.connections if name in names]:
        del workflow.connections[name]
    undo |= _extend_timeout(workflow, options)
    again = ""
    if options["transport"] == "http":
        again = retry_key(key)
        others[again] = build_retry_workflow(workflow, key, body_key(key), options)
        undo |= disable_saving(workflow, RETRY_FROM_TRIGGER)
    spec = LockedBodySpec(
        key,
        body_key(key),
        options,
        scope,
        marked=marked,
        result=result or bool(answer),
        retry_workflow=again,
        answer=answer,
    )
    nodes, links = build_locked_body(workflow, spec, found)
    _refuse_clash(nodes, names)
    add_nodes(workflow, nodes, links)
    return {"nodes": [node["name"] for node in nodes], "undo": undo}, others


def restore_body(workflow: N8nWorkflow, recorded: dict[str, Any], inner: N8nWorkflow) -> None:
    """Undo `move_body` in place."""
    undo, ours = recorded["undo"], recorded["nodes"]
    limit = (read_part(workflow, "limit") or {"nodes": []})["nodes"]
    for place in range(len(find_gated_entries(workflow, LOCK_GATE, ours))):
        outside = (
            workflow.entering(EACH_ITEM) if EACH_ITEM in ours else workflow.entering(number_name(LOCK_GATE, place))
        )
        targets = first_output_targets(inner, undo["begins"][place])
        for edge in outside:
            if edge.source not in ours and (EACH_ITEM in ours or edge.input == 1):
                workflow.connections[edge.source][MAIN][edge.output] = copy.deepcopy(targets)
    for name in ours:
        workflow.remove(name)
    added = inner.data["meta"]["backstay"]["nodes"]
    back = [node for node in inner.data["nodes"] if node["name"] not in added]
    for node in back:
        workflow.add(copy.deepcopy(node))
    for name, kinds in inner.connections.items():
        if name not in added:
            workflow.connections[name] = copy.deepcopy(kinds)
    if "answer" in undo:
        reattach_reply(workflow, *undo["answer"])
    nodes = {node["name"]: node for node in workflow.data["nodes"]}
    workflow.data["nodes"] = [nodes[name] for name in _restore_order(nodes, undo["order"], limit)]
    links = workflow.connections
    workflow.data["connections"] = {name: links[name] for name in _restore_order(links, undo["sources"], limit)}
    if "executionTimeout" in undo and workflow.settings.get("executionTimeout") == undo["executionTimeout"][1]:
        restore_key(workflow.data["settings"], "executionTimeout", undo["executionTimeout"])
    restore_saving(workflow, undo)


def _refuse_clash(nodes: list[dict[str, Any]], names: set[str]) -> None:
    """Raise PatchRefused when a node that Backstay adds (`nodes`) has the name of a node of the body (`names`). Both
    may end up in one workflow when the lock is removed, and there names must be unique.
    """
    clash = next((node["name"] for node in nodes if node["name"] in names), None)
    if clash is not None:
        raise PatchRefused(f"the workflow already has a node named {clash!r}: rename it")


def _restore_order(names: Iterable[str], first: list[str], last: list[str]) -> list[str]:
    """Sort node names: first those of the original file (`first`) in their order, then those that the user added later,
    then those of a rate limit (`last`).
    """
    rank = {name: float(place) for place, name in enumerate([*first, *last])}
    return sorted(names, key=lambda name: rank.get(name, len(first) - 0.5))


def _needs_trigger_marks(body: list[N8nNode], found: list[BodyEntry]) -> bool:
    """Whether each item that is passed to the sub-workflow must carry the index of the trigger that emitted it. It must
    if the triggers lead to different nodes, or if there are several triggers and the body reads one of them by name.
    """
    # If all triggers have equal connections, the sub-workflow stores these once; else it stores them for each trigger.
    # Removing the lock copies them back to every trigger and must restore the file byte for byte. So "equal" means the
    # same JSON text.
    apart = len({json.dumps(entry.targets) for entry in found}) > 1
    triggers = {entry.trigger for entry in found}
    marked = apart or (len(triggers) > 1 and any(reads_node(body, trigger) for trigger in triggers))
    if marked and len(triggers) < len(found):
        raise PatchRefused(
            "a trigger has several outputs, which a sub-workflow's trigger cannot have: use one trigger for each"
        )
    return marked


def _build_body(
    workflow: N8nWorkflow,
    key: str,
    options: dict[str, Any],
    body: list[N8nNode],
    found: list[BodyEntry],
    *,
    marked: bool,
) -> N8nWorkflow:
    """Build the sub-workflow. In it, a node with the name of the original trigger emits the items that the caller
    passed. So an expression of the body such as `$('Webhook')` still reads the trigger's items.
    """
    inner_key = body_key(key)
    first = workflow.find(found[0].trigger)
    assert first is not None, "an entry's trigger is one of the workflow's"  # noqa: S101 - for the type checker
    x, y = (round(place) for place in first.position)
    links: dict[str, Any] = {}
    if not marked:
        links[found[0].trigger] = [copy.deepcopy(found[0].targets)]
        nodes = [make.called_trigger(inner_key, found[0].trigger, [x, y])]
        if options["transport"] == "http":
            # The retry check comes before the node with the trigger's name: the body's first node then follows a node
            # that emits exactly the trigger's items.
            nodes = [
                make.called_trigger(inner_key, BODY_INPUT, [x - 2 * COLUMN, y]),
                make.node(inner_key, found[0].trigger, "noOp", 1, {}, [x, y]),
            ]
            links[BODY_INPUT] = [[link_to(found[0].trigger)]]
    else:
        by_number: dict[str, Any] = {
            "mode": "expression",
            "numberOutputs": len(found),
            "output": "={{ $json.trigger }}",
            "options": {},
        }
        nodes = [
            make.called_trigger(inner_key, BODY_INPUT, [x - 3 * COLUMN, y]),
            make.node(inner_key, WHICH_TRIGGER, "switch", 3.2, by_number, [x - 2 * COLUMN, y]),
        ]
        links |= {BODY_INPUT: [[link_to(WHICH_TRIGGER)]], WHICH_TRIGGER: [[link_to(entry.trigger)] for entry in found]}
        for entry in found:
            trigger = workflow.find(entry.trigger)
            x, y = (round(place) for place in trigger.position) if trigger else (x, y)
            nodes.append(make.set_json(inner_key, entry.trigger, "$json.sent", [x, y]))
            links[entry.trigger] = [copy.deepcopy(entry.targets)]
    if options["transport"] == "http":
        _insert_retry_check(inner_key, nodes, links)
    names = {node.name for node in body}
    _refuse_clash(nodes, names)
    settings = {name: value for name, value in workflow.settings.items() if name not in _CALLER_ONLY_SETTINGS}
    if "executionOrder" in (before := read_record(workflow)["before"]):
        restore_key(settings, "executionOrder", before["executionOrder"])
    mark: dict[str, Any] = {"version": 1, "body_of": key, "nodes": [node["name"] for node in nodes]}
    if options["transport"] == "http":
        settings |= UNSAVED
        mark["transport"] = "http"
    data = {
        "name": make.derived_name(workflow.name, "locked body"),
        "nodes": [*nodes, *(copy.deepcopy(node.data) for node in body)],
        "connections": {
            **{name: {MAIN: outputs} for name, outputs in links.items()},
            **{name: copy.deepcopy(kinds) for name, kinds in workflow.connections.items() if name in names},
        },
        "settings": copy.deepcopy(settings),
        "meta": {"backstay": mark},
    }
    return N8nWorkflow(data, workflow.layout)


def _insert_retry_check(key: str, nodes: list[dict[str, Any]], links: dict[str, Any]) -> None:
    """Insert, in place, nodes directly after the sub-workflow's own trigger that fail when n8n retries the sub-workflow
    alone: it would run without the lock.
    """
    x, y = nodes[0]["position"]
    nodes[0]["position"] = [x - COLUMN, y]
    nodes += make.build_retry_check(key, [x, y], [x, y - ROW])
    links |= {BODY_INPUT: [[link_to(CALLED_BY_LOCK)]], CALLED_BY_LOCK: [links[BODY_INPUT][0], [link_to(RAISE_NO_LOCK)]]}


def _extend_timeout(workflow: N8nWorkflow, options: dict[str, Any]) -> dict[str, Any]:
    """Extend the workflow's execution timeout, if it has one, by the longest wait for the lock and a margin. The body
    keeps the original timeout. Return both timeouts, with which `restore_body` undoes this; {} if there is none.
    """
    limit = workflow.settings.get("executionTimeout")
    if not isinstance(limit, int) or limit <= 0:
        return {}
    longer = limit + options["max_wait_seconds"] + _MARGIN_SECONDS
    workflow.data["settings"]["executionTimeout"] = longer
    return {"executionTimeout": [limit, longer]}
