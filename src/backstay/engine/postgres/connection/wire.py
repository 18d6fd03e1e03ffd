"""Several statements to the server in one write, and all of their answers: libpq's pipeline without psycopg's cursors.

A cursor looks at the text, the parameters and the columns of every statement anew, which costs more than what most of
them do. Here a text is read once, prepared once for each session, and what it answers is loaded at once.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import psycopg
from psycopg import errors as pg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from backstay.engine.postgres.connection.arrays import Array, dump
from backstay.engine.postgres.connection.session import Session

#: A text with `%(name)s` in it, and what they stand for; a `b` instead of the `s` means the same.
Statement = tuple[bytes, Mapping[str, Any]]

COMMIT: Statement = (b"COMMIT", {})
#: Travel as text every time: whoever looks at the traffic can tell where a transaction begins and ends.
PLAIN = frozenset({b"BEGIN", COMMIT[0]})

_PLACE = re.compile(rb"%\((\w+)\)[sb]")
_BIGINT = struct.Struct("!q")
#: A text with the kinds of its parameters.
Key = tuple[bytes, tuple[int, ...]]


Rows = list[tuple[Any, ...]]


class Answer(NamedTuple):
    """What a statement came to: its rows, and what the server says that it did."""

    rows: Rows
    done: bytes


Came = tuple[list[list[PGresult]], psycopg.Error | None]


class Exchange:
    """Statements on their way, and what waits for the answers: it may pass from one who waits to another."""

    __slots__ = ("_going", "_wants", "expected")

    def __init__(self, expected: list[Key | None], going: PQGen[Came]) -> None:
        self.expected = expected
        self._going = going
        #: What it waits for, once it was begun.
        self._wants: Wait | None = None

    def go_on(self, ready: Ready | None = None) -> Came | None:
        """Send and read as far as that goes without waiting; None: not all of it is there yet."""
        try:
            self._wants = next(self._going) if ready is None else self._going.send(ready)
        except StopIteration as end:
            came: Came = end.value
            return came
        return None

    @property
    def is_sent(self) -> bool:
        """Everything has left: only answers are waited for."""
        return self._wants == Wait.R

    def rest(self) -> PQGen[Came]:
        """For whoever waits from here on."""
        going, wants = self._going, self._wants
        if wants is None:
            return (yield from going)
        while True:
            ready = yield wants
            try:
                wants = going.send(ready)
            except StopIteration as end:
                came: Came = end.value
                return came


class Wire:
    """The way to the server through one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._names: dict[Key, bytes] = {}
        self._made = 0
        self._loading = Transformer(session)

    def send(self, statements: Sequence[Statement]) -> tuple[list[Answer], psycopg.Error | None]:
        """What was answered up to the first error, and that."""
        return self.receive(self.begin(statements))

    def begin(self, statements: Sequence[Statement]) -> Exchange:
        """The same, to be driven by whoever waits for the server: nothing has been sent yet."""
        pgconn = self.session.pgconn
        pgconn.enter_pipeline_mode()
        try:
            # For each answer that will come: what it makes known, if it is about preparing.
            expected = [about for statement in statements for about in self._queue(statement)]
            pgconn.pipeline_sync()
        except BaseException:
            pgconn.finish()  # whatever comes now answers something else
            raise
        return Exchange(expected, _exchange(pgconn, len(expected) + 1))

    def receive(self, exchange: Exchange) -> tuple[list[Answer], psycopg.Error | None]:
        """Wait for all of it, also where somebody else began to."""
        pgconn = self.session.pgconn
        try:
            results, broken = self.session.wait(exchange.rest())
        except BaseException:
            pgconn.finish()
            raise
        return self.read(exchange, results, broken)

    def read(
        self, exchange: Exchange, results: list[list[PGresult]], broken: psycopg.Error | None
    ) -> tuple[list[Answer], psycopg.Error | None]:
        """What came of an exchange that is over."""
        pgconn = self.session.pgconn
        try:
            answers, failed = self._read(results, exchange.expected, broken)
            if pgconn.status == ConnStatus.OK:
                pgconn.exit_pipeline_mode()
        except BaseException:
            pgconn.finish()
            raise
        return answers, failed

    def _queue(self, statement: Statement) -> list[Key | None]:
        text, names = numbered(statement[0])
        given = statement[1]
        values, oids = _parameters([given[name] for name in names])
        formats = [Format.BINARY] * len(values)
        pgconn = self.session.pgconn
        if not self.session.prepares or text in PLAIN:
            pgconn.send_query_params(text, values, oids, formats, Format.BINARY)
            return [None]
        key = text, oids
        name = self._names.get(key)
        if name is not None:
            pgconn.send_query_prepared(name, values, formats, Format.BINARY)
            return [None]
        self._made += 1
        # Known from now on: the same may come again in this very round.
        name = self._names[key] = b"backstay_%d" % self._made
        pgconn.send_prepare(name, text, oids)
        pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        return [key, None]

    def _read(
        self, results: list[list[PGresult]], expected: list[Key | None], broken: psycopg.Error | None
    ) -> tuple[list[Answer], psycopg.Error | None]:
        answers: list[Answer] = []
        failed: psycopg.Error | None = None
        silent = broken or pg.OperationalError("no answer")
        for place, about in enumerate(expected):
            result = results[place][0] if place < len(results) and results[place] else None
            if failed is None and result is not None and result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
                if about is None:
                    answers.append(Answer(self._load(result), result.command_status or b""))
                continue
            if about is not None:
                self._names.pop(about, None)  # not prepared
            if failed is None:
                failed = pg.error_from_result(result) if result is not None else silent
        return answers, failed or broken

    def _load(self, result: PGresult) -> Rows:
        if result.status != ExecStatus.TUPLES_OK or not result.ntuples:
            return []
        self._loading.set_pgresult(result, format=Format.BINARY)
        return self._loading.load_rows(0, result.ntuples, tuple)


def _exchange(pgconn: PGconn, answers: int) -> PQGen[Came]:
    """What came, and why no more: what was said before a connection broke counts."""
    results: list[list[PGresult]] = []
    try:
        yield from generators.send(pgconn)
        while len(results) < answers:
            results.append((yield from generators.fetch_many(pgconn)))
    except psycopg.Error as error:
        return results, error
    return results, None


@cache
def numbered(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """A text with `$1`, `$2`, … instead of names, and the names in that order."""
    places: dict[bytes, int] = {}
    made = _PLACE.sub(lambda found: b"$%d" % places.setdefault(found[1], len(places) + 1), text)
    return made, tuple(name.decode() for name in places)


def _parameters(given: Iterable[Any]) -> tuple[list[bytes | None], tuple[int, ...]]:
    """Values as the server wants them, and their kinds."""
    values: list[bytes | None] = []
    oids: list[int] = []
    for value in given:
        kind: object = value.__class__
        if kind is int:
            values.append(_BIGINT.pack(value))
            oids.append(20)
        elif kind is str:
            values.append(value.encode())
            oids.append(25)
        elif isinstance(value, Array):
            values.append(dump(value))
            oids.append(value.oid)
        elif kind is bool:
            values.append(b"\x01" if value else b"\x00")
            oids.append(16)
        elif value is None:
            values.append(None)
            oids.append(0)
        elif kind is bytes:
            values.append(value)
            oids.append(17)
        else:
            raise TypeError(f"no parameter of a statement: {type(value).__name__}")
    return values, tuple(oids)
