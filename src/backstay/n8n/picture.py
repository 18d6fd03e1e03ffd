"""Render a workflow's graph as SVG, laid out as in n8n's editor, with the nodes that a patch added in another colour.

The output is deterministic. Colours follow the viewer's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from html import escape

from backstay.n8n.analysis.expressions import WORKFLOW_ID, iter_strings
from backstay.n8n.analysis.lock_state import count_outputs
from backstay.n8n.model import MAIN, Edge, N8nNode, N8nWorkflow

WIDTH, HEIGHT = 172, 52
MARGIN = 24
#: The smallest gap between two boxes.
_GAP_X, _GAP_Y = 40, 34
#: The distance between two parallel segments of edges: vertical segments (x) and horizontal ones (y).
_TRACK_X, _TRACK_Y = 5, 9
#: The number of letters that fit into a box.
_MAX_LETTERS = 23
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

Positions = dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Box:
    node: N8nNode
    x: float
    y: float
    outputs: int
    inputs: int

    def output(self, number: int) -> tuple[float, float]:
        return self.x + WIDTH, self.y + HEIGHT * (number + 1) / (self.outputs + 1)

    def input(self, number: int) -> tuple[float, float]:
        return self.x, self.y + HEIGHT * (number + 1) / (self.inputs + 1)


def picture(workflow: N8nWorkflow, *, added: Collection[str] = (), title: str = "") -> str:
    """Return the SVG text. `added` names the nodes to highlight. Sticky notes are left out."""
    nodes = {node.name: node for node in workflow.nodes if not node.is_note}
    edges = [edge for edge in workflow.edges() if edge.source in nodes and edge.target in nodes]
    boxes = _place_boxes(nodes, edges)
    routes = _route_edges(edges, boxes)
    drawn = [
        _draw_edge(edge, boxes, routes.get(place), is_added=edge.source in added or edge.target in added)
        for place, edge in enumerate(edges)
    ]
    drawn += [_draw_node(box, is_added=name in added) for name, box in boxes.items()]
    right = max([box.x + WIDTH for box in boxes.values()], default=0) + MARGIN
    lowest = [route.low for route in routes.values()]
    bottom = max([box.y + HEIGHT for box in boxes.values()] + lowest, default=0) + MARGIN
    name = escape(title or workflow.name or "workflow", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:g} {bottom:g}" width="{right:g}" '
        f'height="{bottom:g}" role="img" aria-label="{name}">\n<title>{name}</title>\n<style>{_STYLE}</style>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _place_boxes(nodes: dict[str, N8nNode], edges: list[Edge]) -> dict[str, _Box]:
    places = {name: node.position for name, node in nodes.items()}
    places = _spread_apart(places) or _arrange_in_columns(list(nodes), edges)
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
            max([count_outputs(node), *(number + 1 for number in leaving)]),
            max([1, *(number + 1 for number in entering)]),
        )
    return made


def _spread_apart(places: Positions) -> Positions | None:
    """Scale the positions that the nodes have in n8n's editor until no boxes overlap. Return None when no scale is
    enough.
    """
    for stretch in (1, 1.25, 1.5, 2, 3):
        spread = {name: (x * stretch, y * (0.6 if stretch == 1 else stretch)) for name, (x, y) in places.items()}
        if not _overlaps(spread):
            return spread
    return None


def _overlaps(places: Positions) -> bool:
    found = sorted(places.values())
    return any(
        other[0] - one[0] < WIDTH + _GAP_X and abs(other[1] - one[1]) < HEIGHT + _GAP_Y
        for at, one in enumerate(found)
        for other in found[at + 1 :]
    )


def _arrange_in_columns(names: list[str], edges: list[Edge]) -> Positions:
    """Place nodes in columns by the length of their longest path from a start node. Edges that close a loop are
    ignored.
    """
    column = dict.fromkeys(names, 0)
    order = {name: place for place, name in enumerate(names)}
    for _ in names:
        for edge in edges:
            if order[edge.source] < order[edge.target]:
                column[edge.target] = max(column[edge.target], column[edge.source] + 1)
    rows: dict[int, int] = {}
    places: Positions = {}
    for name in names:
        row = rows.get(column[name], 0)
        rows[column[name]] = row + 1
        places[name] = (column[name] * (WIDTH + 60.0), row * (HEIGHT + 48.0))
    return places


def _draw_node(box: _Box, *, is_added: bool) -> str:
    node = box.node
    kinds = " ".join(["node", *(["added"] if is_added else []), *(["off"] if node.disabled else [])])
    radius = 26 if node.is_trigger else 8
    middle = box.x + WIDTH / 2
    return (
        f'<g class="{kinds}"><title>{escape(node.name)}</title>'
        f'<rect class="box" x="{box.x:g}" y="{box.y:g}" width="{WIDTH}" height="{HEIGHT}" rx="{radius}"/>'
        f'<text class="name" x="{middle:g}" y="{box.y + 22:g}">{escape(_truncate(node.name))}</text>'
        f'<text class="kind" x="{middle:g}" y="{box.y + 39:g}">{escape(_truncate(_kind(node)))}</text>'
        "</g>"
    )


def _kind(node: N8nNode) -> str:
    """Return the node's kind, or for an Execute Workflow node the workflow that it calls."""
    if node.kind == "executeWorkflow":
        # The call may embed a small workflow (`workflowJson`) that calls the real one, so search all its strings.
        keys = [found[1] for _, text in iter_strings(node.parameters) if (found := WORKFLOW_ID.search(text))]
        return f"calls {keys[0]}" if keys else "calls a workflow"
    return node.kind.rpartition(".")[2] + (" (disabled)" if node.disabled else "")


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_LETTERS else text[: _MAX_LETTERS - 1] + "…"


