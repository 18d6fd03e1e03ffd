"""Rules for calls of lock_acquisition and lock_release: every path through the workflow releases each lock that it
acquired, exactly once and with the same scope.
"""

from __future__ import annotations

from collections.abc import Iterator

from backstay.n8n.analysis.expressions import expression_tokens, find_referenced_nodes
from backstay.n8n.analysis.graph import WorkflowCall, WorkflowGraph
from backstay.n8n.analysis.lock_state import LockState
from backstay.n8n.json_types import as_text
from backstay.n8n.rules.findings import RuleFinding, ValidationRule

NOT_RELEASED = ValidationRule(
    "acquire-without-release",
    "error",
    "a path from an acquire to an end without a release: the lock stays until its TTL expires",
    "Connect every branch to the release; or remove the lock and let backstay n8n add-lock-to-workflow place it.",
)
NOT_ACQUIRED = ValidationRule(
    "release-without-acquire",
    "error",
    "a release that is reachable without the acquire: the nodes before it run unprotected",
    "Connect every trigger to the acquire; a Merge after it must choose a branch and wait for all inputs.",
)
IN_LOOP = ValidationRule(
    "lock-in-loop",
    "error",
    "a loop that returns to the acquire while the lock is held: the second round waits for itself (self-deadlock)",
    "Acquire before the loop, or release inside the loop (add-lock-to-workflow --per-item).",
)
PIECEWISE = ValidationRule(
    "lock-per-round",
    "warning",
    "a lock with a fixed scope that each round of a loop acquires and releases: other executions run in between",
    "If the rounds belong together, acquire before the loop and release after it.",
)
TWICE = ValidationRule(
    "lock-taken-twice",
    "error",
    "a scope that is acquired again while the same execution holds it: self-deadlock until the wait times out",
    "Keep the outer acquire and its release, and delete the inner pair.",
)
NESTED = ValidationRule(
    "nested-locks",
    "warning",
    "a second lock while another is held: two workflows that acquire them in opposite order deadlock",
    "Acquire them in the same order in every workflow, or use one scope for both.",
)
MISMATCH = ValidationRule(
    "scope-mismatch",
    "error",
    "a release whose scope differs from its acquire's",
    "Let the release read the scope from the acquire: ={{ $('Lock Acquire').first().json.scope }}",
)
RECOMPUTED = ValidationRule(
    "scope-recomputed",
    "warning",
    "a release that evaluates the scope again, from items that the body may have changed",
    "Let the release read the scope from the acquire: ={{ $('Lock Acquire').first().json.scope }}",
)
NO_LOCK_ID = ValidationRule(
    "release-without-lock-id",
    "error",
    "a release without `lock_id`, so ownership cannot be checked",
    "Pass lock_id: ={{ $('Lock Acquire').first().json.lock_id }}",
)
GOES_ON = ValidationRule(
    "acquire-failure-ignored",
    "error",
    "an acquire that continues when it fails (`onError`, `continueOnFail`): the body then runs without the lock",
    "Let the acquire stop the workflow, or connect its error output past the body.",
)
UNCONFIRMED = ValidationRule(
    "unconfirmed-grant",
    "error",
    "an acquire over HTTP without a confirmation: the grant lapses after a minute, while the body runs",
    "POST to /api/locks/<scope>/confirm directly after it; add-lock-to-workflow adds this as Lock Confirm.",
)
PER_ITEM = ValidationRule(
    "acquire-per-item",
    "warning",
    "an acquire without `executeOnce`: the second of several items waits for the first one's lock (self-deadlock)",
    "Turn on Execute Once in the acquire's settings.",
)
RULES = (
    NOT_RELEASED,
    NOT_ACQUIRED,
    IN_LOOP,
    PIECEWISE,
    TWICE,
    NESTED,
    MISMATCH,
    RECOMPUTED,
    NO_LOCK_ID,
    GOES_ON,
    UNCONFIRMED,
    PER_ITEM,
)


