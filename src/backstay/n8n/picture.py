"""A workflow's graph as SVG: boxes where n8n's editor has them, and the nodes that were added in another colour.

The same workflow gives the same text. Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from html import escape

from backstay.n8n.analysis.expressions import WORKFLOW_ID, strings_of
from backstay.n8n.analysis.lock_state import outputs
from backstay.n8n.model import MAIN, Edge, Node, Workflow

WIDTH, HEIGHT = 172, 52
MARGIN = 24
#: The least room between two boxes.
_GAP_X, _GAP_Y = 40, 34
#: Between two edges that run along one another.
_TRACK_X, _TRACK_Y = 5, 9
#: As many letters as fit into a box.
_LETTERS = 23
_LABELS = {"if": ("true", "false"), "splitInBatches": ("done", "loop")}

_STYLE = """
.box { fill: #ffffff; stroke: #8a94a6; stroke-width: 1.5 }
.added .box { fill: #fff4e0; stroke: #d9822b; stroke-width: 2 }
.off .box { stroke-dasharray: 4 3 }
.name { font: 600 13px system-ui, sans-serif; fill: #1f2733; text-anchor: middle }
.kind { font: 11px system-ui, sans-serif; fill: #5b6675; text-anchor: middle }
.label { font: 11px system-ui, sans-serif; fill: #5b6675; stroke: #ffffff; stroke-width: 3px; paint-order: stroke }
.edge { fill: none; stroke: #8a94a6; stroke-width: 1.5 }
.edge.added { stroke: #d9822b }
.tip { fill: #8a94a6 }
.tip.added { fill: #d9822b }
@media (prefers-color-scheme: dark) {
  .box { fill: #232a35; stroke: #7d889a }
  .added .box { fill: #3a2c14; stroke: #e8a04c }
  .name { fill: #e8ecf2 }
  .kind { fill: #a9b3c1 }
  .label { fill: #a9b3c1; stroke: #0d1117 }
  .edge { stroke: #7d889a }
  .edge.added { stroke: #e8a04c }
  .tip { fill: #7d889a }
  .tip.added { fill: #e8a04c }
}
"""

Places = dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Box:
    node: Node
    x: float
    y: float
    outputs: int
    inputs: int

    def output(self, number: int) -> tuple[float, float]:
        return self.x + WIDTH, self.y + HEIGHT * (number + 1) / (self.outputs + 1)

    def input(self, number: int) -> tuple[float, float]:
        return self.x, self.y + HEIGHT * (number + 1) / (self.inputs + 1)


def picture(workflow: Workflow, *, added: Collection[str] = (), title: str = "") -> str:
    """The graph. `added`: names of the nodes to show in the other colour. Notes are left out."""
    nodes = {node.name: node for node in workflow.nodes if not node.is_note}
    edges = [edge for edge in workflow.edges() if edge.source in nodes and edge.target in nodes]
    boxes = _boxes(nodes, edges)
    around = _around(edges, boxes)
    drawn = [
        _edge(edge, boxes, around.get(place), fresh=edge.source in added or edge.target in added)
        for place, edge in enumerate(edges)
    ]
    drawn += [_node(box, fresh=name in added) for name, box in boxes.items()]
    right = max([box.x + WIDTH for box in boxes.values()], default=0) + MARGIN
    lowest = [way.low for way in around.values()]
    bottom = max([box.y + HEIGHT for box in boxes.values()] + lowest, default=0) + MARGIN
    name = escape(title or workflow.name or "workflow", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:g} {bottom:g}" width="{right:g}" '
        f'height="{bottom:g}" role="img" aria-label="{name}">\n<title>{name}</title>\n<style>{_STYLE}</style>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _boxes(nodes: dict[str, Node], edges: list[Edge]) -> dict[str, _Box]:
    places = {name: node.position for name, node in nodes.items()}
    places = _apart(places) or _layered(list(nodes), edges)
    left = min((x for x, _ in places.values()), default=0)
    top = min((y for _, y in places.values()), default=0)
    made: dict[str, _Box] = {}
    for name, node in nodes.items():
        leaving = [edge.output for edge in edges if edge.source == name and edge.kind == MAIN]
        entering = [edge.input for edge in edges if edge.target == name and edge.kind == MAIN]
        x, y = places[name]
        made[name] = _Box(
            node,
            round(x - left + MARGIN),
            round(y - top + MARGIN),
            max([outputs(node), *(number + 1 for number in leaving)]),
            max([1, *(number + 1 for number in entering)]),
        )
    return made


def _apart(places: Places) -> Places | None:
    """The editor's own places, spread until no boxes touch; None where that does not help."""
    for stretch in (1, 1.25, 1.5, 2, 3):
        spread = {name: (x * stretch, y * (0.6 if stretch == 1 else stretch)) for name, (x, y) in places.items()}
        if not _touching(spread):
            return spread
    return None


def _touching(places: Places) -> bool:
    found = sorted(places.values())
    return any(
        other[0] - one[0] < WIDTH + _GAP_X and abs(other[1] - one[1]) < HEIGHT + _GAP_Y
        for at, one in enumerate(found)
        for other in found[at + 1 :]
    )


def _layered(names: list[str], edges: list[Edge]) -> Places:
    """In columns, by the longest way from the start; a way back counts for nothing."""
    column = dict.fromkeys(names, 0)
    order = {name: place for place, name in enumerate(names)}
    for _ in names:
        for edge in edges:
            if order[edge.source] < order[edge.target]:
                column[edge.target] = max(column[edge.target], column[edge.source] + 1)
    rows: dict[int, int] = {}
    places: Places = {}
    for name in names:
        row = rows.get(column[name], 0)
        rows[column[name]] = row + 1
        places[name] = (column[name] * (WIDTH + 60.0), row * (HEIGHT + 48.0))
    return places


def _node(box: _Box, *, fresh: bool) -> str:
    node = box.node
    kinds = " ".join(["node", *(["added"] if fresh else []), *(["off"] if node.disabled else [])])
    radius = 26 if node.is_trigger else 8
    middle = box.x + WIDTH / 2
    return (
        f'<g class="{kinds}"><title>{escape(node.name)}</title>'
        f'<rect class="box" x="{box.x:g}" y="{box.y:g}" width="{WIDTH}" height="{HEIGHT}" rx="{radius}"/>'
        f'<text class="name" x="{middle:g}" y="{box.y + 22:g}">{escape(_short(node.name))}</text>'
        f'<text class="kind" x="{middle:g}" y="{box.y + 39:g}">{escape(_short(_kind(node)))}</text>'
        "</g>"
    )


def _kind(node: Node) -> str:
    """The kind of node; for a call, what it calls."""
    if node.kind == "executeWorkflow":
        # A call may carry a short workflow of its own, which calls the real one.
        keys = [found[1] for _, text in strings_of(node.parameters) if (found := WORKFLOW_ID.search(text))]
        return f"calls {keys[0]}" if keys else "calls a workflow"
    return node.kind.rpartition(".")[2] + (" (disabled)" if node.disabled else "")


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def _detour(edge: Edge, boxes: dict[str, _Box]) -> float | None:
    """How low an edge has to run: below the boxes in its way, or below its ends when it leads back; None: straight."""
    if edge.kind != MAIN:
        return None
    source, target = boxes[edge.source], boxes[edge.target]
    (x, y), (to_x, to_y) = source.output(edge.output), target.input(edge.input)
    if to_x < x:
        return max(source.y, target.y) + HEIGHT + 22
    blocking = [
        box.y
        for box in boxes.values()
        if x < box.x + WIDTH / 2 < to_x
        and box.y - 6 <= y + (to_y - y) * (box.x + WIDTH / 2 - x) / (to_x - x) <= box.y + HEIGHT + 6
    ]
    return max(blocking) + HEIGHT + 22 if blocking else None


@dataclass(frozen=True, slots=True)
class _Way:
    """Of an edge that goes round something: where it turns down, runs along, and turns up."""

    out: float
    low: float
    into: float


class _Tracks:
    """Lines that run the same way. Those that lead to one place may share a track, others may not."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._taken: list[tuple[float, float, float, object]] = []

    def take(self, wished: float, ends: tuple[float, float], place: object, sign: int = 1) -> float:
        """The free track that is next to the wished one; `sign`: on which side of it."""
        low, high = min(ends), max(ends)
        at = wished
        while any(
            abs(at - track) < self._step and low < end and begin < high and owner != place
            for track, begin, end, owner in self._taken
        ):
            at += sign * self._step
        self._taken.append((at, low, high, place))
        return at


def _around(edges: list[Edge], boxes: dict[str, _Box]) -> dict[int, _Way]:
    """The ways of those edges that cannot be straight, by their place in the list."""
    lows = {place: low for place, edge in enumerate(edges) if (low := _detour(edge, boxes)) is not None}
    along, across = _Tracks(_TRACK_Y), _Tracks(_TRACK_X)
    found: dict[int, _Way] = {}
    shared: dict[tuple[str, int], float] = {}
    for place in lows:
        edge = edges[place]
        port = (edge.target, edge.input)
        (x, y), (to_x, to_y) = boxes[edge.source].output(edge.output), boxes[edge.target].input(edge.input)
        if port not in shared:
            alike = [other for other in lows if (edges[other].target, edges[other].input) == port]
            turns = [boxes[edges[other].source].output(0)[0] for other in alike]
            # Where they turn is between two boxes, and not known yet.
            ends = (min(*turns, to_x) - _GAP_X, max(*turns, to_x) + _GAP_X)
            shared[port] = along.take(max(lows[other] for other in alike), ends, port)
        low = shared[port]
        out = across.take(x + 10, (y, low), port)
        found[place] = _Way(out, low, across.take(to_x - 14, (low, to_y), port, -1))
    return found


def _edge(edge: Edge, boxes: dict[str, _Box], way: _Way | None, *, fresh: bool) -> str:
    source, target = boxes[edge.source], boxes[edge.target]
    mark = " added" if fresh else ""
    if edge.kind != MAIN:
        # What an AI uses hangs below it.
        start, end = (source.x + WIDTH / 2, source.y), (target.x + WIDTH / 2, target.y + HEIGHT)
        line = f"M{start[0]:g} {start[1]:g} L{end[0]:g} {end[1]:g}"
        return f'<path class="edge{mark}" stroke-dasharray="4 3" d="{line}"/>'
    (x, y), (to_x, to_y) = source.output(edge.output), target.input(edge.input)
    if way is not None:
        line = f"M{x:g} {y:g} h{way.out - x:g} V{way.low:g} H{way.into:g} V{to_y:g} H{to_x - 6:g}"
    else:
        bend = max(24, (to_x - x) / 2)
        line = f"M{x:g} {y:g} C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x - 6:g} {to_y:g}"
    tip = f"M{to_x:g} {to_y:g} l-8 -4 v8 z"
    labels = _LABELS.get(source.node.kind, ())
    label = ""
    if edge.output < len(labels) and source.outputs <= len(labels):
        label = f'<text class="label" x="{x + 4:g}" y="{y - 4:g}">{labels[edge.output]}</text>'
    return f'<path class="edge{mark}" d="{line}"/><path class="tip{mark}" d="{tip}"/>{label}'
