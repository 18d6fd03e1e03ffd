"""The n8n workflow model: a typed view of the JSON document that preserves order, unknown fields and layout.

The parsed JSON is the only state; `N8nNode` and `Edge` are views of it. Unchanged parts are written back byte for byte.
Patches work on a `copy()`, so the original workflow stays unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backstay.errors import BadWorkflow
from backstay.n8n.json_types import is_list, is_mapping
from backstay.n8n.workspace import json_layout as layout
from backstay.n8n.workspace.json_layout import Layout

#: Bytes. No hand-edited workflow is this large; a larger file is not a workflow.
LARGEST = 20_000_000
BASE = "n8n-nodes-base."
MAIN = "main"
STICKY_NOTE = f"{BASE}stickyNote"


@dataclass(frozen=True, slots=True)
class N8nNode:
    """One node of a workflow. `data` is the node's dict inside `N8nWorkflow.data`, so a change of it changes the
    workflow: make changes only in a copy of the workflow.
    """

    data: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def id(self) -> str:
        return str(self.data.get("id", ""))

    @property
    def type(self) -> str:
        return str(self.data["type"])

    @property
    def kind(self) -> str:
        """The node type without the prefix of n8n's own package: `redis`, `if`, `code`."""
        return self.type.removeprefix(BASE)

    @property
    def version(self) -> float:
        found = self.data.get("typeVersion", 1)
        return found if isinstance(found, (int, float)) else 1

    @property
    def parameters(self) -> dict[str, Any]:
        """The node's parameters. A node without parameters gives a new dict that is not part of `data`, so change
        parameters only through `data`.
        """
        found = self.data.get("parameters")
        return found if is_mapping(found) else {}

    @property
    def position(self) -> tuple[float, float]:
        match self.data.get("position"):
            case [int() | float() as x, int() | float() as y]:
                return (x, y)
            case {"x": int() | float() as x, "y": int() | float() as y}:
                return (x, y)
            case _:
                return (0, 0)

    @property
    def disabled(self) -> bool:
        return self.data.get("disabled") is True

    @property
    def is_note(self) -> bool:
        return self.type == STICKY_NOTE

    @property
    def is_trigger(self) -> bool:
        """Whether the node type starts executions. A disabled trigger is still a trigger."""
        kind = self.kind.rpartition(".")[2]
        return kind.lower().endswith("trigger") or kind in ("webhook", "cron", "interval", "start")


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection from an output to an input. `kind` is `main` for items; other kinds attach tools and models to an
    AI node.
    """

    source: str
    target: str
    output: int = 0
    input: int = 0
    kind: str = MAIN


@dataclass(slots=True)
class N8nWorkflow:
    """One workflow file. Unchanged data is written byte for byte as it was read.

    `layout`: the indentation and separators of the JSON text. `exact`: writing the unchanged data with this layout
    gives the original text. Then a changed workflow also keeps the bytes of its unchanged parts.
    """

    data: dict[str, Any]
    layout: Layout = field(default_factory=Layout)
    exact: bool = True
    source: str = ""

    @classmethod
    def read(cls, path: Path) -> N8nWorkflow:
        """Read a workflow file. Raise BadWorkflow when it is not a workflow, and OSError when it cannot be read."""
        return cls.parse(path.read_bytes(), source=path.name)

    @classmethod
    def parse(cls, raw: bytes | str, *, source: str = "") -> N8nWorkflow:
        if len(raw) > LARGEST:
            raise BadWorkflow(f"the file is larger than {LARGEST // 1_000_000} MB", source=source)
        if isinstance(raw, bytes):
            try:
                raw = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise BadWorkflow(f"the file is not UTF-8 (byte {error.start})", source=source) from error
        data, found, exact = layout.read(raw, source)
        _check(data, source)
        return cls(data, found, exact, source)

    def text(self) -> str:
        return self.layout.write(self.data)

    def check(self) -> None:
        """Raise BadWorkflow when the data is not a valid workflow. Parsing checks this, too; call it after changes of
        `data`.
        """
        _check(self.data, self.source)

    def copy(self) -> N8nWorkflow:
        return N8nWorkflow(copy.deepcopy(self.data), self.layout, self.exact, self.source)

    # ── metadata ──

    @property
    def name(self) -> str:
        return str(self.data.get("name", ""))

    @property
    def id(self) -> str:
        return str(self.data.get("id", ""))

    @property
    def settings(self) -> dict[str, Any]:
        """The workflow's settings. A workflow without settings gives a new dict that is not part of `data`, so change
        settings only through `data`.
        """
        found = self.data.get("settings")
        return found if is_mapping(found) else {}

    @property
    def nodes(self) -> list[N8nNode]:
        return [N8nNode(node) for node in self.data["nodes"]]

    def find(self, name: str) -> N8nNode | None:
        return next((node for node in self.nodes if node.name == name), None)

    @property
    def triggers(self) -> list[N8nNode]:
        """The enabled trigger nodes, where executions start."""
        return [node for node in self.nodes if node.is_trigger and not node.disabled and not node.is_note]

    # ── connections ──

    @property
    def connections(self) -> dict[str, Any]:
        found: dict[str, Any] = self.data["connections"]
        return found

    def edges(self) -> Iterator[Edge]:
        """Yield every connection in file order."""
        for source in self.connections:
            yield from self.leaving(source)

    def leaving(self, name: str) -> list[Edge]:
        kinds: dict[str, list[list[dict[str, Any]] | None] | None] = self.connections.get(name, {})
        return [
            Edge(name, to["node"], output, to.get("index", 0), kind)
            for kind, outputs in kinds.items()
            for output, targets in enumerate(outputs or ())
            for to in targets or ()
        ]

    def entering(self, name: str) -> list[Edge]:
        return [edge for edge in self.edges() if edge.target == name]

    # ── changes ──

    def add(self, node: dict[str, Any]) -> N8nNode:
        if self.find(node["name"]) is not None:
            raise BadWorkflow(f"a node named {node['name']!r} already exists", source=self.source)
        self.data["nodes"].append(node)
        return N8nNode(node)

    def remove(self, name: str) -> None:
        """Remove a node and all its connections."""
        self.data["nodes"] = [node for node in self.data["nodes"] if node["name"] != name]
        for edge in [*self.leaving(name), *self.entering(name)]:
            self.disconnect(edge)

    def connect(self, edge: Edge) -> None:
        """Append a connection to those of its source node's output. Does nothing if the connection exists."""
        if edge in self.leaving(edge.source):
            return
        outputs = self.connections.setdefault(edge.source, {}).setdefault(edge.kind, [])
        while len(outputs) <= edge.output:
            outputs.append([])
        outputs[edge.output] = outputs[edge.output] or []
        outputs[edge.output].append({"node": edge.target, "type": edge.kind, "index": edge.input})

    def disconnect(self, edge: Edge) -> None:
        """Remove a connection. Then drop the empty lists that this leaves in `connections`: trailing outputs without
        connections, and the entry of a source node without outputs.
        """
        kinds = self.connections.get(edge.source, {})
        outputs = kinds.get(edge.kind, [])
        if edge.output < len(outputs):
            outputs[edge.output] = [
                to for to in outputs[edge.output] or () if (to["node"], to.get("index", 0)) != (edge.target, edge.input)
            ]
        while outputs and not outputs[-1]:
            outputs.pop()
        if edge.kind in kinds and not outputs:
            del kinds[edge.kind]
        if edge.source in self.connections and not kinds:
            del self.connections[edge.source]


