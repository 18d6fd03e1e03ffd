"""Rules for Code nodes: the code must be a pure function of its inputs, so that a repeated execution gives the same
result.
"""

from __future__ import annotations

from collections.abc import Iterator

from backstay.n8n.analysis.expressions import PLACEHOLDER, find_referenced_nodes
from backstay.n8n.analysis.graph import WorkflowGraph
from backstay.n8n.analysis.javascript import JavaScriptSyntaxError, Token, tokenize
from backstay.n8n.analysis.purity import ALLOWED, Kind, find_impurities
from backstay.n8n.analysis.python_code import PythonSyntaxError, read_python
from backstay.n8n.model import N8nNode
from backstay.n8n.rules.findings import RuleFinding, ValidationRule
from backstay.n8n.rules.graph import UNKNOWN_REFERENCE

MARKERS = ("@backstay:primitive", "@n8n-evol-I:primitive")

COPIED = ValidationRule(
    "copied-marker",
    "error",
    "a primitive's marker in another node: it exempts only primitives from these rules",
    "Delete the line.",
)
EMPTY = ValidationRule(
    "empty-code",
    "error",
    "a Code node without code",
    "Write code that returns items, or delete the node.",
)
BROKEN = ValidationRule(
    "broken-code",
    "error",
    "code that cannot be parsed, such as an unterminated string, comment or bracket",
    "Fix the code at the line in the message.",
)
DEPRECATED = ValidationRule(
    "deprecated-node",
    "warning",
    "a Function or Function Item node, which n8n has deprecated",
    "Use a Code node; replace Function Item with Run Once for Each Item.",
)
HELPERS = ValidationRule(
    "code-helpers",
    "error",
    "`this.helpers` and the rest of n8n's `this`: made for node implementations, absent or blocked in a Code node",
    "Use a dedicated node: HTTP Request, Redis, a database node.",
)
MODULES = ValidationRule(
    "code-modules",
    "error",
    "`require`, `import`, `module`, `crypto`: an n8n may or may not allow modules",
    "Use plain JavaScript, or a node: Crypto for UUIDs and hashes.",
)
NETWORK = ValidationRule(
    "code-network",
    "error",
    "`fetch` and other network access that bypasses n8n's credentials, retries and logs",
    "Use an HTTP Request node.",
)
TIMERS = ValidationRule(
    "code-timers",
    "error",
    "timers: they block the worker while a lock's TTL keeps running",
    "Use a Wait node.",
)
SYSTEM = ValidationRule(
    "code-system",
    "error",
    "`process`, `globalThis`, `eval`, `Function` and other sandbox escapes",
    "Avoid it, or move it to a separate node or service.",
)
STATE = ValidationRule(
    "code-state",
    "error",
    "`$getWorkflowStaticData`: shared state that concurrent executions overwrite (lost update) and manual ones discard",
    "Keep it in Redis or a database, under a lock.",
)
OTHER = ValidationRule(
    "code-variables",
    "warning",
    f"an n8n variable other than {', '.join(f'`{name}`' for name in ALLOWED)}",
    "Compute the value in an expression of an earlier node, and read it from $json.",
)

RULES = (COPIED, EMPTY, BROKEN, DEPRECATED, HELPERS, MODULES, NETWORK, TIMERS, SYSTEM, STATE, OTHER)

_BY_KIND: dict[Kind, ValidationRule] = {
    "helpers": HELPERS,
    "modules": MODULES,
    "network": NETWORK,
    "timers": TIMERS,
    "system": SYSTEM,
    "state": STATE,
    "variables": OTHER,
}
#: By kind of node: the name of the parameter that holds the node's code.
_FIELDS = {"code": "jsCode", "aiTransform": "jsCode", "function": "functionCode", "functionItem": "functionCode"}


def check(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    for place, node in graph.active_nodes():
        if node.kind not in _FIELDS:
            continue
        if node.kind in ("function", "functionItem"):
            yield DEPRECATED.report(f"{node.name!r} is a {node.kind} node", node=node.name, path=f"nodes[{place}].type")
        python = str(node.parameters.get("language", "")).startswith("python")
        field = "pythonCode" if python else _FIELDS[node.kind]
        path = f"nodes[{place}].parameters.{field}"
        given = node.parameters.get(field)
        code = given if isinstance(given, str) else ""
        if PLACEHOLDER.fullmatch(code.strip()):
            # The code is in a file and is included when the workflow is built, so only the built file can be checked.
            continue
        yield from (_python if python else _javascript)(graph, node, code, path)


def _javascript(graph: WorkflowGraph, node: N8nNode, code: str, path: str) -> Iterator[RuleFinding]:
    try:
        found = tokenize(code)
    except JavaScriptSyntaxError as error:
        yield BROKEN.report(f"{node.name!r}, line {error.line}: {error.why}", node=node.name, path=path)
        return
    code_tokens = [token for token in found if token.kind != "comment"]
    if not code_tokens:
        yield EMPTY.report(f"{node.name!r} has no code", node=node.name, path=path)
    marked = _find_marker([(token.text, token.line) for token in found if token.kind == "comment"])
    if graph.is_primitive and marked == 1:
        return
    yield from _check_marker(node, marked, path)
    yield from _check_references(graph, node, code_tokens, path)
    for kind, what, line in find_impurities(code_tokens):
        yield _BY_KIND[kind].report(f"{node.name!r}, line {line}: {what}", node=node.name, path=path)


def _python(graph: WorkflowGraph, node: N8nNode, code: str, path: str) -> Iterator[RuleFinding]:
    try:
        read = read_python(code)
    except PythonSyntaxError as error:
        yield BROKEN.report(f"{node.name!r}, line {error.line}: {error.why}", node=node.name, path=path)
        return
    if read.empty:
        yield EMPTY.report(f"{node.name!r} has no code", node=node.name, path=path)
    marked = _find_marker(read.comments)
    if graph.is_primitive and marked == 1:
        return
    yield from _check_marker(node, marked, path)
    for kind, what, line in read.impurities:
        yield _BY_KIND[kind].report(f"{node.name!r}, line {line}: {what}", node=node.name, path=path)


def _find_marker(comments: list[tuple[str, int]]) -> int:
    """Return the line number of the first comment that contains one of `MARKERS`, such as `@backstay:primitive`; 0 when
    there is none. Only the code of a primitive may contain a marker.
    """
    return next((line for text, line in comments if any(marker in text for marker in MARKERS)), 0)


def _check_marker(node: N8nNode, line: int, path: str) -> Iterator[RuleFinding]:
    if line:
        yield COPIED.report(
            f"{node.name!r}, line {line}: the marker is reserved for primitives", node=node.name, path=path
        )


def _check_references(
    graph: WorkflowGraph, node: N8nNode, code_tokens: list[Token], path: str
) -> Iterator[RuleFinding]:
    seen: set[str] = set()
    for name, line in find_referenced_nodes(code_tokens):
        if name not in graph.node_index and name not in seen:
            seen.add(name)
            message = f"{node.name!r}, line {line}: reads {name!r}, but no node has that name"
            yield UNKNOWN_REFERENCE.report(message, node=node.name, path=path)