def check(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    if not graph.acquires and not graph.releases:
        return
    state = LockState(graph)
    for acquire in graph.acquires.values():
        yield from _acquire(graph, acquire)
        yield from _ends(graph, state, acquire)
        yield from _again(graph, state, acquire)
    for release in graph.releases.values():
        yield from _release(graph, state, release)


def _acquire(graph: WorkflowGraph, acquire: WorkflowCall) -> Iterator[RuleFinding]:
    node = acquire.node
    if node.data.get("onError") == "continueRegularOutput" or node.data.get("continueOnFail") is True:
        message = f"{node.name!r} continues when it cannot acquire the lock"
        yield GOES_ON.report(message, node=node.name, path=graph.path(node, "onError"))
    if acquire.transport == "http" and not _confirmed(graph, node.name):
        message = f"no node after {node.name!r} confirms its grant"
        yield UNCONFIRMED.report(message, node=node.name, path=graph.path(node))
    if node.data.get("executeOnce") is not True and node.name not in graph.descendants(node.name):
        message = f"{node.name!r} runs for every item"
        yield PER_ITEM.report(message, node=node.name, path=graph.path(node, "executeOnce"))


def _confirmed(graph: WorkflowGraph, name: str) -> bool:
    following = (graph.node(each) for each in graph.descendants(name))
    return any(
        node is not None and node.kind == "httpRequest" and as_text(node.parameters.get("url")).endswith("/confirm")
        for node in following
    )


def _ends(graph: WorkflowGraph, state: LockState, acquire: WorkflowCall) -> Iterator[RuleFinding]:
    name = acquire.node.name
    ends = state.dead_ends(name)
    if not ends and not any(name in state.released_by.get(each, ()) for each in graph.descendants(name)):
        yield NOT_RELEASED.report(f"no release can be reached from {name!r}", node=name, path=graph.path(acquire.node))
    for end in ends:
        node = end.node
        steps = " → ".join(state.shortest_path(name, node.name) or [name])
        if node.kind == "stopAndError":
            continue
        turn = f" ({end.why} leads nowhere)" if end.why else ""
        message = f"{name!r} is not released on the path {steps}{turn}"
        yield NOT_RELEASED.report(message, node=node.name, path=graph.path(node))


def _again(graph: WorkflowGraph, state: LockState, acquire: WorkflowCall) -> Iterator[RuleFinding]:
    name = acquire.node.name
    path = graph.path(acquire.node)
    before = state.may_hold[name]
    if name in before:
        steps = " → ".join(state.shortest_path(name, name))
        yield IN_LOOP.report(f"{name!r} is reached again while its lock is held: {steps}", node=name, path=path)
    elif acquire.scope is not None and acquire.scope.literal and name in graph.descendants(name):
        message = f"each round of a loop acquires and releases {acquire.scope.display} at {name!r}"
        yield PIECEWISE.report(message, node=name, path=path)
    for other in sorted(before - {name}):
        outer = graph.acquires[other]
        if outer.scope is not None and acquire.scope is not None and outer.scope.canonical == acquire.scope.canonical:
            message = f"{name!r} acquires {acquire.scope.display}, which {other!r} already holds"
            yield TWICE.report(message, node=name, path=path)
        else:
            yield NESTED.report(f"{name!r} acquires a lock while {other!r} holds one", node=name, path=path)


def _release(graph: WorkflowGraph, state: LockState, release: WorkflowCall) -> Iterator[RuleFinding]:
    name = release.node.name
    path = graph.path(release.node)
    expected = state.released_by[name]
    by_caller = not graph.acquires and any(node.kind == "executeWorkflowTrigger" for node in graph.nodes)
    if not by_caller and not (expected and expected & state.must_have_acquired[name]):
        taken = " or ".join(repr(each) for each in sorted(expected)) or "any acquire"
        yield NOT_ACQUIRED.report(f"{name!r} can be reached without {taken}", node=name, path=path)
    inputs = release.inputs
    if inputs is None:
        return
    if not inputs.get("lock_id"):
        yield NO_LOCK_ID.report(f"{name!r} passes no lock_id", node=name, path=f"{path}.parameters.workflowInputs")
    scope = release.scope
    if scope is None or _find_read_nodes(inputs.get("scope")) & graph.acquires.keys():
        return
    taken_scopes = {each.scope.canonical: each.scope for each in graph.acquires.values() if each.scope is not None}
    where = f"{path}.parameters.workflowInputs.value.scope"
    if taken_scopes and scope.canonical not in taken_scopes:
        shown = " or ".join(sorted(each.display for each in taken_scopes.values()))
        yield MISMATCH.report(f"{name!r} releases {scope.display}, but {shown} was acquired", node=name, path=where)
    elif scope.literal is None and scope.canonical in taken_scopes:
        yield RECOMPUTED.report(f"{name!r} evaluates {scope.display} a second time", node=name, path=where)


def _find_read_nodes(value: object) -> set[str]:
    """Return the names of the nodes whose output the expression of an input reads, as `$('Webhook')` does."""
    return {name for name, _ in find_referenced_nodes(expression_tokens(value))} if isinstance(value, str) else set()
