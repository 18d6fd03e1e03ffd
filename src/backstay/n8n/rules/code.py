"""Code nodes: pure functions of what n8n hands them, so that an execution can be repeated and understood."""

from __future__ import annotations

from collections.abc import Iterator

from backstay.n8n.analysis.expressions import PLACEHOLDER, named_nodes
from backstay.n8n.analysis.graph import Reading
from backstay.n8n.analysis.javascript import Token, Unreadable, tokens
from backstay.n8n.analysis.purity import ALLOWED, Kind, impurities
from backstay.n8n.analysis.python_code import PythonUnreadable, read_python
from backstay.n8n.model import Node
from backstay.n8n.rules.findings import Finding, Rule
from backstay.n8n.rules.graph import UNKNOWN_REFERENCE

MARKERS = ("@backstay:primitive", "@n8n-evol-I:primitive")

COPIED = Rule(
    "copied-marker",
    "error",
    "the primitives' marker in a node that is not theirs: it is meant to switch these rules off, and does not",
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
    "code that cannot be read: a string, comment or bracket that does not end",
    "Mend it where the message says.",
)
DEPRECATED = Rule(
    "deprecated-node",
    "warning",
    "a Function or Function Item node, which n8n has replaced",
    "Use a Code node; Run Once for Each Item in place of Function Item.",
)
HELPERS = Rule(
    "code-helpers",
    "error",
    "`this.helpers` and the rest of n8n's `this`: made for nodes, absent or closed in a Code node",
    "Use a node for it: HTTP Request, Redis, a database node.",
)
MODULES = Rule(
    "code-modules",
    "error",
    "`require`, `import`, `module`, `crypto`: modules that an n8n may or may not allow",
    "Use plain JavaScript, or a node: Crypto for UUIDs and hashes.",
)
NETWORK = Rule(
    "code-network",
    "error",
    "`fetch` and others that reach the network, past n8n's credentials, retries and logs",
    "Use an HTTP Request node.",
)
TIMERS = Rule(
    "code-timers",
    "error",
    "timers: the worker stands still meanwhile, and a lock's TTL runs on",
    "Use a Wait node.",
)
SYSTEM = Rule(
    "code-system",
    "error",
    "`process`, `globalThis`, `eval`, `Function` and other ways out of the sandbox",
    "Do it without, or in a node or service of its own.",
)
STATE = Rule(
    "code-state",
    "error",
    "`$getWorkflowStaticData`: state between executions, which concurrent ones overwrite and manual ones lose",
    "Keep it in Redis or a database, under a lock.",
)
OTHER = Rule(
    "code-variables",
    "warning",
    f"another of n8n's variables than {', '.join(f'`{name}`' for name in ALLOWED)}",
    "Compute it in an expression before, and read it from $json.",
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
#: Where each kind of node keeps its code.
_FIELDS = {"code": "jsCode", "aiTransform": "jsCode", "function": "functionCode", "functionItem": "functionCode"}


def check(reading: Reading) -> Iterator[Finding]:
    for place, node in reading.active():
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
            # The code is in a file of its own until it is built.
            continue
        yield from (_python if python else _javascript)(reading, node, code, path)


def _javascript(reading: Reading, node: Node, code: str, path: str) -> Iterator[Finding]:
    try:
        found = tokens(code)
    except Unreadable as error:
        yield BROKEN.found(f"{node.name!r}, line {error.line}: {error.why}", node=node.name, path=path)
        return
    words = [token for token in found if token.kind != "comment"]
    if not words:
        yield EMPTY.found(f"{node.name!r} has no code", node=node.name, path=path)
    marked = _marked([(token.text, token.line) for token in found if token.kind == "comment"])
    if reading.is_primitive and marked == 1:
        return
    yield from _marker(node, marked, path)
    yield from _references(reading, node, words, path)
    for kind, what, line in impurities(words):
        yield _BY_KIND[kind].found(f"{node.name!r}, line {line}: {what}", node=node.name, path=path)


def _python(reading: Reading, node: Node, code: str, path: str) -> Iterator[Finding]:
    try:
        read = read_python(code)
    except PythonUnreadable as error:
        yield BROKEN.found(f"{node.name!r}, line {error.line}: {error.why}", node=node.name, path=path)
        return
    if read.empty:
        yield EMPTY.found(f"{node.name!r} has no code", node=node.name, path=path)
    marked = _marked(read.comments)
    if reading.is_primitive and marked == 1:
        return
    yield from _marker(node, marked, path)
    for kind, what, line in read.impurities:
        yield _BY_KIND[kind].found(f"{node.name!r}, line {line}: {what}", node=node.name, path=path)


def _marked(comments: list[tuple[str, int]]) -> int:
    """The first line with a marker; 0 where there is none."""
    return next((line for text, line in comments if any(marker in text for marker in MARKERS)), 0)


def _marker(node: Node, line: int, path: str) -> Iterator[Finding]:
    if line:
        yield COPIED.found(
            f"{node.name!r}, line {line}: the marker belongs to the primitives", node=node.name, path=path
        )


def _references(reading: Reading, node: Node, words: list[Token], path: str) -> Iterator[Finding]:
    told: set[str] = set()
    for name, line in named_nodes(words):
        if name not in reading.places and name not in told:
            told.add(name)
            message = f"{node.name!r}, line {line}: reads {name!r}, and there is no such node"
            yield UNKNOWN_REFERENCE.found(message, node=node.name, path=path)
