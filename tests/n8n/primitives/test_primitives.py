"""The primitives as files: the properties that n8n and the workspace rely on; no engine runs here."""

from __future__ import annotations

import re

import pytest

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.primitives import KEYS, VERSION, PrimitiveIdentity, identify, primitive
from backstay.n8n.primitives.builder import expression
from backstay.n8n.primitives.identity import TRANSPORTS
from backstay.n8n.rules.validate import WorkspaceContext, validate
from backstay.n8n.workspace.hydrate import find_placeholders

ALL = [(key, transport) for key in KEYS for transport in TRANSPORTS]

#: Node names of the reference implementation by primitive, for the same roles on Redis.
ROLES = {
    "lock_acquisition": """
        Execute Workflow Trigger, Build Lock Context, INCR Acquire Attempt, Evaluate Acquired, Acquired?, Set Lock Meta,
        Build Acquire Output, Should Wait?, Fail Fast — Lock Held, Wait Before Poll, GET Lock, Check Wait State,
        Timeout?, Wait Timeout — Stop, Retry INCR?""",
    "lock_release": """
        Execute Workflow Trigger, Build Release Context, GET Lock Meta, Parse + Verify Ownership, Match?,
        DEL Lock Counter, DEL Lock Meta, Build Result, Ownership Mismatch — Stop""",
    "error_handler_lock_cleanup": """
        Error Trigger, Prepare Scope List, Has Scopes?, GET Scope Meta, Filter Owned Scopes, Owned?, DEL Owned Counter,
        DEL Owned Meta, Log Cleanup""",
    "rate_limit_check": "Execute Workflow Trigger, Build Bucket Key, Redis INCR, Build Result",
}
INPUTS = {
    "lock_acquisition": """
        scope ttl_seconds execution_id wait_till_lock_released max_wait_seconds lock_id workflow_id workflow_name""",
    "lock_release": "scope lock_id",
    "error_handler_lock_cleanup": "",
    "rate_limit_check": "scope limit windowSeconds",
}


@pytest.fixture(params=ALL, ids=[f"{key}-{transport}" for key, transport in ALL])
def one(request):
    return request.param


def test_a_primitive_is_the_same_file_every_time(one):
    text = primitive(*one).text()
    assert primitive(*one).text() == text
    again = N8nWorkflow.parse(text)
    assert again.exact
    assert again.text() == text
    assert "id" not in again.data


def test_a_primitive_names_itself_in_its_metadata(one):
    assert identify(primitive(*one)) == PrimitiveIdentity(*one, VERSION)


def test_a_primitive_is_recognised_after_a_round_trip_through_n8n(one):
    """n8n's API keeps only name, nodes, connections and settings."""
    sent = primitive(*one)
    back = N8nWorkflow({field: sent.data[field] for field in ("name", "nodes", "connections", "settings")})
    assert identify(back) == PrimitiveIdentity(*one, VERSION)


def test_other_workflows_are_not_recognised_as_primitives():
    assert identify(N8nWorkflow({"nodes": [], "connections": {}})) is None
    strange = N8nWorkflow(
        {"nodes": [], "connections": {}, "meta": {"backstay": {"primitive": "x", "transport": "redis"}}}
    )
    assert identify(strange) is None


@pytest.mark.parametrize("key", KEYS)
def test_nodes_have_the_names_of_the_reference_for_the_same_roles(key):
    names = {node.name for node in primitive(key, "redis").nodes}
    assert {" ".join(name.split()) for name in ROLES[key].split(",")} <= names


def test_inputs_have_the_names_of_the_reference(one):
    (trigger,) = primitive(*one).triggers
    values = trigger.parameters.get("workflowInputs", {"values": []})["values"]
    assert [value["name"] for value in values] == INPUTS[one[0]].split()


def test_no_node_needs_a_task_runner_and_no_wait_suspends(one):
    workflow = primitive(*one)
    assert not [node.name for node in workflow.nodes if node.kind in ("code", "function", "functionItem")]
    for node in workflow.nodes:
        if node.kind == "wait":
            numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", str(node.parameters["amount"]))]
            assert numbers
            assert max(numbers) < 65


def test_primitives_use_only_placeholders_that_a_workspace_defines(one):
    _, transport = one
    found = {path for kind, path in find_placeholders(primitive(*one).data) if kind == "env"}
    credential = "redis" if transport == "redis" else "backstay"
    known = {f"credentials.{credential}.id", f"credentials.{credential}.name"}
    known |= {"backstay.url"} if transport == "http" else set()
    known |= {"lockScopes"} if one == ("error_handler_lock_cleanup", "redis") else set()
    assert found == known


def test_every_node_has_a_unique_name_id_and_position(one):
    nodes = primitive(*one).nodes
    for found in (
        [node.name for node in nodes],
        [node.id for node in nodes],
        [node.position for node in nodes],
    ):
        assert len(set(found)) == len(nodes)


def test_validate_has_no_findings_for_primitives(one):
    assert validate(primitive(*one), WorkspaceContext()) == []


def test_an_expression_that_contains_its_own_delimiter_is_refused():
    with pytest.raises(ValueError, match="early"):
        expression("{ a: { b: 1 }}")


def test_an_unknown_primitive_is_refused():
    with pytest.raises(KeyError):
        primitive("mutex", "redis")
