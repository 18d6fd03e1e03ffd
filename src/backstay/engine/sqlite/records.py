"""The records that one SQLite transaction uses: each is read and decoded once, and encoded and written once."""

from __future__ import annotations

import sqlite3
from typing import Any

from backstay.engine.base import Apply, Micros, Read, Reading, Room, Wake


class LoadedRecord:
    """A record in the transaction's memory. `state` is None if the name has no record."""

    __slots__ = ("body", "indexes", "is_changed", "keep_until", "new_body", "room", "state", "was_deleted")

    def __init__(self, room: Room[Any], state: Any, body: bytes | None) -> None:
        self.room = room
        self.state = state
        self.body = body
        self.keep_until: Micros = 0
        #: Whether the record must be written.
        self.is_changed = False
        #: Whether a command of this transaction has deleted the record; a later one may have created it again.
        self.was_deleted = False
        #: The body to write; None if it did not change.
        self.new_body: bytes | None = None
        #: The positions in the batch of the operations that changed the record.
        self.indexes: list[int] = []


class Records:
    """Runs machine commands on records in memory. `write` stores those that have changed. A thousand commands on one
    name then cost one decoding and one encoding of its record, which holds the whole queue of a lock.
    """

    def __init__(self, db: sqlite3.Connection, namespace: str) -> None:
        self._db = db
        self._namespace = namespace
        self._loaded: dict[tuple[str, str], LoadedRecord] = {}

    def apply(self, index: int, op: Apply, now: Micros, wakes: list[Wake]) -> Any:
        """Run the command of the operation at the position `index` of the batch."""
        room = op.room
        record = self._load(room, op.name)
        transition = room.step(record.state, op.command, now)
        reply = room.complete_reply(op.name, transition, record.body)
        if transition.write:
            record.state, record.keep_until, record.is_changed = transition.state, transition.keep_until, True
            record.indexes.append(index)
            if transition.state is None:
                record.body = record.new_body = None
                record.was_deleted = True
            elif transition.body is not None:
                record.body = record.new_body = transition.body
        wakes += transition.wakes
        return reply

    def read(self, op: Read, now: Micros) -> Reading[Any]:
        return Reading(now, self._load(op.room, op.name).state)

    def _load(self, room: Room[Any], name: str) -> LoadedRecord:
        record = self._loaded.get((room.name, name))
        if record is None:
            row = self._db.execute(
                "SELECT doc, body FROM backstay_state WHERE space = ? AND room = ? AND name = ?",
                (self._namespace, room.name, name),
            ).fetchone()
            record = (
                LoadedRecord(room, room.decode_state(name, row[0]), row[1]) if row else LoadedRecord(room, None, None)
            )
            self._loaded[room.name, name] = record
        return record

    def write(self) -> dict[int, Exception]:
        """Write the changed records, and forget all: the next operation may change the table itself. Returns the errors
        of the operations whose record cannot be stored; of such a record nothing is written.
        """
        errors: dict[int, Exception] = {}
        loaded, self._loaded = self._loaded, {}
        for (_, name), record in loaded.items():
            if record.is_changed:
                try:
                    self._write(name, record)
                except sqlite3.Error:
                    raise
                except Exception as error:  # noqa: BLE001 - the value cannot be encoded: only its operations fail
                    errors.update(dict.fromkeys(record.indexes, error))
        return errors

    def _write(self, name: str, record: LoadedRecord) -> None:
        key = (self._namespace, record.room.name, name)
        if record.state is None:
            self._db.execute("DELETE FROM backstay_state WHERE space = ? AND room = ? AND name = ?", key)
            return
        values = (*key, record.room.encode(record.state), record.keep_until)
        if record.was_deleted or record.new_body is not None:
            self._db.execute(
                "INSERT OR REPLACE INTO backstay_state (space, room, name, doc, keep_until, body)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (*values, record.new_body),
            )
        else:  # the stored body stays as it is
            self._db.execute(
                "INSERT INTO backstay_state (space, room, name, doc, keep_until) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET doc = excluded.doc, keep_until = excluded.keep_until",
                values,
            )
