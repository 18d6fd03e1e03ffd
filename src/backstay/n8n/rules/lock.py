"""Where locks are taken and freed: on every way through the graph, once, and by the same name."""

from __future__ import annotations

from collections.abc import Iterator

from backstay.n8n.analysis.expressions import named_nodes, words
from backstay.n8n.analysis.graph import Call, Reading
from backstay.n8n.analysis.lock_state import Held
from backstay.n8n.json_types import text
from backstay.n8n.rules.findings import Finding, Rule

NOT_RELEASED = Rule(
    "acquire-without-release",
    "error",
    "a way from an acquire to an end that passes no release: the lock stays until its TTL ends",
    "Lead every branch to the release; or remove the lock and let backstay n8n add-lock-to-workflow place it.",
)
NOT_ACQUIRED = Rule(
    "release-without-acquire",
    "error",
    "a release that can be reached without the acquire: what runs before it was not protected",
    "Lead every trigger through the acquire; a Merge behind it must choose a branch and wait for all inputs.",
)
IN_LOOP = Rule(
    "lock-in-loop",
    "error",
    "a loop that comes back to the acquire while the lock is held: the second round waits for the first one's lock",
    "Take the lock before the loop, or free it inside the loop (add-lock-to-workflow --per-item).",
)
PIECEWISE = Rule(
    "lock-per-round",
    "warning",
    "a lock with a fixed scope that each round of a loop takes and frees: others come in between",
    "Take the lock before the loop and free it behind it, if the rounds belong together.",
)
TWICE = Rule(
    "lock-taken-twice",
    "error",
    "a scope that is taken again while this execution holds it: it waits for itself",
    "Keep the outer acquire and its release, and delete the inner pair.",
)
NESTED = Rule(
    "nested-locks",
    "warning",
    "a second lock while another is held: two workflows that take them in turned order wait for one another",
    "Take them in the same order in every workflow, or use one scope for both.",
)
MISMATCH = Rule(
    "scope-mismatch",
    "error",
    "a release of another scope than its acquire took",
    "Let the release read the scope from the acquire: ={{ $('Lock Acquire').first().json.scope }}",
)
RECOMPUTED = Rule(
    "scope-recomputed",
    "warning",
    "a release that computes the scope anew from items that the body may have changed",
    "Let the release read the scope from the acquire: ={{ $('Lock Acquire').first().json.scope }}",
)
NO_LOCK_ID = Rule(
    "release-without-lock-id",
    "error",
    "a release that does not say whose lock it frees",
    "Pass lock_id: ={{ $('Lock Acquire').first().json.lock_id }}",
)
GOES_ON = Rule(
    "acquire-failure-ignored",
    "error",
    "an acquire that goes on when it fails (`onError`, `continueOnFail`): the body then runs without the lock",
    "Let the acquire stop the workflow, or lead its error output past the body.",
)
UNCONFIRMED = Rule(
    "unconfirmed-grant",
    "error",
    "an acquire over HTTP whose grant nobody confirms: it lapses after a minute, while the body runs",
    "POST to /api/locks/<scope>/confirm right behind it; add-lock-to-workflow places that as Lock Confirm.",
)
PER_ITEM = Rule(
    "acquire-per-item",
    "warning",
    "an acquire without `executeOnce`: of several items the second waits for the first one's lock",
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


def check(reading: Reading) -> Iterator[Finding]:
    if not reading.acquires and not reading.releases:
        return
    held = Held(reading)
    for acquire in reading.acquires.values():
        yield from _acquire(reading, acquire)
        yield from _ends(reading, held, acquire)
        yield from _again(reading, held, acquire)
    for release in reading.releases.values():
        yield from _release(reading, held, release)


def _acquire(reading: Reading, acquire: Call) -> Iterator[Finding]:
    node = acquire.node
    if node.data.get("onError") == "continueRegularOutput" or node.data.get("continueOnFail") is True:
        message = f"{node.name!r} goes on when it cannot take the lock"
        yield GOES_ON.found(message, node=node.name, path=reading.path(node, "onError"))
    if acquire.transport == "http" and not _confirmed(reading, node.name):
        message = f"nothing behind {node.name!r} confirms its grant"
        yield UNCONFIRMED.found(message, node=node.name, path=reading.path(node))
    if node.data.get("executeOnce") is not True and node.name not in reading.behind(node.name):
        message = f"{node.name!r} runs for every item"
        yield PER_ITEM.found(message, node=node.name, path=reading.path(node, "executeOnce"))


def _confirmed(reading: Reading, name: str) -> bool:
    behind = (reading.node(each) for each in reading.behind(name))
    return any(
        node is not None and node.kind == "httpRequest" and text(node.parameters.get("url")).endswith("/confirm")
        for node in behind
    )


def _ends(reading: Reading, held: Held, acquire: Call) -> Iterator[Finding]:
    name = acquire.node.name
    ends = held.ends(name)
    if not ends and not any(name in held.frees.get(each, ()) for each in reading.behind(name)):
        yield NOT_RELEASED.found(f"no release can be reached from {name!r}", node=name, path=reading.path(acquire.node))
    for end in ends:
        node = end.node
        steps = " → ".join(held.way(name, node.name) or [name])
        if node.kind == "stopAndError":
            continue
        turn = f" ({end.why} leads nowhere)" if end.why else ""
        message = f"{name!r} is not released on the way {steps}{turn}"
        yield NOT_RELEASED.found(message, node=node.name, path=reading.path(node))


def _again(reading: Reading, held: Held, acquire: Call) -> Iterator[Finding]:
    name = acquire.node.name
    path = reading.path(acquire.node)
    before = held.may[name]
    if name in before:
        steps = " → ".join(held.way(name, name))
        yield IN_LOOP.found(f"{name!r} is reached again while its lock is held: {steps}", node=name, path=path)
    elif acquire.scope is not None and acquire.scope.fixed and name in reading.behind(name):
        message = f"each round of a loop takes and frees {acquire.scope.shown} at {name!r}"
        yield PIECEWISE.found(message, node=name, path=path)
    for other in sorted(before - {name}):
        outer = reading.acquires[other]
        if outer.scope is not None and acquire.scope is not None and outer.scope.same == acquire.scope.same:
            message = f"{name!r} takes {acquire.scope.shown}, which {other!r} holds already"
            yield TWICE.found(message, node=name, path=path)
        else:
            yield NESTED.found(f"{name!r} takes a lock while {other!r} holds one", node=name, path=path)


def _release(reading: Reading, held: Held, release: Call) -> Iterator[Finding]:
    name = release.node.name
    path = reading.path(release.node)
    expected = held.frees[name]
    by_caller = not reading.acquires and any(node.kind == "executeWorkflowTrigger" for node in reading.nodes)
    if not by_caller and not (expected and expected & held.passed[name]):
        taken = " or ".join(repr(each) for each in sorted(expected)) or "any acquire"
        yield NOT_ACQUIRED.found(f"{name!r} can be reached without {taken}", node=name, path=path)
    inputs = release.inputs
    if inputs is None:
        return
    if not inputs.get("lock_id"):
        yield NO_LOCK_ID.found(f"{name!r} passes no lock_id", node=name, path=f"{path}.parameters.workflowInputs")
    scope = release.scope
    if scope is None or _named_in(inputs.get("scope")) & reading.acquires.keys():
        return
    taken_scopes = {each.scope.same: each.scope for each in reading.acquires.values() if each.scope is not None}
    where = f"{path}.parameters.workflowInputs.value.scope"
    if taken_scopes and scope.same not in taken_scopes:
        shown = " or ".join(sorted(each.shown for each in taken_scopes.values()))
        yield MISMATCH.found(f"{name!r} frees {scope.shown}, and {shown} was taken", node=name, path=where)
    elif scope.fixed is None and scope.same in taken_scopes:
        yield RECOMPUTED.found(f"{name!r} computes {scope.shown} a second time", node=name, path=where)


def _named_in(value: object) -> set[str]:
    """The nodes that one input is read from."""
    return {name for name, _ in named_nodes(words(value))} if isinstance(value, str) else set()
