"""Settings, credentials, placeholders, pinned data: what stands around the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from backstay.errors import PatchRefused
from backstay.n8n.analysis.expressions import PLACEHOLDER, WORKFLOW_ID, joined, strings_of
from backstay.n8n.analysis.graph import CLEANUP, Reading
from backstay.n8n.json_types import items, table, text
from backstay.n8n.model import Node
from backstay.n8n.patch.patch import limits_of, locks_of
from backstay.n8n.patch.record import PARTS, record
from backstay.n8n.patch.retention import wanted_of
from backstay.n8n.primitives.identity import VERSION
from backstay.n8n.rules.findings import Finding, Rule

ORDER = Rule(
    "execution-order",
    "error",
    "`settings.executionOrder` is not `v1`, which the wiring of locks and limits relies on",
    "Set settings.executionOrder to v1 (in n8n: workflow settings, Execution Order, v1 (recommended)).",
)
OLD_ORDER = Rule(
    "legacy-order",
    "warning",
    "the same in a workflow without locks: what it does today may change when one is added",
    ORDER.hint,
)
PLACEHOLDER_LEFT = Rule(
    "unresolved-placeholder",
    "error",
    "a built file in which a placeholder stands still",
    "Run backstay n8n hydrate again; if it stays, add the value to the environment's YAML.",
)
UNKNOWN_WORKFLOW = Rule(
    "unknown-workflow",
    "error",
    "a placeholder of a workflow that the workspace does not have",
    "Install it (backstay n8n create-lock for the primitives), or register it in the environment's YAML.",
)
STALE = Rule(
    "stale-build",
    "error",
    "a built file whose lock or limit calls a workflow that the workspace no longer has, as after its lock was removed",
    "Run backstay n8n hydrate again.",
)
NO_WORKFLOW = Rule(
    "call-without-workflow",
    "error",
    "an Execute Workflow node that names no workflow",
    "Choose the workflow that it calls.",
)
NO_CREDENTIALS = Rule(
    "missing-credentials",
    "error",
    "a node that needs credentials and has none, or has some without an id",
    "Name them in the node; backstay n8n manage-credentials create makes them and notes their id in the YAML.",
)
NO_HANDLER = Rule(
    "no-error-workflow",
    "warning",
    "a locked workflow without an error workflow, although the workspace has one that frees locks",
    "backstay n8n register-error-handler, or --lock-on-error when the lock is added.",
)
UNKNOWN_HANDLER = Rule(
    "unknown-error-workflow",
    "error",
    "`settings.errorWorkflow` names a workflow that the workspace does not have",
    "backstay n8n create-lock --include-error-handler, then register-error-handler.",
)
UNSAVED = Rule(
    "unsaved-failures",
    "error",
    "failed executions are not saved (`saveDataErrorExecution`), so the error workflow may not be told whose locks to"
    " free, and nobody can look at them; not where add-lock-to-workflow has set it over HTTP",
    "Set settings.saveDataErrorExecution to all.",
)
NO_TIMEOUT = Rule(
    "no-execution-timeout",
    "warning",
    "a lock over Redis without `settings.executionTimeout`: while Redis is away its nodes hang",
    "Set settings.executionTimeout, in seconds, above the longest wait and run together; or use --transport http.",
)
OLD_PRIMITIVE = Rule(
    "old-primitive",
    "warning",
    "a primitive that another version of Backstay made",
    "backstay n8n create-lock --force-overwrite, then push.",
)
UNREADABLE = Rule(
    "unreadable-record",
    "error",
    "what `meta.backstay` says of a lock or a limit cannot be read here: a newer Backstay wrote it, or it was edited",
    "Take it off with the Backstay that added it, or take the file from before; then add it again.",
)
PINNED = Rule(
    "pinned-data",
    "warning",
    "`pinData`: items of some test run lie in the file, and manual executions use them in place of what is real",
    "Unpin the data in the editor, or delete pinData from the file.",
)
LONG_ID = Rule(
    "long-id",
    "error",
    "a workflow id of more than 16 characters, which n8n does not take",
    "Use the id that n8n gave it, or one of up to 16 characters.",
)

RULES = (
    ORDER,
    OLD_ORDER,
    PLACEHOLDER_LEFT,
    UNKNOWN_WORKFLOW,
    STALE,
    NO_WORKFLOW,
    NO_CREDENTIALS,
    NO_HANDLER,
    UNKNOWN_HANDLER,
    UNSAVED,
    NO_TIMEOUT,
    OLD_PRIMITIVE,
    UNREADABLE,
    PINNED,
    LONG_ID,
)

LONGEST_ID = 16
#: Whom a workflow that is written into a call calls itself.
_CALLED = re.compile(r'"mode": "id",\s*"value": "([^"]+)"')
#: Nodes that can do nothing without these.
_NEEDED = {
    "redis": "redis",
    "redisTrigger": "redis",
    "postgres": "postgres",
    "mySql": "mySql",
    "mongoDb": "mongoDb",
    "microsoftSql": "microsoftSql",
    "rabbitmq": "rabbitmq",
    "emailSend": "smtp",
    "emailReadImap": "imap",
}


def check(reading: Reading) -> Iterator[Finding]:
    settings = reading.workflow.settings
    if settings.get("executionOrder") != "v1":
        given = settings.get("executionOrder", "not set, which means v0")
        bound = reading.acquires or reading.releases or reading.limits or reading.is_primitive
        yield (ORDER if bound else OLD_ORDER).found(f"executionOrder is {given}", path="settings.executionOrder")
    if reading.workflow.data.get("pinData"):
        names = ", ".join(repr(name) for name in table(reading.workflow.data["pinData"])) or "something"
        yield PINNED.found(f"data is pinned for {names}", path="pinData")
    if len(reading.workflow.id) > LONGEST_ID and not PLACEHOLDER.search(reading.workflow.id):
        yield LONG_ID.found(f"the id {reading.workflow.id!r} has {len(reading.workflow.id)} characters", path="id")
    yield from _placeholders(reading)
    yield from _stale(reading)
    yield from _calls(reading)
    yield from _credentials(reading)
    yield from _error_workflow(reading, settings)
    yield from _timeout(reading, settings)
    yield from _versions(reading)


def _placeholders(reading: Reading) -> Iterator[Finding]:
    known = reading.around.keys
    for path, value in strings_of(reading.workflow.data):
        node = _owner(reading, path)
        if reading.around.built and (left := PLACEHOLDER.search(value)):
            yield PLACEHOLDER_LEFT.found(f"{left[0]} was not replaced", node=node, path=path)
        elif known and path != "settings.errorWorkflow":
            for key in sorted(set(WORKFLOW_ID.findall(value)) - known):
                yield UNKNOWN_WORKFLOW.found(f"the workspace has no workflow {key!r}", node=node, path=path)


def _owner(reading: Reading, path: str) -> str:
    """The node that a path lies in."""
    if not path.startswith("nodes["):
        return ""
    return reading.nodes[int(path[len("nodes[") : path.index("]")])].name


def _stale(reading: Reading) -> Iterator[Finding]:
    """Of our own calls alone: what else a workflow calls may be somebody else's."""
    parts = (table(record(reading.workflow).get(name)) for name in PARTS)
    ours = {name for noted in parts for name in items(noted.get("nodes")) if isinstance(name, str)}
    known = set(reading.around.workflow_ids.values())
    for call in reading.calls if reading.around.built and known else ():
        given = text(call.node.parameters.get("workflowJson"))
        called = [call.target, *_CALLED.findall(given)]
        for target in (one for one in called if one and call.node.name in ours and one not in known):
            message = f"{call.node.name!r} calls {target!r}, which is no workflow of this workspace"
            yield STALE.found(message, node=call.node.name, path=reading.path(call.node, "parameters"))


