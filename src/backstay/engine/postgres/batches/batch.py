"""Run one batch of operations as one transaction, in two round trips: lock and read; then write and commit.

Missing names are inserted; names are locked in a fixed order, and locked names are skipped and deferred, never waited
for while other locks are held. So two batches cannot deadlock, and a slow transaction delays only its own names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, cast

import psycopg

from backstay.engine.base import (
    Apply,
    Micros,
    Op,
    Ping,
    Publish,
    PublishHint,
    Read,
    Reading,
    Room,
    Scan,
    Tag,
    Tagged,
    TakeHint,
    Untag,
    Wake,
)
from backstay.engine.commit_thread import DEFERRED
from backstay.engine.postgres.batches.hint_counters import HINT, TAKE, lock_order
from backstay.engine.postgres.connection.arrays import Array, Bytes, Numbers, Texts
from backstay.engine.postgres.connection.wire import COMMIT, Pipeline, Rows, Statement
from backstay.engine.postgres.notify import encode, notify_statement

HOUR = 3_600_000_000
#: How many names a connection caches as having a row.
KNOWN = 10_000
#: Operations on hint counters, which have their own table.
COUNTERS = (TakeHint, PublishHint)
KINDS: dict[type, type[Array]] = {str: Texts, bytes: Bytes, int: Numbers}

#: Existing rows are filtered out first, because ON CONFLICT would wait for a transaction that is changing the row.
INSERT = b"""
INSERT INTO backstay_state (space, room, name)
SELECT %(space)s, wanted.room, wanted.name FROM unnest(%(rooms)b, %(names)b) AS wanted (room, name)
WHERE NOT EXISTS (
    SELECT FROM backstay_state state
    WHERE state.space = %(space)s AND state.room = wanted.room AND state.name = wanted.name)
ON CONFLICT DO NOTHING
"""
LOOK = b"""
SELECT state.room, state.name, state.doc, state.body
FROM unnest(%(rooms)b, %(names)b) AS wanted (room, name)
JOIN backstay_state state ON state.space = %(space)s AND state.room = wanted.room AND state.name = wanted.name
"""
LOCK = LOOK + b"ORDER BY state.room, state.name FOR UPDATE OF state"
SKIP = LOCK + b" SKIP LOCKED"
#: A separate statement after the locks: a time that is read before a lock wait would be outdated.
CLOCK = b"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
#: A `keep_until` that is up to an hour too late stays: in the last minutes before a full hour, acquire and release
#: would otherwise move it to the next hour and back, with an index update each time.
WRITE = b"""
UPDATE backstay_state state SET doc = new.doc, keep_until = CASE
    WHEN state.keep_until - new.keep_until BETWEEN 0 AND 3600000000 THEN state.keep_until ELSE new.keep_until END
