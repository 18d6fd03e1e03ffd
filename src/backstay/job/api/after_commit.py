"""Announcements that wait for the caller's commit: sent once after it, and discarded on a rollback."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

from backstay.job.api.announcer import ANNOUNCER
from backstay.runtime.core import Core
from backstay.runtime.services import Service


class PendingAnnouncements:
    """The types of jobs enqueued in a transaction, in order. A savepoint is a position in that list."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._types: list[str] = []

    def __len__(self) -> int:
        return len(self._types)

    def add(self, types: list[str]) -> None:
        self._types += types

    def merge(self, other: PendingAnnouncements) -> None:
        """Add the announcements of a released savepoint to those of the enclosing transaction."""
        self._types += other._types

    def truncate(self, mark: int) -> None:
        """Discard everything after `mark`: it was rolled back."""
        del self._types[mark:]

    def send(self) -> None:
        """Announce the committed jobs to workers. Thread-safe."""
        types, self._types = self._types, []
        if types:
            ready = Counter(types)
            core = self._core
            core.port.signal(lambda: core.services.get(ANNOUNCER).announce(ready))


class SessionAnnouncements(PendingAnnouncements):
    """The pending announcements of a SQLAlchemy session, driven by the session's commit and rollback events."""

    def __init__(self, core: Core, session: Any) -> None:
        super().__init__(core)
        #: By savepoint: how many announcements were pending when it began. A rollback to it discards the later ones.
        self._marks: dict[Any, int] = {}
        event = sys.modules["sqlalchemy"].event  # already imported, since the caller has a session
        event.listen(session, "after_commit", self._committed)
        event.listen(session, "after_soft_rollback", self._rolled_back)

    def add_in_session(self, session: Any, types: list[str]) -> None:
        """Add announcements of job types, and first record the position of savepoints begun since the last call."""
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
                self.truncate(self._marks[transaction])
        elif transaction.parent is None:
            self._marks.clear()
            self.truncate(0)


SESSION_ANNOUNCEMENTS: Service[WeakKeyDictionary[Any, SessionAnnouncements]] = Service(
    "announcements of SQLAlchemy sessions", lambda _: WeakKeyDictionary()
)
#: The pending announcements of open `stay.transaction` blocks, by connection; the innermost last.
BLOCK_ANNOUNCEMENTS: Service[dict[int, list[PendingAnnouncements]]] = Service(
    "announcements of transaction blocks", lambda _: {}
)


def find_session_announcements(core: Core, session: Any) -> SessionAnnouncements:
    """Return the pending announcements of a session, created on first use."""
    known = core.services.get(SESSION_ANNOUNCEMENTS)
    pending = known.get(session)
    if pending is None:
        pending = known[session] = SessionAnnouncements(core, session)
    return pending


def find_block_announcements(core: Core, driver: Any) -> PendingAnnouncements | None:
    """Return the pending announcements of the innermost `stay.transaction` block on this connection, or None."""
    blocks = core.services.get(BLOCK_ANNOUNCEMENTS).get(id(driver))
    return blocks[-1] if blocks else None


def push_block(core: Core, driver: Any, pending: PendingAnnouncements) -> None:
    core.services.get(BLOCK_ANNOUNCEMENTS).setdefault(id(driver), []).append(pending)


def pop_block(core: Core, driver: Any) -> None:
    blocks = core.services.get(BLOCK_ANNOUNCEMENTS)
    blocks[id(driver)].pop()
    if not blocks[id(driver)]:
        del blocks[id(driver)]