def _calls(reading: Reading) -> Iterator[Finding]:
    for call in reading.calls:
        source = call.node.parameters.get("source", "database")
        if not call.target and source == "database" and not call.node.disabled:
            path = reading.path(call.node, "parameters", "workflowId")
            yield NO_WORKFLOW.found(f"{call.node.name!r} calls no workflow", node=call.node.name, path=path)


def _credentials(reading: Reading) -> Iterator[Finding]:
    for place, node in reading.active():
        path = f"nodes[{place}].credentials"
        given = table(node.data.get("credentials"))
        for needed in _needed(node):
            if needed not in given:
                message = f"{node.name!r} has no {needed} credentials"
                yield NO_CREDENTIALS.found(message, node=node.name, path=path)
        for kind, reference in given.items():
            # A plain string is how n8n named credentials before it had ids.
            if not text(table(reference).get("id")).strip():
                message = f"the {kind} credentials of {node.name!r} have no id"
                yield NO_CREDENTIALS.found(message, node=node.name, path=joined(path, kind))


def _needed(node: Node) -> list[str]:
    if node.kind in _NEEDED:
        return [_NEEDED[node.kind]]
    if node.kind == "httpRequest":
        which = {"genericCredentialType": "genericAuthType", "predefinedCredentialType": "nodeCredentialType"}
        asked = text(node.parameters.get(which.get(str(node.parameters.get("authentication")), "")))
        return [asked] if asked else []
    return []


def _error_workflow(reading: Reading, settings: dict[str, Any]) -> Iterator[Finding]:
    handler = text(settings.get("errorWorkflow"))
    around = reading.around
    if not handler:
        # A retry takes its lock in the name of its caller, whose error workflow frees it.
        if reading.acquires and CLEANUP in around.keys and "retry_of" not in record(reading.workflow):
            message = "a failed execution keeps its lock until its TTL ends: no error workflow is set"
            yield NO_HANDLER.found(message, path="settings.errorWorkflow")
        return
    key = reading.key_of(handler)
    if around.keys and (key not in around.keys if key else handler != reading.workflow.id):
        message = f"the error workflow {key or handler!r} is not in the workspace"
        yield UNKNOWN_HANDLER.found(message, path="settings.errorWorkflow")
    # Where a body had to stay in its place, what is kept could be retried without the lock.
    meant = "saveDataErrorExecution" in wanted_of(reading.workflow)
    if reading.acquires and not meant and settings.get("saveDataErrorExecution") == "none":
        message = "failed executions are not saved, so their locks are not freed by the error workflow"
        yield UNSAVED.found(message, path="settings.saveDataErrorExecution")


def _timeout(reading: Reading, settings: dict[str, Any]) -> Iterator[Finding]:
    for call in reading.acquires.values():
        if call.transport == "http" or _positive(settings.get("executionTimeout")):
            continue
        primitive = reading.around.others.get(call.key)
        if primitive is not None and _positive(primitive.settings.get("executionTimeout")):
            continue
        message = f"{call.node.name!r} waits for Redis without a time limit"
        yield NO_TIMEOUT.found(message, node=call.node.name, path="settings.executionTimeout")


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _versions(reading: Reading) -> Iterator[Finding]:
    for read in (locks_of, limits_of):
        try:
            read(reading.workflow)
        except PatchRefused as error:
            yield UNREADABLE.found(str(error), path="meta.backstay")
    if reading.identity is not None and reading.identity.version != VERSION:
        message = f"this is version {reading.identity.version} of {reading.identity.key}; this Backstay makes {VERSION}"
        yield OLD_PRIMITIVE.found(message, path="meta.backstay.version")