FROM unnest(%(rooms)b, %(names)b, %(docs)b, %(until)b) AS new (room, name, doc, keep_until)
WHERE state.space = %(space)s AND state.room = new.room AND state.name = new.name
"""
#: Separate from WRITE: most records have no body, and an unchanged large body is not sent again.
BODY = b"""
UPDATE backstay_state state SET body = new.body FROM unnest(%(rooms)b, %(names)b, %(bodies)b) AS new (room, name, body)
WHERE state.space = %(space)s AND state.room = new.room AND state.name = new.name
"""
DELETE = b"""
DELETE FROM backstay_state state USING unnest(%(rooms)b, %(names)b) AS gone (room, name)
WHERE state.space = %(space)s AND state.room = gone.room AND state.name = gone.name
"""
TAG = b"""
INSERT INTO backstay_tag AS known (space, room, tag, name, keep_until)
SELECT %(space)s, t.room, t.tag, t.name, max(t.keep_until)
FROM unnest(%(rooms)b, %(tags)b, %(names)b, %(until)b) AS t (room, tag, name, keep_until)
GROUP BY t.room, t.tag, t.name ORDER BY t.room, t.tag, t.name
ON CONFLICT (space, room, tag, name) DO UPDATE SET keep_until = greatest(known.keep_until, excluded.keep_until)
"""
TAGGED = b"""
SELECT name FROM backstay_tag
WHERE space = %(space)s AND room = %(room)s AND tag = %(tag)b AND keep_until > %(now)s ORDER BY name
"""
UNTAG = b"""
DELETE FROM backstay_tag WHERE space = %(space)s AND room = %(room)s AND tag = %(tag)b AND name = ANY(%(names)b)
"""
SCAN_FROM = b"""
SELECT name FROM backstay_state
WHERE space = %(space)s AND room = %(room)s AND keep_until >= %(now)s AND name >= %(first)b
"""
SCAN = SCAN_FROM + b" AND name < %(end)b"
ORDER = b" ORDER BY name"

Key = tuple[str, bytes]


class Batch:
    """The operations of one transaction."""

    def __init__(
        self,
        pipeline: Pipeline,
        space: str,
        ops: Sequence[Op[Any]],
        *,
        known: set[Key] | None,
        now: Micros | None,
    ) -> None:
        """`known`: a cache of the names that have a row; None: wait for locked names instead of skipping them."""
        self._pipeline = pipeline
        self._space = space
        self._ops = ops
        #: The names of commands, by the operation's identity; whether there are counter operations.
        self._keys: dict[int, Key] = {}
        self._has_counters = False
        #: The distinct names of commands, sorted, and their statement parameters.
        self._wanted: list[Key] = []
        self._wanted_columns: dict[str, Any] = {}
        self._known = known
        self._test_now = now
        #: The records of locked names (`_locked`) and of names that were read without a lock (`_seen`).
        self._locked: dict[Key, bytes | None] = {}
        self._seen: dict[Key, bytes | None] = {}
        #: Decoded records, shared by all commands on a name.
        self._states: dict[Key, Any] = {}
        self._written: dict[Key, Micros] = {}
        #: The bodies of the locked records, and the changed ones.
        self._bodies: dict[Key, bytes | None] = {}
        self._new_bodies: dict[Key, bytes] = {}
        self._tags: list[tuple[str, bytes, bytes, Micros]] = []
        self._untags: list[Untag] = []
        #: Statements that create counters.
        self._hints: list[Statement] = []
        self._published: list[Wake] = []
        #: Hints for waiters, which a hub delivers after the commit.
        self.wakes: list[Wake] = []
        #: The server's clock, read while the names were locked.
        self.now: Micros = 0
        #: True from the moment the COMMIT is sent.
        self.committing = False

    def run(self) -> list[Any]:
        """Return results or exceptions, in order; DEFERRED for locked names. Raises psycopg's errors."""
        results: dict[int, Any] = {}
        now = self._begin()
        for index, op in self._in_order():
            results[index] = self._run_op(op, now)
        unpublished = self._commit()
        if unpublished is not None:
            for index, op in enumerate(self._ops):
                if isinstance(op, (Publish, PublishHint)):
                    results[index] = unpublished
        self._update_known()
        return [results[index] for index in range(len(self._ops))]

    def _begin(self) -> Micros:
        known = self._known
        keys, reads = self._keys, set[Key]()
        for op in self._ops:
            kind = type(op)
            if kind is Apply:
                keys[id(op)] = _key(cast("Apply", op))
            elif kind is Read:
                reads.add(_key(cast("Read", op)))
            elif kind in COUNTERS:
                self._has_counters = True
        self._wanted = wanted = sorted(set(keys.values()))
        missing = wanted if not known else [key for key in wanted if key not in known]
        statements = self._pipeline.session.begin_statements()
        if missing:
            statements.append((INSERT, self._named(missing)))
        if wanted:
            self._wanted_columns = self._named(wanted)
            statements.append((LOCK if known is None else SKIP, self._wanted_columns))
        if reads:
            statements.append((LOOK, self._named(sorted(reads))))
        rows = self._query([*statements, (CLOCK, {})])
        if wanted:
            for room, name, doc, body in rows[-3 if reads else -2]:
                self._locked[room, name] = doc
                self._bodies[room, name] = body
            if known is not None and len(self._locked) < len(wanted):  # locked, or deleted by another transaction
                known.difference_update(key for key in wanted if key not in self._locked)
        if reads:
            self._seen = {(room, name): doc for room, name, doc, _ in rows[-2]}
        ((now,),) = rows[-1]
        self.now = int(now) if self._test_now is None else self._test_now
        return self.now

    def _query(self, statements: list[Statement]) -> list[Rows]:
        """Send statements and return their rows. Raises the first error."""
        results, failed = self._pipeline.send(statements)
        if failed is not None:
            raise failed
        return [result.rows for result in results]

    def _named(self, keys: Sequence[Key]) -> dict[str, Any]:
        return self._columns(("rooms", "names"), keys)

    def _columns(self, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        """Convert rows to one array per column, for unnest."""
        columns = zip(*rows, strict=True)
        arrays: dict[str, Any] = {name: KINDS[type(c[0])](c) for name, c in zip(names, columns, strict=True)}
        arrays["space"] = self._space
        return arrays

    def _in_order(self) -> Iterable[tuple[int, Op[Any]]]:
        """Return the operations in submission order; counters, whose row locks are waited for, in a fixed order that
        prevents deadlock.
        """
        if self._has_counters:
            return sorted(enumerate(self._ops), key=lock_order)
        return enumerate(self._ops)

    def _update_known(self) -> None:
        known = self._known
        if known is None:
            return
        known.update(self._locked)
        known.difference_update(key for key in self._written if self._locked[key] is None)
        if len(known) > KNOWN:
            known.clear()

    def _run_op(self, op: Op[Any], now: Micros) -> Any:
        try:
            return self._handlers[type(op)](self, op, now)
        except psycopg.Error:  # a server error fails the whole transaction
            raise
        except Exception as error:  # noqa: BLE001 - an exception is the result of this operation only
            return error

    def _apply(self, op: Apply, now: Micros) -> Any:
        key, room, locked, states = self._keys[id(op)], op.room, self._locked, self._states
        if key not in locked:
            return DEFERRED
        if key not in states:
            states[key] = _state(room, op.name, locked[key])
        transition = room.step(states[key], op.command, now)
        state, reply, wakes, keep_until, write, body, includes_body = transition
        if includes_body:
            reply = room.complete_reply(op.name, transition, self._bodies[key])
        if write:
            locked[key] = None if state is None else room.encode(state)
            states[key] = state
            self._written[key] = -(-keep_until // HOUR) * HOUR
            if body is not None:
                self._bodies[key] = self._new_bodies[key] = body
        if wakes:
            self.wakes += wakes
        return reply

    def _read(self, op: Read, now: Micros) -> Reading[Any]:
        key = _key(op)
        return Reading(now, _state(op.room, op.name, self._locked.get(key, self._seen.get(key))))

    def _scan(self, op: Scan, now: Micros) -> list[str]:
        prefix = op.prefix.encode()
        end = _after(prefix)
        statement = (SCAN_FROM if end is None else SCAN) + ORDER
        values = {"room": op.room.name, "now": now, "first": prefix}
        return self._names(statement, values if end is None else {**values, "end": end})

    def _tag(self, op: Tag, now: Micros) -> None:
        self._tags.append((op.room.name, op.tag.encode(), op.name.encode(), now + op.ttl))

    def _tagged(self, op: Tagged, now: Micros) -> list[str]:
        return self._names(TAGGED, {"room": op.room.name, "tag": op.tag.encode(), "now": now})

    def _names(self, statement: bytes, values: dict[str, Any]) -> list[str]:
        (rows,) = self._query([(statement, {"space": self._space, **values})])
        return [name.decode() for (name,) in rows]

    def _untag(self, op: Untag, now: Micros) -> None:
        self._untags.append(op)

    def _publish(self, op: Publish | PublishHint, now: Micros) -> None:
        wake = Wake(op.channel, op.payload)
        encode(wake)  # raises here, for this operation only, if the message is too long
        self._published.append(wake)

    def _publish_hint(self, op: PublishHint, now: Micros) -> None:
        self._publish(op, now)
        self._hints.append((HINT, {"hint": op.hint, "count": op.count, "life": op.life, "now": now}))

    def _take_hint(self, op: TakeHint, now: Micros) -> int:
        hints, self._hints = self._hints, []  # counters of this batch are created before they are taken from
        rows = self._query([*hints, (TAKE, {"hint": op.hint, "n": op.n, "now": now})])[-1]
        return int(rows[0][0]) if rows else op.n

    def _ping(self, op: Ping, now: Micros) -> Micros:
        return now

    _handlers: ClassVar[dict[type, Callable[..., Any]]] = {
        Apply: _apply,
        Read: _read,
        Scan: _scan,
        Tag: _tag,
        Tagged: _tagged,
        Untag: _untag,
        Publish: _publish,
        PublishHint: _publish_hint,
        TakeHint: _take_hint,
        Ping: _ping,
    }

    def _commit(self) -> psycopg.Error | None:
        """Write the records and commit, in one write. Returns the error if the commit succeeded but the NOTIFY after it
        failed.
        """
        kept = [key for key in self._wanted if key in self._written and self._locked[key] is not None]
        gone = [key for key in self._written if self._locked[key] is None]
        bodies = [(*key, body) for key, body in self._new_bodies.items()]
        statements = self._hints
        if kept:
            names = self._wanted_columns if len(kept) == len(self._wanted) else self._named(kept)
            docs = Bytes([self._locked[key] for key in kept])
            until = Numbers([self._written[key] for key in kept])
            statements.append((WRITE, {**names, "docs": docs, "until": until}))
        if bodies:
            statements.append((BODY, self._columns(("rooms", "names", "bodies"), bodies)))
        if gone:
            statements.append((DELETE, self._named(gone)))
        if self._tags:
            statements.append((TAG, self._columns(("rooms", "tags", "names", "until"), self._tags)))
        for op in self._untags:
            gone_names = Bytes([name.encode() for name in op.names])
            given = {"space": self._space, "room": op.room.name, "tag": op.tag.encode(), "names": gone_names}
            statements.append((UNTAG, given))
        statements.append(COMMIT)
        commit = len(statements)
        if self._published:
            statements.append(notify_statement(self._published))
        self._pipeline.session.check()  # fail before sending: an unsent COMMIT cannot have an unknown outcome
        self.committing = True
        results, failed = self._pipeline.send(statements)
        if len(results) >= commit and results[commit - 1].command == COMMIT[0]:
            return failed
        if failed is not None:
            raise failed
        self.committing = False  # COMMIT of a failed transaction reports ROLLBACK, not an error
        raise psycopg.OperationalError("the server rolled the transaction back")


def _key(op: Apply | Read) -> Key:
    return op.room.name, op.name.encode()


def _state(room: Room[Any], name: str, doc: bytes | None) -> Any:
    return None if doc is None else room.decode_state(name, doc)


def _after(prefix: bytes) -> bytes | None:
    """Return the smallest bytes after all that start with `prefix`; None: there are none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None
