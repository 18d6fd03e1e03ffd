"""Rules for Code nodes: code must be a pure function of its inputs, so that an execution can be repeated and
understood.
"""

from __future__ import annotations

from collections.abc import Iterator

from backstay.n8n.analysis.expressions import PLACEHOLDER, find_referenced_nodes
from backstay.n8n.analysis.graph import WorkflowGraph
from backstay.n8n.analysis.javascript import JavaScriptSyntaxError, Token, tokenize
from backstay.n8n.analysis.purity import ALLOWED, Kind, find_impurities
from backstay.n8n.analysis.python_code import PythonSyntaxError, read_python
from backstay.n8n.model import Node
from backstay.n8n.rules.findings import Finding, Rule
from backstay.n8n.rules.graph import UNKNOWN_REFERENCE

MARKERS = ("@backstay:primitive", "@n8n-evol-I:primitive")

COPIED = Rule(
    "copied-marker",
    "error",
    "a primitive's marker in another node: it exempts only primitives from these rules",
    "Delete the line.",
)
EMPTY = Rule(
    "empty-code",
    "error",
    "a Code node without code",
    "Write code that returns items, or delete the node.",
)
BROKEN = Rule(
    "broken-code",
    "error",
    "code that cannot be parsed, such as an unterminated string, comment or bracket",
    "Fix the code at the line in the message.",
)
DEPRECATED = Rule(
    "deprecated-node",
    "warning",
    "a Function or Function Item node, which n8n has deprecated",
    "Use a Code node; replace Function Item with Run Once for Each Item.",
)
HELPERS = Rule(
    "code-helpers",
    "error",
    "`this.helpers` and the rest of n8n's `this`: made for node implementations, absent or blocked in a Code node",
    "Use a dedicated node: HTTP Request, Redis, a database node.",
)
MODULES = Rule(
    "code-modules",
    "error",
    "`require`, `import`, `module`, `crypto`: an n8n may or may not allow modules",
    "Use plain JavaScript, or a node: Crypto for UUIDs and hashes.",
)
NETWORK = Rule(
    "code-network",
    "error",
    "`fetch` and other network access that bypasses n8n's credentials, retries and logs",
    "Use an HTTP Request node.",
)
TIMERS = Rule(
    "code-timers",
    "error",
    "timers: they block the worker while a lock's TTL keeps running",
    "Use a Wait node.",
)
SYSTEM = Rule(
    "code-system",
    "error",
    "`process`, `globalThis`, `eval`, `Function` and other sandbox escapes",
    "Avoid it, or move it to a separate node or service.",
)
STATE = Rule(
    "code-state",
    "error",
    "`$getWorkflowStaticData`: shared state that concurrent executions overwrite (lost update) and manual ones discard",
    "Keep it in Redis or a database, under a lock.",
)
OTHER = Rule(
    "code-variables",
    "warning",
    f"an n8n variable other than {', '.join(f'`{name}`' for name in ALLOWED)}",
    "Compute the value in an expression of an earlier node, and read it from $json.",
)

RULES = (COPIED, EMPTY, BROKEN, DEPRECATED, HELPERS, MODULES, NETWORK, TIMERS, SYSTEM, STATE, OTHER)

_BY_KIND: dict[Kind, Rule] = {
    "helpers": HELPERS,
    "modules": MODULES,
    "network": NETWORK,
    "timers": TIMERS,
    "system": SYSTEM,
    "state": STATE,
    "variables": OTHER,
}
#: The parameter that holds each node kind's code.
_FIELDS = {"code": "jsCode", "aiTransform": "jsCode", "function": "functionCode", "functionItem": "functionCode"}


def check(graph: WorkflowGraph) -> Iterator[Finding]:
    for place, node in graph.active_nodes():
        if node.kind not in _FIELDS:
            continue
        if node.kind in ("function", "functionItem"):
            yield DEPRECATED.found(f"{node.name!r} is a {node.kind} node", node=node.name, path=f"nodes[{place}].type")
        python = str(node.parameters.get("language", "")).startswith("python")
        field = "pythonCode" if python else _FIELDS[node.kind]
        path = f"nodes[{place}].parameters.{field}"
        given = node.parameters.get(field)
        code = given if isinstance(given, str) else ""
        if PLACEHOLDER.fullmatch(code.strip()):
            # The code is included from a file when the workflow is built.
            continue
        yield from (_python if python else _javascript)(graph, node, code, path)


def _javascript(graph: WorkflowGraph, node: Node, code: str, path: str) -> Iterator[Finding]:
    try:
        found = tokenize(code)
    except JavaScriptSyntaxError as error:
        yield BROKEN.found(f"{node.name!r}, line {error.line}: {error.why}", node=node.name, path=path)
        return
    code_tokens = [token for token in found if token.kind != "comment"]
    if not code_tokens:
        yield EMPTY.found(f"{node.name!r} has no code", node=node.name, path=path)
    marked = _marked([(token.text, token.line) for token in found if token.kind == "comment"])
    if graph.is_primitive and marked == 1:
        return
    yield from _marker(node, marked, path)
    yield from _references(graph, node, code_tokens, path)
    for kind, what, line in find_impurities(code_tokens):
        yield _BY_KIND[kind].found(f"{node.name!r}, line {line}: {what}", node=node.name, path=path)


def _python(graph: WorkflowGraph, node: Node, code: str, path: str) -> Iterator[Finding]:
    try:
        read = read_python(code)
    except PythonSyntaxError as error:
        yield BROKEN.found(f"{node.name!r}, line {error.line}: {error.why}", node=node.name, path=path)
        return
    if read.empty:
        yield EMPTY.found(f"{node.name!r} has no code", node=node.name, path=path)
    marked = _marked(read.comments)
    if graph.is_primitive and marked == 1:
        return
    yield from _marker(node, marked, path)
    for kind, what, line in read.impurities:
        yield _BY_KIND[kind].found(f"{node.name!r}, line {line}: {what}", node=node.name, path=path)


def _marked(comments: list[tuple[str, int]]) -> int:
    """Return the line of the first marker; 0 when there is none."""
    return next((line for text, line in comments if any(marker in text for marker in MARKERS)), 0)


def _marker(node: Node, line: int, path: str) -> Iterator[Finding]:
    if line:
        yield COPIED.found(
            f"{node.name!r}, line {line}: the marker is reserved for primitives", node=node.name, path=path
        )


def _references(graph: WorkflowGraph, node: Node, code_tokens: list[Token], path: str) -> Iterator[Finding]:
    seen: set[str] = set()
    for name, line in find_referenced_nodes(code_tokens):
        if name not in graph.node_index and name not in seen:
            seen.add(name)
            message = f"{node.name!r}, line {line}: reads {name!r}, but no node has that name"
            yield UNKNOWN_REFERENCE.found(message, node=node.name, path=path)
