"""Where the rows of jobs that were handed out here lie, as the server last said: so that their ends need not look for
them. A hint: whoever goes there makes sure that it is the row, and looks for it where it is not.
"""

from __future__ import annotations

from collections.abc import Iterable

#: So many are remembered: jobs that are lost to others are never asked for.
MOST = 100_000


class CtidCache:
    """`ctid` by job. Any thread may use it."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def met(self, rows: Iterable[tuple[str, bytes]]) -> None:
        if len(self._known) > MOST:
            self._known.clear()
        self._known.update(rows)

    def moved(self, job: str, place: bytes) -> None:
        """Its row was written anew."""
        if job in self._known:
            self._known[job] = place

    def take(self, jobs: Iterable[str]) -> list[bytes] | None:
        """Of these, which end; None: not all of them are known."""
        pop = self._known.pop
        found = [pop(job, b"") for job in jobs]
        return found if all(found) else None
