"""Send several statements in one write and read all their results: libpq's pipeline mode without psycopg's cursors.

A cursor analyses the text, the parameters and the columns of every execution, which costs more than most statements do.
Here a text is parsed once and prepared once per session, and a result is loaded in one call.
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

#: An SQL text with placeholders `%(name)s` or `%(name)b`, which mean the same here, and the values by name.
Statement = tuple[bytes, Mapping[str, Any]]

COMMIT: Statement = (b"COMMIT", {})
#: Statements that are sent as text and never prepared, so that a traffic dump shows where transactions begin and end.
PLAIN = frozenset({b"BEGIN", COMMIT[0]})

_PLACE = re.compile(rb"%\((\w+)\)[sb]")
_BIGINT = struct.Struct("!q")
#: An SQL text with the type OIDs of its parameters. The session prepares one statement for each Key.
Key = tuple[bytes, tuple[int, ...]]


Rows = list[tuple[Any, ...]]


class StatementResult(NamedTuple):
    """The rows of a statement, and the server's command tag (`COMMIT`, `UPDATE 3`, …)."""

    rows: Rows
    command: bytes


TripResults = tuple[list[list[PGresult]], psycopg.Error | None]


class PipelineTrip:
    """One write of statements and the wait for their results. An event loop can start it and a thread can finish it."""

    __slots__ = ("_generator", "_waits_for", "expected")

    def __init__(self, expected: list[Key | None], generator: PQGen[TripResults]) -> None:
        self.expected = expected
        self._generator = generator
        #: The socket event that the trip waits for; None before it starts.
        self._waits_for: Wait | None = None

    def advance(self, ready: Ready | None = None) -> TripResults | None:
        """Send and read as far as possible without blocking. Returns None while results are missing."""
        try:
            self._waits_for = next(self._generator) if ready is None else self._generator.send(ready)
        except StopIteration as end:
            results: TripResults = end.value
            return results
        return None

    @property
    def is_sent(self) -> bool:
        """Whether all statements have been sent and only results are awaited."""
        return self._waits_for == Wait.R

    def finish(self) -> PQGen[TripResults]:
        """Finish the trip, as a generator for psycopg's `wait`. Returns the results."""
        generator, waits_for = self._generator, self._waits_for
        if waits_for is None:
            return (yield from generator)
        while True:
            ready = yield waits_for
            try:
                waits_for = generator.send(ready)
            except StopIteration as end:
                results: TripResults = end.value
                return results


class Pipeline:
    """Sends statements through one session in libpq's pipeline mode. Not thread-safe."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._names: dict[Key, bytes] = {}
        self._prepared_count = 0
        self._loading = Transformer(session)

    def send(self, statements: Sequence[Statement]) -> tuple[list[StatementResult], psycopg.Error | None]:
        """Send statements and wait. Returns the results up to the first error, and that error."""
        return self.receive(self.begin(statements))

    def begin(self, statements: Sequence[Statement]) -> PipelineTrip:
        """Queue statements in libpq without sending them. The caller sends them and reads their results through the
        returned trip.
        """
        pgconn = self.session.pgconn
        pgconn.enter_pipeline_mode()
        try:
            # One entry for each result that the server will send, in order: the Key of the statement for the result of
            # a PREPARE, None for the result of an execution.
            expected = [prepared for statement in statements for prepared in self._queue(statement)]
            pgconn.pipeline_sync()
        except BaseException:
            # Close the connection: some statements are already queued, and their results would be taken for those of
            # later statements.
            pgconn.finish()
            raise
        return PipelineTrip(expected, _run_trip(pgconn, len(expected) + 1))

    def receive(self, trip: PipelineTrip) -> tuple[list[StatementResult], psycopg.Error | None]:
        """Wait for all results of a trip, also of one that an event loop has started."""
        pgconn = self.session.pgconn
        try:
            results, broken = self.session.wait(trip.finish())
        except BaseException:
            pgconn.finish()
            raise
        return self.read(trip, results, broken)

    def read(
        self, trip: PipelineTrip, results: list[list[PGresult]], broken: psycopg.Error | None
    ) -> tuple[list[StatementResult], psycopg.Error | None]:
        """Decode the results of a completed round trip."""
        pgconn = self.session.pgconn
        try:
            loaded, failed = self._read(results, trip.expected, broken)
            if pgconn.status == ConnStatus.OK:
                pgconn.exit_pipeline_mode()
        except BaseException:
            pgconn.finish()
            raise
        return loaded, failed

    def _queue(self, statement: Statement) -> list[Key | None]:
        text, names = number_placeholders(statement[0])
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
        self._prepared_count += 1
        # The name is stored before the server confirms the PREPARE, because this trip may contain the statement again.
        name = self._names[key] = b"backstay_%d" % self._prepared_count
        pgconn.send_prepare(name, text, oids)
        pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        return [key, None]

    def _read(
        self, results: list[list[PGresult]], expected: list[Key | None], broken: psycopg.Error | None
    ) -> tuple[list[StatementResult], psycopg.Error | None]:
        loaded: list[StatementResult] = []
        failed: psycopg.Error | None = None
        no_result = broken or pg.OperationalError("no answer")
        for index, prepared in enumerate(expected):
            result = results[index][0] if index < len(results) and results[index] else None
            if failed is None and result is not None and result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
                if prepared is None:
                    loaded.append(StatementResult(self._load(result), result.command_status or b""))
                continue
            if prepared is not None:
                self._names.pop(prepared, None)  # the prepare failed or was skipped
            if failed is None:
                failed = pg.error_from_result(result) if result is not None else no_result
        return loaded, failed or broken

    def _load(self, result: PGresult) -> Rows:
        if result.status != ExecStatus.TUPLES_OK or not result.ntuples:
            return []
        self._loading.set_pgresult(result, format=Format.BINARY)
        return self._loading.load_rows(0, result.ntuples, tuple)


def _run_trip(pgconn: PGconn, expected: int) -> PQGen[TripResults]:
    """Send and fetch `expected` results. If the connection breaks, returns the error and the results that arrived
    before it, which are valid.
    """
    results: list[list[PGresult]] = []
    try:
        yield from generators.send(pgconn)
        while len(results) < expected:
            results.append((yield from generators.fetch_many(pgconn)))
    except psycopg.Error as error:
        return results, error
    return results, None


@cache
def number_placeholders(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Replace named placeholders with `$1`, `$2`, …; return the text and the names in that order."""
    places: dict[bytes, int] = {}
    made = _PLACE.sub(lambda found: b"$%d" % places.setdefault(found[1], len(places) + 1), text)
    return made, tuple(name.decode() for name in places)


def _parameters(given: Iterable[Any]) -> tuple[list[bytes | None], tuple[int, ...]]:
    """Encode values in the binary format; return them with their type OIDs."""
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
            raise TypeError(f"a statement takes no parameter of type {type(value).__name__}")
    return values, tuple(oids)
