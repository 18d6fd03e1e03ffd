"""The nodes around a body that is a sub-workflow: acquire, gate, call, release, and its error raised again.

The body is called through a short workflow of three nodes, written into the call itself. Its last node is reached only
when the body has ended well, so that an item of the body that looks like an error is never taken for one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from backstay.n8n.analysis.body import Entry
from backstay.n8n.model import MAIN, Workflow
from backstay.n8n.patch import nodes as stitches
from backstay.n8n.patch.inline import CALLER, GRANT, acquiring, releasing
from backstay.n8n.patch.nodes import (
    ACQUIRE,
    AGAIN,
    BODY,
    BY_ITSELF,
    CONFIRM,
    CONFIRMED,
    EACH,
    FAILED,
    GATE,
    HELD_RESULT,
    MARK,
    NOTHING_LOST,
    RAISE,
    RELEASE,
    RESULT,
    SENT,
    UNLOCKED,
    numbered,
    to,
)
from backstay.n8n.patch.placement import Places
from backstay.n8n.patch.record import our_nodes
from backstay.n8n.patch.retention import UNSAVED

_SAID = f"$({stitches.quoted(BODY)}).first().json"
#: One item with nothing but a message is what n8n makes of a call that failed.
_FAILED = f"{_SAID}.ended !== true && typeof {_SAID}.error === 'string' && Object.keys({_SAID}).length === 1"
_ERROR = f"{_SAID}.error || 'The locked body failed'"
#: What came out of the confirmation: its answer, or its error at the other output.
_CONFIRMED = f"$({stitches.quoted(CONFIRM)}).all(0).length > 0"
_REFUSED = f"$({stitches.quoted(CONFIRM)}).first(1).json.error"
_UNCONFIRMED = f"'The lock was not confirmed: ' + ({_REFUSED}.message ?? {_REFUSED})"

Nodes = list[dict[str, Any]]
Links = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Around:
    """`key` names the nodes' ids, `body` is the workflow to call, `again` the one that raises its error or retries.

    `shift`: so many columns are taken. `then`: a node that follows when the body has ended well. `holder`: who takes
    the lock, in expressions. `answer`: a node that gets what the body gave.
    """

    key: str
    body: str
    options: dict[str, Any]
    scope: str
    marked: bool = False
    result: bool = False
    again: str = ""
    shift: int = 0
    then: str = ""
    holder: dict[str, str] = field(default_factory=CALLER.copy)
    answer: str = ""

    @property
    def per_item(self) -> bool:
        return bool(self.options["per_item"])

    @property
    def confirms(self) -> bool:
        return bool(self.options["transport"] == "http")

    @property
    def failed(self) -> str:
        return f"!({_CONFIRMED}) || {_FAILED}" if self.confirms else _FAILED

    @property
    def error(self) -> str:
        return f"{_CONFIRMED} ? {_ERROR} : {_UNCONFIRMED}" if self.confirms else _ERROR


def around(workflow: Workflow, asked: Around, found: list[Entry]) -> tuple[Nodes, Links]:
    """What to add, and how it hangs together; the ways in lead to it already."""
    key = asked.key
    places = Places(workflow, our_nodes(workflow))
    shift = asked.shift + (1 if asked.per_item else 0)
    gates = [numbered(GATE, place) for place in range(1 if asked.per_item else len(found))]
    nodes, links = acquiring(key, asked.options, asked.scope, gates, places, 1 + shift, asked.holder, goes_on=True)
    if asked.per_item:
        nodes.insert(0, stitches.node(key, EACH, "splitInBatches", 3, {"batchSize": 1, "options": {}}, places.take(1)))
        links[EACH] = [[to(NOTHING_LOST)] if asked.result else [], [to(ACQUIRE), to(GATE, 1)]]
    kept = [to(SENT, 1)] if asked.again else []
    into = [to(CONFIRMED)] if asked.confirms else [to(BODY), *kept]
    for place, gate in enumerate(gates):
        nodes.append(stitches.gate(key, gate, places.take(2 + shift, place)))
        links[gate] = [into]
        if asked.marked:
            mark = numbered(MARK, place)
            nodes.append(stitches.rewrite(key, mark, f"{{ trigger: {place}, sent: $json }}", places.take(3, place)))
            links |= {gate: [[to(mark)]], mark: [into]}
    for place, entry in enumerate(found):
        for node, output in entry.ports:
            leads = [to(EACH)] if asked.per_item else [to(ACQUIRE), to(gates[place], 1)]
            workflow.connections[node][MAIN][output] = leads
    shift += 1 if asked.marked else 0
    if asked.confirms:
        # A retry that began at the confirmation would use a grant that has lapsed, or is another execution's. So it
        # never fails there: what was granted is given back, and the failure is the body's.
        nodes.append(stitches.choice(key, CONFIRMED, _CONFIRMED, places.take(3 + shift)))
        links[CONFIRMED] = [[to(BODY), *kept], [to(RELEASE), *kept]]
        shift += 1
    nodes += [_calling(asked, places.take(3 + shift)), releasing(key, places, 4 + shift)]
    then = HELD_RESULT if asked.result else EACH if asked.per_item else asked.then
    behind = [to(then)] if then else []
    links |= {BODY: [[to(RELEASE)]]}
    shift = _raising(asked, behind, places, shift, nodes, links)
    if asked.result:
        nodes += [
            stitches.gate(key, HELD_RESULT, places.take(6 + shift)),
            stitches.choice(key, NOTHING_LOST, "$json.ended === true", places.take(7 + shift), kind="filter"),
            stitches.rewrite(key, RESULT, "$json.result", places.take(8 + shift)),
        ]
        links |= {
            BODY: [[to(RELEASE), to(HELD_RESULT, 1)]],
            HELD_RESULT: [[to(EACH if asked.per_item else NOTHING_LOST)]],
            NOTHING_LOST: [[to(RESULT)]],
        }
        links |= {RESULT: [[to(asked.answer)]]} if asked.answer else {}
        if asked.confirms:
            links[CONFIRM][1].append(to(HELD_RESULT, 1))  # in place of a body's answer, as an error of one
    return nodes, links


def _raising(
    asked: Around, behind: list[dict[str, Any]], places: Places, shift: int, nodes: Nodes, links: Links
) -> int:
    """From the release on: the body's error, if it failed. Answers how far that reaches."""
    key = asked.key
    if not asked.again:
        nodes += [
            stitches.choice(key, FAILED, asked.failed, places.take(5 + shift)),
            stitches.stop(key, RAISE, asked.error, places.take(6 + shift, -1)),
        ]
        links |= {RELEASE: [[to(FAILED)]], FAILED: [[to(RAISE)], behind]}
        return shift
    # n8n retries at the node that failed, with what came in there: so what the body was called with comes in there.
    if asked.per_item:
        # Each round must use up both inputs of the gate, or a later round would find an earlier one's item in it.
        shift += 1
        sent = stitches.gate(key, SENT, places.take(4 + shift))
        links |= {RELEASE: [[to(SENT)]], SENT: [[to(FAILED)]], FAILED: [[to(AGAIN)], behind]}
    else:
        sent = stitches.gate(key, SENT, places.take(6 + shift, -1))
        links |= {RELEASE: [[to(FAILED)]], FAILED: [[to(SENT)], behind], SENT: [[to(AGAIN)]]}
    nodes += [
        sent,
        stitches.choice(key, FAILED, asked.failed, places.take(5 + shift)),
        _raise_or_retry(asked, places.take(7 + shift, -1)),
    ]
    links |= {AGAIN: [behind]} if behind else {}
    return shift


