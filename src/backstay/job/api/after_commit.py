"""Announcements of jobs enqueued in the caller's transaction: sent after its commit, discarded on a rollback."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

from backstay.job.api.announcer import ANNOUNCER
from backstay.runtime.core import Core
from backstay.runtime.services import Service


class PendingAnnouncements:
    """The announcements to send when a transaction commits: a list with the type of each job that was enqueued in it,
    in order. The length of the list when a savepoint begins is the savepoint's mark; a rollback truncates the list to
    it.
    """

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
        """Keep only the first `mark` announcements. The jobs of the later ones were rolled back."""
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
        #: For each savepoint: how many announcements were pending when it began. A rollback to the savepoint discards
        #: the announcements after that position.
        self._marks: dict[Any, int] = {}
        event = sys.modules["sqlalchemy"].event  # already imported, since the caller has a session
        event.listen(session, "after_commit", self._on_commit)
        event.listen(session, "after_soft_rollback", self._on_rollback)

    def add_in_session(self, session: Any, types: list[str]) -> None:
        """Add an announcement for each job; `types` has the type of each. Before that, record for each savepoint that
        began since the last call how many announcements are pending: a rollback to the savepoint keeps only these.
        """
        savepoint = session.get_nested_transaction()
        while savepoint is not None:
            if savepoint.nested:
                self._marks.setdefault(savepoint, len(self))
            savepoint = savepoint.parent
        self.add(types)

    def _on_commit(self, session: Any) -> None:
        if session.get_nested_transaction() is None:  # otherwise only a savepoint was released
            self._marks.clear()
            self.send()

    def _on_rollback(self, session: Any, transaction: Any) -> None:
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
    """Return the pending announcements of a SQLAlchemy session. The first call for a session creates them."""
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
