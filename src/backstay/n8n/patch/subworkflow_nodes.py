"""Build the nodes that call a body (the locked part of a workflow) after it has moved to a sub-workflow. They acquire
the lock, call the body, release the lock, and raise the body's error. `make.gate` builds a Merge node, which holds
items back until another node has run; it is not the gate of a lock.

The node `Locked Body` calls the body through a workflow of three nodes that is embedded in the call. The last of them
runs only after a success and marks the result, so an item of the body that looks like an error is never mistaken for
a failure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from backstay.n8n.analysis.body import BodyEntry
from backstay.n8n.model import MAIN, N8nWorkflow
from backstay.n8n.patch import nodes as make
from backstay.n8n.patch.inline import CALLER, GRANT, build_acquire, build_release
from backstay.n8n.patch.nodes import (
    BODY_FAILED,
    BODY_GAVE_ITEMS,
    BODY_RESULT,
    CALLED_BY_LOCK,
    EACH_ITEM,
    LOCK_ACQUIRE,
    LOCK_CONFIRM,
    LOCK_CONFIRMED,
    LOCK_GATE,
    LOCK_RELEASE,
    LOCK_RESULT,
    LOCKED_BODY,
    MARK,
    RAISE_BODY_ERROR,
    RAISE_NO_LOCK,
    RAISE_OR_RETRY,
    WHAT_WAS_SENT,
    link_to,
    number_name,
)
from backstay.n8n.patch.placement import Placement
from backstay.n8n.patch.record import added_nodes
from backstay.n8n.patch.retention import UNSAVED

_OUTPUT = f"$({make.js_string(LOCKED_BODY)}).first().json"
#: JavaScript: whether the body failed. n8n then replaces the call's output by one item that contains only an error
#: message.
_FAILED = f"{_OUTPUT}.ended !== true && typeof {_OUTPUT}.error === 'string' && Object.keys({_OUTPUT}).length === 1"
_ERROR = f"{_OUTPUT}.error || 'The locked body failed'"
#: JavaScript: whether the server confirmed the grant. The node LOCK_CONFIRM emits the server's response on its first
#: output, an error on its second.
_CONFIRMED = f"$({make.js_string(LOCK_CONFIRM)}).all(0).length > 0"
_REFUSED = f"$({make.js_string(LOCK_CONFIRM)}).first(1).json.error"
_UNCONFIRMED = f"'The lock was not confirmed: ' + ({_REFUSED}.message ?? {_REFUSED})"

Nodes = list[dict[str, Any]]
Links = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LockedBodySpec:
    """The options of the nodes that call a body (the locked part of a workflow) as a sub-workflow.

    key: the seed from which the nodes' ids are derived.
    body: the key of the sub-workflow to call.
    options: the options of the lock, by name.
    scope: the lock's scope as an n8n parameter: a text or an expression.
    marked: whether each item is wrapped as {trigger, sent}: the index of the trigger that it came from, and the item.
    result: whether the body's items are passed on after the release, because the caller or a response node reads them.
    retry_workflow: the key of the workflow that raises the body's error or retries the body; empty for none.
    shift: by how many canvas columns these nodes are moved to the right, to leave space for other nodes.
    then: the node that runs after the release if the body succeeded; not used with `result`; empty for none.
    holder: n8n expressions for the lock holder's execution id, workflow id and workflow name.
    answer: the name of the webhook's response node, which receives the body's items; empty for none.
    """

    key: str
    body: str
    options: dict[str, Any]
    scope: str
    marked: bool = False
    result: bool = False
    retry_workflow: str = ""
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


def build_locked_body(workflow: N8nWorkflow, spec: LockedBodySpec, found: list[BodyEntry]) -> tuple[Nodes, Links]:
    """Return the nodes that acquire the lock, call the body and release the lock, with their connections. The
    connections of the workflow that led to the body are changed in place, so that they lead to these nodes.
    """
    key = spec.key
    placement = Placement(workflow, added_nodes(workflow))
    shift = spec.shift + (1 if spec.per_item else 0)
    gates = [number_name(LOCK_GATE, place) for place in range(1 if spec.per_item else len(found))]
    nodes, links = build_acquire(
        key, spec.options, spec.scope, gates, placement, 1 + shift, spec.holder, continue_on_error=True
    )
    if spec.per_item:
        nodes.insert(
            0, make.node(key, EACH_ITEM, "splitInBatches", 3, {"batchSize": 1, "options": {}}, placement.take(1))
        )
        links[EACH_ITEM] = [
            [link_to(BODY_GAVE_ITEMS)] if spec.result else [],
            [link_to(LOCK_ACQUIRE), link_to(LOCK_GATE, 1)],
        ]
    keep_input = [link_to(WHAT_WAS_SENT, 1)] if spec.retry_workflow else []
    into = [link_to(LOCK_CONFIRMED)] if spec.confirms else [link_to(LOCKED_BODY), *keep_input]
    for place, gate in enumerate(gates):
        nodes.append(make.gate(key, gate, placement.take(2 + shift, place)))
        links[gate] = [into]
        if spec.marked:
            mark = number_name(MARK, place)
            nodes.append(make.set_json(key, mark, f"{{ trigger: {place}, sent: $json }}", placement.take(3, place)))
            links |= {gate: [[link_to(mark)]], mark: [into]}
    for place, entry in enumerate(found):
        for node, output in entry.ports:
            leads = [link_to(EACH_ITEM)] if spec.per_item else [link_to(LOCK_ACQUIRE), link_to(gates[place], 1)]
            workflow.connections[node][MAIN][output] = leads
    shift += 1 if spec.marked else 0
    if spec.confirms:
        # If the Confirm node failed the execution, n8n's retry would begin there and confirm a grant that has lapsed.
        # So a failed confirmation continues instead: the grant is released, and the error is raised like the body's.
        nodes.append(make.condition(key, LOCK_CONFIRMED, _CONFIRMED, placement.take(3 + shift)))
        links[LOCK_CONFIRMED] = [[link_to(LOCKED_BODY), *keep_input], [link_to(LOCK_RELEASE), *keep_input]]
        shift += 1
    nodes += [_build_body_call(spec, placement.take(3 + shift)), build_release(key, placement, 4 + shift)]
    then = LOCK_RESULT if spec.result else EACH_ITEM if spec.per_item else spec.then
    behind = [link_to(then)] if then else []
    links |= {LOCKED_BODY: [[link_to(LOCK_RELEASE)]]}
    shift = _add_error_path(spec, behind, placement, shift, nodes, links)
    if spec.result:
        nodes += [
            make.gate(key, LOCK_RESULT, placement.take(6 + shift)),
            make.condition(key, BODY_GAVE_ITEMS, "$json.ended === true", placement.take(7 + shift), kind="filter"),
            make.set_json(key, BODY_RESULT, "$json.result", placement.take(8 + shift)),
        ]
        links |= {
            LOCKED_BODY: [[link_to(LOCK_RELEASE), link_to(LOCK_RESULT, 1)]],
            LOCK_RESULT: [[link_to(EACH_ITEM if spec.per_item else BODY_GAVE_ITEMS)]],
            BODY_GAVE_ITEMS: [[link_to(BODY_RESULT)]],
        }
        links |= {BODY_RESULT: [[link_to(spec.answer)]]} if spec.answer else {}
        if spec.confirms:
            links[LOCK_CONFIRM][1].append(
                link_to(LOCK_RESULT, 1)
            )  # the Merge node LOCK_RESULT needs an item at its second input, also when the body did not run
    return nodes, links


def _add_error_path(
    spec: LockedBodySpec, behind: list[dict[str, Any]], placement: Placement, shift: int, nodes: Nodes, links: Links
) -> int:
    """Append to `nodes` and `links` the nodes that raise the body's error after the lock is released. `behind`: the
    connections to the node that runs if the body succeeded. Return the new `shift`: by how many canvas columns all
    later nodes are moved to the right.
    """
    key = spec.key
    if not spec.retry_workflow:
        nodes += [
            make.condition(key, BODY_FAILED, spec.failed, placement.take(5 + shift)),
            make.stop_and_error(key, RAISE_BODY_ERROR, spec.error, placement.take(6 + shift, -1)),
        ]
        links |= {LOCK_RELEASE: [[link_to(BODY_FAILED)]], BODY_FAILED: [[link_to(RAISE_BODY_ERROR)], behind]}
        return shift
    # n8n retries an execution at the failed node, with that node's input, and the retry must run the body again. So the
    # input of the node that raises the error is the body's input.
    if spec.per_item:
        # `WHAT_WAS_SENT` is a Merge node: it waits for both inputs and passes on the second, which is the body's input.
        # Let it run for every item, even if the body succeeded. Otherwise the input of such an item would still wait at
        # this node when a later item fails.
        shift += 1
        sent = make.gate(key, WHAT_WAS_SENT, placement.take(4 + shift))
        links |= {
            LOCK_RELEASE: [[link_to(WHAT_WAS_SENT)]],
            WHAT_WAS_SENT: [[link_to(BODY_FAILED)]],
            BODY_FAILED: [[link_to(RAISE_OR_RETRY)], behind],
        }
    else:
        sent = make.gate(key, WHAT_WAS_SENT, placement.take(6 + shift, -1))
        links |= {
            LOCK_RELEASE: [[link_to(BODY_FAILED)]],
            BODY_FAILED: [[link_to(WHAT_WAS_SENT)], behind],
            WHAT_WAS_SENT: [[link_to(RAISE_OR_RETRY)]],
        }
    nodes += [
        sent,
        make.condition(key, BODY_FAILED, spec.failed, placement.take(5 + shift)),
        _raise_or_retry(spec, placement.take(7 + shift, -1)),
    ]
    links |= {RAISE_OR_RETRY: [behind]} if behind else {}
    return shift


def _raise_or_retry(spec: LockedBodySpec, position: list[int]) -> dict[str, Any]:
    """Build the node that calls the retry workflow after the body has failed. In the execution that acquired the lock,
    the retry workflow raises the body's error. When n8n retries that execution, this node runs in a new execution: then
    `retried` is true, and the retry workflow runs the body under a new lock.
    """
    lock = {
        "retried": f"{GRANT}.execution_id !== $execution.id",
        "error": spec.error,
        "scope": f"{GRANT}.scope",
        **{name: code.removeprefix("={{ ").removesuffix(" }}") for name, code in CALLER.items()},
    }
    fields = ", ".join(f"{name}: {code}" for name, code in lock.items())
    inputs = {"lock": f"={{{{ {{ {fields} }} }}}}", "sent": "={{ $json }}"}
    call: dict[str, Any] = {
        "workflowId": make.workflow_id(spec.retry_workflow),
        "workflowInputs": {"mappingMode": "defineBelow", "value": inputs, "matchingColumns": [], "schema": []},
        "mode": "once",
        "options": {},
    }
    return make.node(spec.key, RAISE_OR_RETRY, "executeWorkflow", 1.2, call, position)


def _build_body_call(spec: LockedBodySpec, position: list[int]) -> dict[str, Any]:
    inner = spec.body
    call = {"workflowId": make.workflow_id(inner), "mode": "once", "options": {}}
    ended = "{ ended: true, result: $json }" if spec.result else "{ ended: true }"
    nodes = [
        make.called_trigger(inner, "Called", [0, 0]),
        make.node(inner, "Body", "executeWorkflow", 1.2, call, [220, 0]),
        make.set_json(inner, "Ended", ended, [440, 0], executeOnce=not spec.result),
    ]
    links = {"Called": [[link_to("Body")]], "Body": [[link_to("Ended")]]}
    if spec.confirms:
        nodes += make.build_retry_check(inner, [0, 180], [220, 180])
        links |= {"Called": [[link_to(CALLED_BY_LOCK)]], CALLED_BY_LOCK: [[link_to("Body")], [link_to(RAISE_NO_LOCK)]]}
    between = {
        # Without an id, `$workflow.id` in the embedded workflow would be the caller's id.
        "id": make.workflow_id(inner)["value"],
        "name": "Until the body has ended",
        "nodes": nodes,
        "connections": {name: {MAIN: outputs} for name, outputs in links.items()},
        "settings": {"executionOrder": "v1", **(UNSAVED if spec.options["transport"] == "http" else {})},
    }
    return make.node(
        spec.key,
        LOCKED_BODY,
        "executeWorkflow",
        1.2,
        {"source": "parameter", "workflowJson": json.dumps(between, indent=2), "mode": "once", "options": {}},
        position,
        onError="continueRegularOutput",
        alwaysOutputData=True,
    )