def _detour(edge: Edge, boxes: dict[str, _Box]) -> float | None:
    """Return the y coordinate of an edge's horizontal part: below the boxes in its way or, for an edge that leads back
    to the left, below both its ends. None: the edge can run straight.
    """
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
class _Route:
    """The route of an edge around boxes: it turns down at one x, runs along one y, and turns up at another x."""

    out: float
    low: float
    into: float


class _Tracks:
    """Allocates coordinates (tracks) for edge segments, so that parallel segments do not overlap. Only edges to the
    same input share a track.
    """

    def __init__(self, step: float) -> None:
        self._step = step
        self._taken: list[tuple[float, float, float, object]] = []

    def take(self, preferred: float, ends: tuple[float, float], place: object, sign: int = 1) -> float:
        """Return the first free track from the preferred one on, towards larger (`sign` 1) or smaller (-1)
        coordinates.
        """
        low, high = min(ends), max(ends)
        at = preferred
        while any(
            abs(at - track) < self._step and low < end and begin < high and owner != place
            for track, begin, end, owner in self._taken
        ):
            at += sign * self._step
        self._taken.append((at, low, high, place))
        return at


def _route_edges(edges: list[Edge], boxes: dict[str, _Box]) -> dict[int, _Route]:
    """Return the routes of the edges that cannot run straight, by their index in the list."""
    lows = {place: low for place, edge in enumerate(edges) if (low := _detour(edge, boxes)) is not None}
    along, across = _Tracks(_TRACK_Y), _Tracks(_TRACK_X)
    found: dict[int, _Route] = {}
    shared: dict[tuple[str, int], float] = {}
    for place in lows:
        edge = edges[place]
        port = (edge.target, edge.input)
        (x, y), (to_x, to_y) = boxes[edge.source].output(edge.output), boxes[edge.target].input(edge.input)
        if port not in shared:
            sharing = [other for other in lows if (edges[other].target, edges[other].input) == port]
            turns = [boxes[edges[other].source].output(0)[0] for other in sharing]
            # The edges run horizontally within `ends`. The exact x at which each edge turns is chosen
            # below, at most one gap away from a box. So reserve one gap at both ends.
            ends = (min(*turns, to_x) - _GAP_X, max(*turns, to_x) + _GAP_X)
            shared[port] = along.take(max(lows[other] for other in sharing), ends, port)
        low = shared[port]
        out = across.take(x + 10, (y, low), port)
        found[place] = _Route(out, low, across.take(to_x - 14, (low, to_y), port, -1))
    return found


def _draw_edge(edge: Edge, boxes: dict[str, _Box], route: _Route | None, *, is_added: bool) -> str:
    source, target = boxes[edge.source], boxes[edge.target]
    mark = " added" if is_added else ""
    if edge.kind != MAIN:
        # Models, memories and tools are drawn below the AI node that uses them.
        start, end = (source.x + WIDTH / 2, source.y), (target.x + WIDTH / 2, target.y + HEIGHT)
        line = f"M{start[0]:g} {start[1]:g} L{end[0]:g} {end[1]:g}"
        return f'<path class="edge{mark}" stroke-dasharray="4 3" d="{line}"/>'
    (x, y), (to_x, to_y) = source.output(edge.output), target.input(edge.input)
    if route is not None:
        line = f"M{x:g} {y:g} h{route.out - x:g} V{route.low:g} H{route.into:g} V{to_y:g} H{to_x - 6:g}"
    else:
        bend = max(24, (to_x - x) / 2)
        line = f"M{x:g} {y:g} C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x - 6:g} {to_y:g}"
    tip = f"M{to_x:g} {to_y:g} l-8 -4 v8 z"
    labels = _LABELS.get(source.node.kind, ())
    label = ""
    if edge.output < len(labels) and source.outputs <= len(labels):
        label = f'<text class="label" x="{x + 4:g}" y="{y - 4:g}">{labels[edge.output]}</text>'
    return f'<path class="edge{mark}" d="{line}"/><path class="tip{mark}" d="{tip}"/>{label}'
