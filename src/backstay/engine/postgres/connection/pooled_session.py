"""Somebody else's connection in our hands: nothing that we do on it is there when it goes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from backstay.engine.postgres.connection.arrays import teach
from backstay.engine.postgres.connection.session import SETTINGS, Session

if TYPE_CHECKING:
    from psycopg_pool.base import BasePool

#: What a group relies on. Set for its transaction, so that no reset is needed, nor forgotten.
LOCAL = ("idle_in_transaction_session_timeout", "lock_timeout", "enable_seqscan")
_SET = ", ".join(f"set_config('{name}', '{SETTINGS[name]}', true)" for name in LOCAL)
SET_LOCAL = f"SELECT {_SET}, set_config('search_path', %(path)s, true)".encode()
#: Where the tables are, whatever was SET on this session since: two sessions that look in two places lock nothing.
SEARCH_PATH = b"SELECT reset_val FROM pg_settings WHERE name = 'search_path'"


class Borrowed(Session):
    """A session of ours around libpq's connection inside theirs. Their settings for rows, cursors, commits and
    prepared statements are in their object, which nobody touches; ours prepares nothing, for the names of prepared
    statements would meet.
    """

    prepares = False
    #: For psycopg: not ours to close, so no warning when this goes.
    _pool: BasePool | None = None

    def __init__(self, owner: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        pgconn = owner.pgconn
        heard = pgconn.notify_handler
        self._noticed = pgconn.notice_handler
        super().__init__(pgconn, tuple_row)
        pgconn.notify_handler = heard  # what they listen to is theirs, whenever it comes
        self.owner = owner
        self.search_path = ""
        self._autocommit = True  # not through the setter: it minds what a check of the pool's may have left open
        self.prepare_threshold = None
        teach(self)

    def beginning(self) -> list[tuple[bytes, Mapping[str, Any]]]:
        return [(b"BEGIN ISOLATION LEVEL READ COMMITTED", {}), (SET_LOCAL, {"path": self.search_path})]

    def lives(self) -> bool:
        """Whether the server has not said goodbye; found out without asking it."""
        try:
            for _ in ("its last words", "the end"):
                self.pgconn.consume_input()
        except psycopg.Error:
            self.pgconn.finish()
        return not self.closed

    def restore(self) -> None:
        """As it was found, or closed: its owner replaces what is broken."""
        pgconn = self.pgconn
        if self.closed:
            return
        if pgconn.transaction_status != pq.TransactionStatus.IDLE or pgconn.pipeline_status != pq.PipelineStatus.OFF:
            pgconn.finish()
            return
        pgconn.notice_handler = self._noticed
