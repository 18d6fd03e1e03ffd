"""Announcements that wait for the caller's commit: gathered, sent once, forgotten with whatever is rolled back."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, cast
from weakref import WeakKeyDictionary

from backstay.job.api.announcer import announcer_of
from backstay.runtime.core import Core


class Hints:
    """Types of jobs in the order in which they were enqueued; a savepoint is a place in it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._types: list[str] = []

    def __len__(self) -> int:
        return len(self._types)

    def add(self, types: list[str]) -> None:
        self._types += types

    def take(self, other: Hints) -> None:
        """What was gathered inside a savepoint goes with the transaction around it."""
        self._types += other._types

    def back_to(self, mark: int) -> None:
        """Whatever came after the mark has been rolled back."""
        del self._types[mark:]

    def send(self) -> None:
        """It is committed: tell the workers. From any thread."""
        types, self._types = self._types, []
        if types:
            ready = Counter(types)
            core = self._core
            core.port.signal(lambda: announcer_of(core).announce(ready))


class SessionHints(Hints):
    """Of a Session of SQLAlchemy: its own events tell when."""

    def __init__(self, core: Core, session: Any) -> None:
        super().__init__(core)
        #: Where each savepoint of the transaction began.
        self._marks: dict[Any, int] = {}
        event = sys.modules["sqlalchemy"].event  # who passes its session has imported it
        event.listen(session, "after_commit", self._committed)
        event.listen(session, "after_soft_rollback", self._rolled_back)

    def note(self, session: Any, types: list[str]) -> None:
        savepoint = session.get_nested_transaction()
        while savepoint is not None:
            if savepoint.nested:
                self._marks.setdefault(savepoint, len(self))
            savepoint = savepoint.parent
        self.add(types)

    def _committed(self, session: Any) -> None:
        if session.get_nested_transaction() is None:  # else a savepoint was released
            self._marks.clear()
            self.send()

    def _rolled_back(self, session: Any, transaction: Any) -> None:
        if transaction.nested:
            if transaction in self._marks:
                self.back_to(self._marks[transaction])
        elif transaction.parent is None:
            self._marks.clear()
            self.back_to(0)


def session_hints(core: Core, session: Any) -> SessionHints:
    """One for each session and Backstay."""
    known = cast(
        "WeakKeyDictionary[Any, SessionHints]", core.notes.setdefault("job.sessions", WeakKeyDictionary[Any, Any]())
    )
    hints = known.get(session)
    if hints is None:
        hints = known[session] = SessionHints(core, session)
    return hints


def _open(core: Core) -> dict[int, list[Hints]]:
    """The hints of open `stay.transaction` blocks, by connection; the innermost last."""
    found: dict[int, list[Hints]] = core.notes.setdefault("job.blocks", {})
    return found


def open_hints(core: Core, driver: Any) -> Hints | None:
    """Those of the innermost block on this connection, if there is one that will know of the commit."""
    blocks = _open(core).get(id(driver))
    return blocks[-1] if blocks else None


def enter(core: Core, driver: Any, hints: Hints) -> None:
    _open(core).setdefault(id(driver), []).append(hints)


def leave(core: Core, driver: Any) -> None:
    blocks = _open(core)
    blocks[id(driver)].pop()
    if not blocks[id(driver)]:
        del blocks[id(driver)]
