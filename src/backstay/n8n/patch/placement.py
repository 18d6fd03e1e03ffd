"""Where new nodes stand on the canvas: near where they belong, never on top of another.

A lock's nodes keep to the triggers' row and below (its Acquire one row above), a limit's to rows above everything. So
neither is moved by the other, whichever comes first or goes first.
"""

from __future__ import annotations

from collections.abc import Collection

from backstay.n8n.model import Workflow

COLUMN = 220
ROW = 180
#: Nodes are about 100 wide, with their name below; closer than this they touch.
_NEAR_X, _NEAR_Y = 160, 140
#: Leaves the row above the triggers to a lock's Acquire.
_LIMIT_ROWS = 2


class Places:
    """Free places of one canvas, as it is without our nodes (`ours`). What is given away is taken."""

    def __init__(self, workflow: Workflow, ours: Collection[str] = (), *, top: float | None = None) -> None:
        self._taken = [node.position for node in workflow.nodes if not node.is_note and node.name not in ours]
        starts = [node.position for node in workflow.triggers] or [(0, 0)]
        self._left = max(x for x, _ in starts)
        self._top = min(y for _, y in starts)
        #: Of all nodes, also of those that moved elsewhere and will come back.
        self._highest = min([y for _, y in self._taken] + ([] if top is None else [top]), default=0)

    def take(self, column: float, row: float = 0) -> list[int]:
        """So many columns behind the last trigger; further down where that is taken."""
        x, y = round(self._left + column * COLUMN), round(self._top + row * ROW)
        while any(abs(x - other) < _NEAR_X and abs(y - level) < _NEAR_Y for other, level in self._taken):
            y += ROW
        self._taken.append((x, y))
        return [x, y]

    def above(self, column: float, row: float = 0) -> list[int]:
        """The same in the rows above everything, where all is free."""
        return [round(self._left + column * COLUMN), round(self._highest - (_LIMIT_ROWS + row) * ROW)]
