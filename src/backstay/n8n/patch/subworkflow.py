"""A body that becomes a sub-workflow, so that its end, good or bad, is always seen; and how it comes back."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

from backstay.errors import PatchRefused
from backstay.n8n.analysis.body import Entry, mentions
from backstay.n8n.model import MAIN, Node, Workflow
from backstay.n8n.patch import nodes as stitches
from backstay.n8n.patch.inline import add
from backstay.n8n.patch.limit import first_output, guarded
from backstay.n8n.patch.nodes import BY_ITSELF, CALLED, EACH, GATE, UNLOCKED, WHICH, numbered, to
from backstay.n8n.patch.placement import COLUMN, ROW
from backstay.n8n.patch.record import part, put_back, record
from backstay.n8n.patch.reply import cut_off, tie_again
from backstay.n8n.patch.retention import FROM_THE_START, UNSAVED, keep_as_before, keep_less
from backstay.n8n.patch.retry import retried, retry_key
from backstay.n8n.patch.subworkflow_nodes import Around, around

#: What is the caller's alone: its errors are raised there, and who may call it is its own affair.
_CALLERS_OWN = ("errorWorkflow", "callerPolicy", "callerIds")
#: For the nodes around the body, on top of what the body and the wait for the lock may take.
_MARGIN_SECONDS = 60


def body_key(key: str) -> str:
    return f"{key}_body"


def body_of(workflow: Workflow) -> list[Node]:
    """Everything but what starts the workflow, the notes, and what a limit has added."""
    ours = (part(workflow, "limit") or {"nodes": []})["nodes"]
    staying = {node.name for node in workflow.triggers}
    return [node for node in workflow.nodes if not (node.is_note or node.name in staying or node.name in ours)]


def weave_moved(
    workflow: Workflow,
    key: str,
    options: dict[str, Any],
    scope: str,
    found: list[Entry],
    *,
    result: bool,
    answer: str = "",
) -> tuple[dict[str, Any], dict[str, Workflow]]:
    """In place; answers what to write down, and the workflows that it calls: the body, over http also its retry.

    `answer`: a node at the body's end that stays, behind the release.
    """
    body = [node for node in body_of(workflow) if node.name != answer]
    marked = _needs_marks(body, found)
    if options["per_item"] and marked:
        raise PatchRefused(
            "with a lock per item, all triggers must lead to the same nodes, and those may not name them"
        )
    limit = (part(workflow, "limit") or {"nodes": []})["nodes"]
    undo: dict[str, Any] = {
        "order": [node.name for node in workflow.nodes if node.name not in limit],
        "sources": [name for name in workflow.connections if name not in limit],
        "top": min((node.position[1] for node in body), default=None),
        "begins": [entry.trigger if marked else found[0].trigger for entry in found],
    }
    if answer:
        undo["answer"] = [answer, cut_off(workflow, answer)]
    others = {body_key(key): _body(workflow, key, options, body, found, marked=marked)}
    names = {node.name for node in body}
    workflow.data["nodes"] = [node for node in workflow.data["nodes"] if node["name"] not in names]
    for name in [name for name in workflow.connections if name in names]:
        del workflow.connections[name]
    undo |= _make_time(workflow, options)
    again = ""
    if options["transport"] == "http":
        again = retry_key(key)
        others[again] = retried(workflow, key, body_key(key), options)
        undo |= keep_less(workflow, FROM_THE_START)
    asked = Around(
        key, body_key(key), options, scope, marked=marked, result=result or bool(answer), again=again, answer=answer
    )
    nodes, links = around(workflow, asked, found)
    _refuse_clash(nodes, names)
    add(workflow, nodes, links)
    return {"nodes": [node["name"] for node in nodes], "undo": undo}, others


def unweave_moved(workflow: Workflow, noted: dict[str, Any], inner: Workflow) -> None:
    undo, ours = noted["undo"], noted["nodes"]
    limit = (part(workflow, "limit") or {"nodes": []})["nodes"]
    for place in range(len(guarded(workflow, GATE, ours))):
        outside = workflow.entering(EACH) if EACH in ours else workflow.entering(numbered(GATE, place))
        targets = first_output(inner, undo["begins"][place])
        for edge in outside:
            if edge.source not in ours and (EACH in ours or edge.input == 1):
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
        tie_again(workflow, *undo["answer"])
    nodes = {node["name"]: node for node in workflow.data["nodes"]}
    workflow.data["nodes"] = [nodes[name] for name in _ordered(nodes, undo["order"], limit)]
    links = workflow.connections
    workflow.data["connections"] = {name: links[name] for name in _ordered(links, undo["sources"], limit)}
    if "executionTimeout" in undo and workflow.settings.get("executionTimeout") == undo["executionTimeout"][1]:
        put_back(workflow.data["settings"], "executionTimeout", undo["executionTimeout"])
    keep_as_before(workflow, undo)


def _refuse_clash(nodes: list[dict[str, Any]], names: set[str]) -> None:
    """Also of nodes in two workflows: when the body comes back, they are in one."""
    clash = next((node["name"] for node in nodes if node["name"] in names), None)
    if clash is not None:
        raise PatchRefused(f"it has a node named {clash!r} already: rename it")


def _ordered(names: Iterable[str], first: list[str], last: list[str]) -> list[str]:
    """As they stood before; what is new since then follows, and what a limit has added comes last."""
    rank = {name: float(place) for place, name in enumerate([*first, *last])}
    return sorted(names, key=lambda name: rank.get(name, len(first) - 0.5))


def _needs_marks(body: list[Node], found: list[Entry]) -> bool:
    """Whether the body must know which trigger it was, since they lead to different nodes or are read by name."""
    # As they are written, to the letter: what comes back is the first one's.
    apart = len({json.dumps(entry.targets) for entry in found}) > 1
    triggers = {entry.trigger for entry in found}
    marked = apart or (len(triggers) > 1 and any(mentions(body, trigger) for trigger in triggers))
    if marked and len(triggers) < len(found):
        raise PatchRefused(
            "a trigger of it has several outputs, which a sub-workflow's cannot have: use one trigger each"
        )
    return marked


def _body(
    workflow: Workflow, key: str, options: dict[str, Any], body: list[Node], found: list[Entry], *, marked: bool
) -> Workflow:
    """The sub-workflow. What it is called with stands under the trigger's own name: `$('Webhook')` still reads it."""
    inner_key = body_key(key)
    first = workflow.find(found[0].trigger)
    assert first is not None, "an entry's trigger is one of the workflow's"  # noqa: S101 - for the type checker
    x, y = (round(place) for place in first.position)
    links: dict[str, Any] = {}
    if not marked:
        links[found[0].trigger] = [copy.deepcopy(found[0].targets)]
        nodes = [stitches.called_trigger(inner_key, found[0].trigger, [x, y])]
        if options["transport"] == "http":
            # What asks stands before the one that the body knows: its first node sees nothing of it.
            nodes = [
                stitches.called_trigger(inner_key, CALLED, [x - 2 * COLUMN, y]),
                stitches.node(inner_key, found[0].trigger, "noOp", 1, {}, [x, y]),
            ]
            links[CALLED] = [[to(found[0].trigger)]]
    else:
        by_number: dict[str, Any] = {
            "mode": "expression",
            "numberOutputs": len(found),
            "output": "={{ $json.trigger }}",
            "options": {},
        }
        nodes = [
            stitches.called_trigger(inner_key, CALLED, [x - 3 * COLUMN, y]),
            stitches.node(inner_key, WHICH, "switch", 3.2, by_number, [x - 2 * COLUMN, y]),
        ]
        links |= {CALLED: [[to(WHICH)]], WHICH: [[to(entry.trigger)] for entry in found]}
        for entry in found:
            trigger = workflow.find(entry.trigger)
            x, y = (round(place) for place in trigger.position) if trigger else (x, y)
            nodes.append(stitches.rewrite(inner_key, entry.trigger, "$json.sent", [x, y]))
            links[entry.trigger] = [copy.deepcopy(entry.targets)]
    if options["transport"] == "http":
        _ask_first(inner_key, nodes, links)
    names = {node.name for node in body}
    _refuse_clash(nodes, names)
    settings = {name: value for name, value in workflow.settings.items() if name not in _CALLERS_OWN}
    if "executionOrder" in (before := record(workflow)["before"]):
        put_back(settings, "executionOrder", before["executionOrder"])
    mark: dict[str, Any] = {"version": 1, "body_of": key, "nodes": [node["name"] for node in nodes]}
    if options["transport"] == "http":
        settings |= UNSAVED
        mark["transport"] = "http"
    data = {
        "name": stitches.beside(workflow.name, "locked body"),
        "nodes": [*nodes, *(copy.deepcopy(node.data) for node in body)],
        "connections": {
            **{name: {MAIN: outputs} for name, outputs in links.items()},
            **{name: copy.deepcopy(kinds) for name, kinds in workflow.connections.items() if name in names},
        },
        "settings": copy.deepcopy(settings),
        "meta": {"backstay": mark},
    }
    return Workflow(data, workflow.layout)


def _ask_first(key: str, nodes: list[dict[str, Any]], links: dict[str, Any]) -> None:
    """In place: behind its trigger, and before what has the name of the workflow's, the body asks who started it."""
    x, y = nodes[0]["position"]
    nodes[0]["position"] = [x - COLUMN, y]
    nodes += stitches.not_by_itself(key, [x, y], [x, y - ROW])
    links |= {CALLED: [[to(BY_ITSELF)]], BY_ITSELF: [links[CALLED][0], [to(UNLOCKED)]]}


def _make_time(workflow: Workflow, options: dict[str, Any]) -> dict[str, Any]:
    """The body keeps the workflow's time limit; around it there must be time to wait for the lock and to release it."""
    limit = workflow.settings.get("executionTimeout")
    if not isinstance(limit, int) or limit <= 0:
        return {}
    longer = limit + options["max_wait_seconds"] + _MARGIN_SECONDS
    workflow.data["settings"]["executionTimeout"] = longer
    return {"executionTimeout": [limit, longer]}