def _check(data: Any, source: str) -> None:
    """Raise BadWorkflow unless the data has the structure that this module relies on: nodes with name and type, and
    well-formed connections.
    """

    def wrong(message: str) -> BadWorkflow:
        return BadWorkflow(message, source=source)

    if isinstance(data, list):
        raise wrong(
            "the file is a list, n8n's export of several workflows; export them one by one"
            " (n8n export:workflow --separate)"
        )
    if not is_mapping(data) or not is_list(data.get("nodes")):
        raise wrong("not an n8n workflow: expected an object with nodes and connections")
    for place, node in enumerate(data["nodes"]):
        if not is_mapping(node):
            raise wrong(f"nodes[{place}] is not an object")
        for key in ("name", "type"):
            if not isinstance(node.get(key), str) or not node[key]:
                raise wrong(f"nodes[{place}] has no {key}")
    connections = data.get("connections")
    if not is_mapping(connections):
        raise wrong("connections must be an object; use {} when there are none")
    for name, kinds in connections.items():
        _check_outputs(name, kinds, wrong)


def _check_outputs(name: str, kinds: Any, wrong: Any) -> None:
    if not is_mapping(kinds):
        raise wrong(f"connections of {name!r} are not an object")
    for kind, outputs in kinds.items():
        if not is_list(outputs) or not all(targets is None or is_list(targets) for targets in outputs):
            raise wrong(f"connections of {name!r} ({kind}) are not a list of lists")
        for to in (to for targets in outputs for to in targets or ()):
            if not is_mapping(to) or not isinstance(to.get("node"), str):
                raise wrong(f"a connection of {name!r} ({kind}) does not name a node")
            if not isinstance(to.get("index", 0), int) or to.get("index", 0) < 0:
                raise wrong(f"the index of the connection from {name!r} to {to['node']!r} must be an integer from 0")
