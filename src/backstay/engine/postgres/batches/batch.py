"""Run one batch of operations as one transaction, in two round trips. The first locks and reads the rows of the names
that the operations use; the second writes the rows and commits.

A name without a row gets a row. Rows are locked in a fixed order. If another transaction has locked the row of a name,
the operations on that name are deferred to a later batch: a batch never waits for one lock while it holds others. So
two batches cannot deadlock, and a slow transaction delays only the names whose rows it has locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, cast

import psycopg

from backstay.engine.base import (
    Apply,
    ListTagged,
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
    TakeHint,
    Untag,
    Wake,
    steady,
)
from backstay.engine.commit_thread import DEFERRED, MAX_SECONDS, UNSTARTED
from backstay.engine.postgres.batches.hint_counters import HINT, TAKE, lock_order
from backstay.engine.postgres.batches.statements import (
    BODY,
    CLOCK,
    DELETE,
    INSERT,
    LOCK,
    ORDER,
    READ,
    SCAN,
    SCAN_FROM,
    SKIP,
    TAG,
    TAGGED,
    UNTAG,
    WRITE,
    round_keep_until,
)
from backstay.engine.postgres.connection.arrays import Array, Bytes, Numbers, Texts
from backstay.engine.postgres.connection.wire import COMMIT, Pipeline, Rows, Statement
from backstay.engine.postgres.notify import encode, notify_statement

#: The size of a connection's cache of names that have a row.
KNOWN = 10_000
#: Operations on hint counters. The counter of an announcement limits how many workers respond to it. The counters
#: are in a table of their own.
COUNTERS = (TakeHint, PublishHint)
KINDS: dict[type, type[Array]] = {str: Texts, bytes: Bytes, int: Numbers}

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
        """`known` is a cache of the names that have a row; the batch updates it. With a cache, the batch defers the
        operations on rows that other transactions have locked. With None, it waits for these rows instead.
        """
        self._pipeline = pipeline
        self._space = space
        self._ops = ops
        #: The name (with its room) that each machine command works on, by the `id()` of its operation.
        self._keys: dict[int, Key] = {}
        self._has_counters = False
        #: All names that machine commands work on, sorted, each once.
        self._wanted: list[Key] = []
        #: The names of `_wanted` as statement parameters.
        self._wanted_columns: dict[str, Any] = {}
        self._known = known
        self._test_now = now
        #: The encoded record of each name whose row this transaction has locked; None if there is no record.
        self._locked: dict[Key, bytes | None] = {}
        #: The encoded record of each name that a `Read` reads, which locks no row.
        self._seen: dict[Key, bytes | None] = {}
        #: Decoded records, shared by all commands on a name.
        self._states: dict[Key, Any] = {}
        #: The names whose record has changed, with the operation that changed it last and the new `keep_until`.
        self._written: dict[Key, tuple[Apply, Micros]] = {}
        #: The changed records, encoded when all operations have run; None if the record is deleted.
        self._docs: dict[Key, bytes | None] = {}
        #: The body (a large value beside the record) of each locked name, as stored or as changed by this batch.
        self._bodies: dict[Key, bytes | None] = {}
        #: Of the values in `_bodies`, those that this batch has changed.
        self._new_bodies: dict[Key, bytes] = {}
        self._tags: list[tuple[str, bytes, bytes, Micros]] = []
        self._untags: list[Untag] = []
        #: Statements that create hint counters (see COUNTERS).
        self._hints: list[Statement] = []
        self._published: list[Wake] = []
        #: Hints for waiters, which a hub delivers after the commit.
        self.wakes: list[Wake] = []
        #: The server's clock, read while the names were locked.
        self.now: Micros = 0
        #: True from the moment the COMMIT is sent.
        self.committing = False

    def run(self) -> list[Any]:
        """Run the batch. Return the result or exception of each operation, in order. DEFERRED stands for an operation
        on a name whose row another transaction has locked, UNSTARTED for one that the batch had no time for. Raises
        psycopg's errors.
        """
        results: dict[int, Any] = {}
        now = self._begin()
        until = steady() + MAX_SECONDS
        for index, op in self._in_order():
            results[index] = UNSTARTED if results and steady() > until else self._run_op(op, now)
        for key, error in self._encode().items():
            for index, op in enumerate(self._ops):
                if self._keys.get(id(op)) == key and results[index] is not UNSTARTED:
                    results[index] = error
        unpublished = self._commit()
        if unpublished is not None:
            for index, op in enumerate(self._ops):
                if isinstance(op, (Publish, PublishHint)) and results[index] is not UNSTARTED:
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
            statements.append((INSERT, {**self._name_columns(missing), "now": self._test_now}))
        if wanted:
            self._wanted_columns = self._name_columns(wanted)
            statements.append((LOCK if known is None else SKIP, self._wanted_columns))
        if reads:
            statements.append((READ, self._name_columns(sorted(reads))))
        rows = self._query([*statements, (CLOCK, {})])
        if wanted:
            for room, name, doc, body in rows[-3 if reads else -2]:
                self._locked[room, name] = doc
                self._bodies[room, name] = body
            # Other transactions have locked or deleted the rows of some names: these names may have no row any more.
            if known is not None and len(self._locked) < len(wanted):
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

    def _name_columns(self, keys: Sequence[Key]) -> dict[str, Any]:
        return self._columns(("rooms", "names"), keys)

    def _columns(self, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        """Convert rows to one array per column, for unnest."""
        columns = zip(*rows, strict=True)
        arrays: dict[str, Any] = {name: KINDS[type(c[0])](c) for name, c in zip(names, columns, strict=True)}
        arrays["space"] = self._space
        return arrays

    def _in_order(self) -> Iterable[tuple[int, Op[Any]]]:
        """Return the operations in the order in which they run: as submitted or, if some use hint counters
        (COUNTERS), sorted by counter. All transactions lock counter rows in this order, so they cannot deadlock.
        """
        if self._has_counters:
            return sorted(enumerate(self._ops), key=lock_order)
        return enumerate(self._ops)

    def _update_known(self) -> None:
        known = self._known
        if known is None:
            return
        known.update(self._locked)
        known.difference_update(key for key, doc in self._docs.items() if doc is None)
        if len(known) > KNOWN:
            known.clear()

    def _run_op(self, op: Op[Any], now: Micros) -> Any:
        try:
            return self._handlers[type(op)](self, op, now)
        except psycopg.Error:  # the transaction is aborted, so all operations of the batch fail
            raise
        except Exception as error:  # noqa: BLE001 - an exception becomes the result of this operation only
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
            states[key] = state
            self._written[key] = (op, keep_until)
            if body is not None:
                self._bodies[key] = self._new_bodies[key] = body
        if wakes:
            self.wakes += wakes
        return reply

    def _read(self, op: Read, now: Micros) -> Reading[Any]:
        key = _key(op)
        if key in self._states:
            return Reading(now, self._states[key])
        return Reading(now, _state(op.room, op.name, self._locked.get(key, self._seen.get(key))))

    def _scan(self, op: Scan, now: Micros) -> list[str]:
        prefix = op.prefix.encode()
        end = _prefix_end(prefix)
        statement = (SCAN_FROM if end is None else SCAN) + ORDER
        values = {"room": op.room.name, "now": now, "first": prefix}
        return self._names(statement, values if end is None else {**values, "end": end})

    def _tag(self, op: Tag, now: Micros) -> None:
        self._tags.append((op.room.name, op.tag.encode(), op.name.encode(), now + op.ttl))

    def _list_tagged(self, op: ListTagged, now: Micros) -> list[str]:
        return self._names(TAGGED, {"room": op.room.name, "tag": op.tag.encode(), "now": now})

    def _names(self, statement: bytes, values: dict[str, Any]) -> list[str]:
        (rows,) = self._query([(statement, {"space": self._space, **values})])
        return [name.decode() for (name,) in rows]

    def _untag(self, op: Untag, now: Micros) -> None:
        self._untags.append(op)

    def _publish(self, op: Publish | PublishHint, now: Micros) -> None:
        wake = Wake(op.channel, op.payload)
        encode(wake)  # only a check: too long for NOTIFY fails this operation, not the whole batch
        self._published.append(wake)

    def _publish_hint(self, op: PublishHint, now: Micros) -> None:
        self._publish(op, now)
        self._hints.append((HINT, {"hint": op.hint, "count": op.count, "life": op.life, "now": now}))

    def _take_hint(self, op: TakeHint, now: Micros) -> int:
        # First create the counters that this batch publishes: the hint to take from may be one of them.
        hints, self._hints = self._hints, []
        rows = self._query([*hints, (TAKE, {"hint": op.hint, "n": op.n, "now": now})])[-1]
        return int(rows[0][0]) if rows else op.n

    def _ping(self, op: Ping, now: Micros) -> Micros:
        return now

    _handlers: ClassVar[dict[type, Callable[..., Any]]] = {
        Apply: _apply,
        Read: _read,
        Scan: _scan,
        Tag: _tag,
        ListTagged: _list_tagged,
        Untag: _untag,
        Publish: _publish,
        PublishHint: _publish_hint,
        TakeHint: _take_hint,
        Ping: _ping,
    }

    def _encode(self) -> dict[Key, Exception]:
        """Encode each changed record once, however many commands have changed it: the record of a lock holds its whole
        queue. Returns the errors of the records that cannot be encoded; they are not written.
        """
        errors: dict[Key, Exception] = {}
        for key, (op, _) in self._written.items():
            state = self._states[key]
            try:
                self._docs[key] = None if state is None else op.room.encode(state)
            except Exception as error:  # noqa: BLE001 - only the operations on this name fail
                errors[key] = error
        return errors

    def _commit(self) -> psycopg.Error | None:
        """Update the records, commit and send NOTIFY, all in one write. Returns the error if the commit succeeded and
        the NOTIFY failed; raises it if the commit failed.
        """
        updated = [key for key in self._wanted if self._docs.get(key) is not None]
        deleted = [key for key, doc in self._docs.items() if doc is None]
        bodies = [(*key, body) for key, body in self._new_bodies.items() if self._docs.get(key) is not None]
        statements = self._hints
        if updated:
            names = self._wanted_columns if len(updated) == len(self._wanted) else self._name_columns(updated)
            rounded = [round_keep_until(self._written[key][1], self.now) for key in updated]
            until, steps = (Numbers(column) for column in zip(*rounded, strict=True))
            docs = Bytes([self._docs[key] for key in updated])
            statements.append((WRITE, {**names, "docs": docs, "until": until, "steps": steps}))
        if bodies:
            statements.append((BODY, self._columns(("rooms", "names", "bodies"), bodies)))
        if deleted:
            statements.append((DELETE, self._name_columns(deleted)))
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
        self._pipeline.session.check()  # a closed connection fails here, before COMMIT is sent: so the outcome is known
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


def _prefix_end(prefix: bytes) -> bytes | None:
    """Return the smallest byte string that sorts after all strings with this prefix; None if there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None
