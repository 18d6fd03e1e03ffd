"""Rules for a workflow's settings, credentials, placeholders and pinned data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from backstay.errors import PatchRefused
from backstay.n8n.analysis.expressions import PLACEHOLDER, WORKFLOW_ID, iter_strings, join_path
from backstay.n8n.analysis.graph import CLEANUP, WorkflowGraph
from backstay.n8n.json_types import as_list, as_mapping, as_text
from backstay.n8n.model import N8nNode
from backstay.n8n.patch.patch import read_limit_options, read_lock_options
from backstay.n8n.patch.record import PARTS, read_record
from backstay.n8n.patch.retention import required_settings
from backstay.n8n.primitives.identity import VERSION
from backstay.n8n.rules.findings import RuleFinding, ValidationRule

ORDER = ValidationRule(
    "execution-order",
    "error",
    "`settings.executionOrder` is not `v1`, which locks and limits require",
    "Set settings.executionOrder to v1 (in n8n: workflow settings, Execution Order, v1 (recommended)).",
)
OLD_ORDER = ValidationRule(
    "legacy-order",
    "warning",
    "`settings.executionOrder` is not `v1` in a workflow without locks: adding a lock changes its execution order",
    ORDER.hint,
)
PLACEHOLDER_LEFT = ValidationRule(
    "unresolved-placeholder",
    "error",
    "a built file with an unresolved placeholder",
    "Run backstay n8n hydrate again; if it remains, add the value to the environment's YAML.",
)
UNKNOWN_WORKFLOW = ValidationRule(
    "unknown-workflow",
    "error",
    "a placeholder for a workflow that the workspace does not have",
    "Install it (backstay n8n create-lock for the primitives), or register it in the environment's YAML.",
)
STALE = ValidationRule(
    "stale-build",
    "error",
    "a built file whose lock or limit calls a workflow that the workspace no longer has, for example after remove-lock",
    "Run backstay n8n hydrate again.",
)
NO_WORKFLOW = ValidationRule(
    "call-without-workflow",
    "error",
    "an Execute Workflow node that names no workflow",
    "Select the workflow to call.",
)
NO_CREDENTIALS = ValidationRule(
    "missing-credentials",
    "error",
    "a node that needs credentials but has none, or has credentials without an id",
    "Set them in the node; backstay n8n manage-credentials create creates them and writes their id to the YAML.",
)
NO_HANDLER = ValidationRule(
    "no-error-workflow",
    "warning",
    "a locked workflow without an error workflow, although the workspace has one that releases locks",
    "Run backstay n8n register-error-handler, or add the lock with --lock-on-error.",
)
UNKNOWN_HANDLER = ValidationRule(
    "unknown-error-workflow",
    "error",
    "`settings.errorWorkflow` names a workflow that the workspace does not have",
    "Run backstay n8n create-lock --include-error-handler, then register-error-handler.",
)
UNSAVED = ValidationRule(
    "unsaved-failures",
    "error",
    "failed executions are not saved (`saveDataErrorExecution`), so they cannot be inspected and the error workflow may"
    " not learn whose locks to release; does not apply where add-lock-to-workflow set this over HTTP",
    "Set settings.saveDataErrorExecution to all.",
)
NO_TIMEOUT = ValidationRule(
    "no-execution-timeout",
    "warning",
    "a lock over Redis without `settings.executionTimeout`: its nodes hang while Redis is unavailable",
    "Set settings.executionTimeout, in seconds, above the longest wait plus the longest run; or use --transport http.",
)
OLD_PRIMITIVE = ValidationRule(
    "old-primitive",
    "warning",
    "a primitive from another version of Backstay",
    "Run backstay n8n create-lock --force-overwrite, then push.",
)
UNREADABLE = ValidationRule(
    "unreadable-record",
    "error",
    "the record of a lock or a limit in `meta.backstay` cannot be read: a newer Backstay wrote it, or it was edited",
    "Remove the lock with the Backstay version that added it, or restore an earlier file; then add it again.",
)
PINNED = ValidationRule(
    "pinned-data",
    "warning",
    "`pinData`: the file contains test items that manual executions use instead of real data",
    "Unpin the data in the editor, or delete pinData from the file.",
)
LONG_ID = ValidationRule(
    "long-id",
    "error",
    "a workflow id of more than 16 characters, which n8n rejects",
    "Use the id that n8n assigned, or one of up to 16 characters.",
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
#: Matches the id of each workflow that an embedded workflow (`workflowJson`) calls.
_CALLED = re.compile(r'"mode": "id",\s*"value": "([^"]+)"')
#: The credentials that each node kind requires.
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


def check(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    settings = graph.workflow.settings
    if settings.get("executionOrder") != "v1":
        given = settings.get("executionOrder", "not set, which means v0")
        bound = graph.acquires or graph.releases or graph.limits or graph.is_primitive
        yield (ORDER if bound else OLD_ORDER).report(f"executionOrder is {given}", path="settings.executionOrder")
    if graph.workflow.data.get("pinData"):
        names = ", ".join(repr(name) for name in as_mapping(graph.workflow.data["pinData"])) or "some node"
        yield PINNED.report(f"data is pinned for {names}", path="pinData")
    if len(graph.workflow.id) > LONGEST_ID and not PLACEHOLDER.search(graph.workflow.id):
        yield LONG_ID.report(f"the id {graph.workflow.id!r} has {len(graph.workflow.id)} characters", path="id")
    yield from _placeholders(graph)
    yield from _check_call_targets(graph)
    yield from _calls(graph)
    yield from _credentials(graph)
    yield from _error_workflow(graph, settings)
    yield from _timeout(graph, settings)
    yield from _versions(graph)


def _placeholders(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    known = graph.context.keys
    for path, value in iter_strings(graph.workflow.data):
        node = _find_node_name(graph, path)
        if graph.context.built and (left := PLACEHOLDER.search(value)):
            yield PLACEHOLDER_LEFT.report(f"{left[0]} was not replaced", node=node, path=path)
        elif known and path != "settings.errorWorkflow":
            for key in sorted(set(WORKFLOW_ID.findall(value)) - known):
                yield UNKNOWN_WORKFLOW.report(f"the workspace has no workflow {key!r}", node=node, path=path)


def _find_node_name(graph: WorkflowGraph, path: str) -> str:
    """Return the name of the node that a path such as `nodes[2].parameters` is in; "" for a path outside of nodes."""
    if not path.startswith("nodes["):
        return ""
    return graph.nodes[int(path[len("nodes[") : path.index("]")])].name


def _check_call_targets(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    """Report nodes that Backstay added with a lock or rate limit, if they call a workflow that is not in the workspace.
    The user's own nodes may call any workflow.
    """
    parts = (as_mapping(read_record(graph.workflow).get(name)) for name in PARTS)
    ours = {name for recorded in parts for name in as_list(recorded.get("nodes")) if isinstance(name, str)}
    known = set(graph.context.workflow_ids.values())
    for call in graph.calls if graph.context.built and known else ():
        given = as_text(call.node.parameters.get("workflowJson"))
        called = [call.target, *_CALLED.findall(given)]
        for target in (one for one in called if one and call.node.name in ours and one not in known):
            message = f"{call.node.name!r} calls {target!r}, which is not a workflow of this workspace"
            yield STALE.report(message, node=call.node.name, path=graph.path(call.node, "parameters"))


def _calls(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    for call in graph.calls:
        source = call.node.parameters.get("source", "database")
        if not call.target and source == "database" and not call.node.disabled:
            path = graph.path(call.node, "parameters", "workflowId")
            yield NO_WORKFLOW.report(f"{call.node.name!r} calls no workflow", node=call.node.name, path=path)


def _credentials(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    for place, node in graph.active_nodes():
        path = f"nodes[{place}].credentials"
        given = as_mapping(node.data.get("credentials"))
        for needed in _needed(node):
            if needed not in given:
                message = f"{node.name!r} has no {needed} credentials"
                yield NO_CREDENTIALS.report(message, node=node.name, path=path)
        for kind, reference in given.items():
            # Old versions of n8n stored only the credential's name, as a string instead of an object.
            if not as_text(as_mapping(reference).get("id")).strip():
                message = f"the {kind} credentials of {node.name!r} have no id"
                yield NO_CREDENTIALS.report(message, node=node.name, path=join_path(path, kind))


def _needed(node: N8nNode) -> list[str]:
    if node.kind in _NEEDED:
        return [_NEEDED[node.kind]]
    if node.kind == "httpRequest":
        which = {"genericCredentialType": "genericAuthType", "predefinedCredentialType": "nodeCredentialType"}
        asked = as_text(node.parameters.get(which.get(str(node.parameters.get("authentication")), "")))
        return [asked] if asked else []
    return []


def _error_workflow(graph: WorkflowGraph, settings: dict[str, Any]) -> Iterator[RuleFinding]:
    handler = as_text(settings.get("errorWorkflow"))
    context = graph.context
    if not handler:
        # A retry workflow needs no error workflow of its own: it stores its caller's execution as the lock's holder, so
        # the caller's error workflow releases the lock.
        if graph.acquires and CLEANUP in context.keys and "retry_of" not in read_record(graph.workflow):
            message = "no error workflow is set: a failed execution keeps its lock until the TTL expires"
            yield NO_HANDLER.report(message, path="settings.errorWorkflow")
        return
    key = graph.key_of(handler)
    if context.keys and (key not in context.keys if key else handler != graph.workflow.id):
        message = f"the error workflow {key or handler!r} is not in the workspace"
        yield UNKNOWN_HANDLER.report(message, path="settings.errorWorkflow")
    # For an inline body the patch disables saving on purpose: a saved execution could be retried without the lock.
    meant = "saveDataErrorExecution" in required_settings(graph.workflow)
    if graph.acquires and not meant and settings.get("saveDataErrorExecution") == "none":
        message = "failed executions are not saved, so the error workflow may not release their locks"
        yield UNSAVED.report(message, path="settings.saveDataErrorExecution")


def _timeout(graph: WorkflowGraph, settings: dict[str, Any]) -> Iterator[RuleFinding]:
    for call in graph.acquires.values():
        if call.transport == "http" or _positive(settings.get("executionTimeout")):
            continue
        primitive = graph.context.others.get(call.key)
        if primitive is not None and _positive(primitive.settings.get("executionTimeout")):
            continue
        message = f"{call.node.name!r} waits for Redis without a time limit"
        yield NO_TIMEOUT.report(message, node=call.node.name, path="settings.executionTimeout")


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _versions(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    for read in (read_lock_options, read_limit_options):
        try:
            read(graph.workflow)
        except PatchRefused as error:
            yield UNREADABLE.report(str(error), path="meta.backstay")
    if graph.identity is not None and graph.identity.version != VERSION:
        message = f"{graph.identity.key} is version {graph.identity.version}; this Backstay installs version {VERSION}"
        yield OLD_PRIMITIVE.report(message, path="meta.backstay.version")