def _raise_or_retry(asked: Around, position: list[int]) -> dict[str, Any]:
    """Fails as the body did. Retried, it is in another execution than the one that took the lock; then it runs again
    what failed, under a lock of its own.
    """
    lock = {
        "retried": f"{GRANT}.execution_id !== $execution.id",
        "error": asked.error,
        "scope": f"{GRANT}.scope",
        **{name: code.removeprefix("={{ ").removesuffix(" }}") for name, code in CALLER.items()},
    }
    told = ", ".join(f"{name}: {code}" for name, code in lock.items())
    inputs = {"lock": f"={{{{ {{ {told} }} }}}}", "sent": "={{ $json }}"}
    call: dict[str, Any] = {
        "workflowId": stitches.workflow_id(asked.again),
        "workflowInputs": {"mappingMode": "defineBelow", "value": inputs, "matchingColumns": [], "schema": []},
        "mode": "once",
        "options": {},
    }
    return stitches.node(asked.key, AGAIN, "executeWorkflow", 1.2, call, position)


def _calling(asked: Around, position: list[int]) -> dict[str, Any]:
    inner = asked.body
    call = {"workflowId": stitches.workflow_id(inner), "mode": "once", "options": {}}
    ended = "{ ended: true, result: $json }" if asked.result else "{ ended: true }"
    nodes = [
        stitches.called_trigger(inner, "Called", [0, 0]),
        stitches.node(inner, "Body", "executeWorkflow", 1.2, call, [220, 0]),
        stitches.rewrite(inner, "Ended", ended, [440, 0], executeOnce=not asked.result),
    ]
    links = {"Called": [[to("Body")]], "Body": [[to("Ended")]]}
    if asked.confirms:
        nodes += stitches.not_by_itself(inner, [0, 180], [220, 180])
        links |= {"Called": [[to(BY_ITSELF)]], BY_ITSELF: [[to("Body")], [to(UNLOCKED)]]}
    between = {
        # Some expressions want one; n8n itself takes the caller's where there is none.
        "id": stitches.workflow_id(inner)["value"],
        "name": "Until the body has ended",
        "nodes": nodes,
        "connections": {name: {MAIN: outputs} for name, outputs in links.items()},
        "settings": {"executionOrder": "v1", **(UNSAVED if asked.options["transport"] == "http" else {})},
    }
    return stitches.node(
        asked.key,
        BODY,
        "executeWorkflow",
        1.2,
        {"source": "parameter", "workflowJson": json.dumps(between, indent=2), "mode": "once", "options": {}},
        position,
        onError="continueRegularOutput",
        alwaysOutputData=True,
    )
