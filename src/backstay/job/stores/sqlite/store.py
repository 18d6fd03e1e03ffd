"""Jobs in SQLite: every verb is one piece of a transaction, on the engine's writer or on the caller's own connection.

Nothing is remembered outside the tables, so that any connection to the file will do. What takes time and needs no
table (encoding, checking) is done when the operation is made, before the transaction begins.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from backstay.engine.base import Micros, Op, Wake, Within
from backstay.errors import ConfigError
from backstay.job.model import (
    FINAL,
    Delivery,
    Enqueued,
    Job,
    JobResult,
    LogLine,
    NewJob,
    Queue,
    Rate,
    Renewal,
    RenewalVerdict,
    State,
    StepCommand,
    StepReply,
    Tick,
    Worker,
)
from backstay.job.run_model import Artifact, Definition, EventPage, NewRun, Run, RunEvent, RunStatus, TokenRecord
from backstay.job.stores.sqlite import admin, pruner, queues
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import NUMBERS, encode, text_of
from backstay.job.stores.sqlite.ending import deliver
from backstay.job.stores.sqlite.enqueue import Enqueuing
from backstay.job.stores.sqlite.exchange import next_due, step
from backstay.job.stores.sqlite.finish_batch import Ends
from backstay.job.stores.sqlite.prepared import prepare, storable
from backstay.job.stores.sqlite.query import listing, look
from backstay.job.stores.sqlite.reap import make_due, reap
from backstay.job.stores.sqlite.records import artifacts, cron, definitions, logs, tokens, workers
from backstay.job.stores.sqlite.renew import renew
from backstay.job.stores.sqlite.runs import events, runs
from backstay.job.stores.sqlite.runs.rerun import rerun_failed

T = TypeVar("T")


class SqliteStore:
    """`backstay.job.store.Store` on SQLite. `prefix` is where ends and losses are announced."""

    shards = 1
    announces, gap = False, 0.0
    lanes = 1
    parts = False
    takes = False
    read_handed = None

    def __init__(self, namespace: str, prefix: str) -> None:
        self._space = namespace
        self._prefix = prefix

    def _op(self, verb: Callable[[Changes], T], *, reads: bool = False) -> Op[T]:
        def work(db: sqlite3.Connection, now: Micros, wakes: list[Wake]) -> T:
            return verb(Changes(db, self._space, self._prefix, now, wakes, reads=reads))

        return Within(work, key=self._space, reads=reads)

    # ── work ──

    def enqueue(self, shard: int, jobs: Sequence[NewJob], *, tell: bool = False) -> Op[list[Enqueued]]:
        encoded = [prepare(job) for job in jobs]

        def verb(changes: Changes) -> list[Enqueued]:
            enqueuing = Enqueuing(changes, encoded)
            enqueuing.look()
            answers = enqueuing.write()
            changes.write()
            return answers

        return self._op(verb)

    def step(self, command: StepCommand) -> Op[StepReply]:
        ends = Ends(command.finishes)
        return self._op(lambda changes: step(changes, command, ends))

    def renew(self, shard: int, worker: str, lease: Micros, leases: Sequence[Renewal]) -> Op[list[RenewalVerdict]]:
        ids = text_of([renewal.job for renewal in leases])
        return self._op(lambda changes: renew(changes, worker, lease, leases, ids))

    def reap(self, shard: int, limit: int = 1000) -> Op[dict[str, int]]:
        def verb(changes: Changes) -> dict[str, int]:
            reap(changes, max(0, limit))
            make_due(changes, max(0, limit))
            return changes.close()

        return self._op(verb)

    def undelivered(self, shard: int, limit: int = 1000) -> Op[list[Delivery]]:
        """There is one shard: nobody elsewhere waits for it."""
        return self._op(lambda _: [], reads=True)

    def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> Op[dict[str, int]]:
        def verb(changes: Changes) -> dict[str, int]:
            for delivery in deliveries:
                entry = admin.find(changes, delivery.job)
                if entry is not None:
                    deliver(changes, entry, delivery.chain, delivery.result)
            return changes.close()

        return self._op(verb)

    def delivered(self, shard: int, deliveries: Sequence[Delivery]) -> Op[None]:
        return self._op(lambda _: None, reads=True)

    # ── by hand ──

    def cancel(self, job: str, reason: str) -> Op[State | None]:
        return self._op(lambda changes: admin.cancel(changes, job, reason))

    def trigger(self, job: str) -> Op[State | None]:
        return self._op(lambda changes: admin.trigger(changes, job))

    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> Op[int]:
        if state not in FINAL:
            raise ConfigError(f"only jobs that have ended are purged, not {state} ones: one of {', '.join(FINAL)}")
        (number,) = NUMBERS[state]
        return self._op(lambda changes: pruner.purge(changes, number, queue, max(0, limit)))

    def pause(self, queue: str, *, paused: bool) -> Op[None]:
        return self._op(lambda changes: queues.pause(changes, queue, paused=paused))

    def limit_queue(self, queue: str, rate: Rate | None) -> Op[None]:
        return self._op(lambda changes: queues.limit(changes, queue, rate))

    # ── looking ──

    def get(self, job: str) -> Op[Job | None]:
        return self._op(lambda changes: look.get(changes, job), reads=True)

    def watch(self, job: str, *, chain: bool = False) -> Op[Job | None]:
        return self._op(lambda changes: look.watch(changes, job, chain=chain))

    def list_jobs(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - what it is called everywhere
        run: str = "",
        before: str = "",
        limit: int = 50,
    ) -> Op[list[Job]]:
        return self._op(
            lambda changes: listing.list_jobs(changes, state, queue, type, run, before, max(0, limit)), reads=True
        )

    def results(self, run: str, *, before: str = "", limit: int = 1000) -> Op[list[JobResult]]:
        return self._op(lambda changes: listing.results(changes, run, before, max(0, limit)), reads=True)

    def queues(self) -> Op[list[Queue]]:
        return self._op(queues.queues, reads=True)

    def next_due(self, shard: int) -> Op[Micros | None]:
        return self._op(next_due, reads=True)

    # ── what jobs leave behind ──

    def append_log(self, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> Op[bool]:
        return self._op(lambda changes: logs.append_log(changes, job, fence, lines, first))

    def read_log(self, job: str, after: int = 0, limit: int = 1000) -> Op[list[LogLine]]:
        return self._op(lambda changes: logs.read_log(changes, job, after, max(0, limit)), reads=True)

    def put_outputs(self, job: str, fence: int, outputs: dict[str, str]) -> Op[bool]:
        return self._op(lambda changes: logs.put_outputs(changes, job, fence, outputs))

    def get_outputs(self, job: str) -> Op[dict[str, str]]:
        return self._op(lambda changes: logs.get_outputs(changes, job), reads=True)

    # ── workers, cron, tidiness ──

    def beat(self, worker: Worker) -> Op[None]:
        doc = encode(worker)
        return self._op(lambda changes: workers.beat(changes, worker.id, doc))

    def leave(self, worker: str) -> Op[None]:
        return self._op(lambda changes: workers.leave(changes, worker))

    def workers(self) -> Op[list[Worker]]:
        return self._op(workers.workers, reads=True)

    def ticks(self, names: Sequence[str]) -> Op[dict[str, Micros]]:
        return self._op(lambda changes: cron.ticks(changes, names))

    def tick(self, tick: Tick) -> Op[bool]:
        encoded = prepare(tick.job)
        return self._op(lambda changes: cron.tick(changes, tick.name, tick.at, encoded))

    def prune(self, shard: int, keep: int, limit: int = 1000) -> Op[int]:
        return self._op(lambda changes: pruner.prune(changes, max(0, keep), max(0, limit)))

    # ── runs ──

    def start_run(self, run: NewRun) -> Op[Run]:
        prepared = runs.prepare_run(run)
        return self._op(lambda changes: runs.start(changes, prepared))

    def get_run(self, run: str, *, doc: bool = True) -> Op[Run | None]:
        return self._op(lambda changes: runs.get(changes, run, doc=doc), reads=True)

    def list_runs(
        self, *, workflow: str = "", status: RunStatus | None = None, before: str = "", limit: int = 50
    ) -> Op[list[Run]]:
        return self._op(lambda changes: runs.list_runs(changes, workflow, status, before, max(0, limit)), reads=True)

    def cancel_run(self, run: str, reason: str) -> Op[Run | None]:
        return self._op(lambda changes: runs.cancel(changes, run, reason))

    def rerun_failed(self, run: str) -> Op[Run | None]:
        return self._op(lambda changes: rerun_failed(changes, run))

    def run_events(self, run: str, after: int = 0, limit: int = 1000) -> Op[list[RunEvent]]:
        return self._op(lambda changes: events.of_run(changes, run, after, max(0, limit)), reads=True)

    def events(self, shard: int, after: str = "", limit: int = 1000) -> Op[EventPage]:
        events.number_of(after)
        return self._op(lambda changes: events.of_all(changes, after, max(0, limit)), reads=True)

    def check_runs(self, shard: int, limit: int = 100) -> Op[list[str]]:
        return self._op(lambda changes: runs.check(changes, max(0, limit)))

    # ── what runs are made from, and what a server keeps ──

    def put_definition(self, workflow: str, digest: str, doc: bytes) -> Op[Definition]:
        storable("a definition's name", workflow, digest)
        return self._op(lambda changes: definitions.put(changes, workflow, digest, doc))

    def get_definition(self, workflow: str, version: int = 0) -> Op[Definition | None]:
        return self._op(lambda changes: definitions.get(changes, workflow, version), reads=True)

    def list_definitions(self, *, after: str = "", limit: int = 100) -> Op[list[Definition]]:
        return self._op(lambda changes: definitions.newest(changes, after, max(0, limit)), reads=True)

    def put_artifact(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> Op[bool]:
        storable("a file's name", artifact.name, artifact.digest)
        return self._op(lambda changes: artifacts.put(changes, artifact, fence, part, data, last=last))

    def list_artifacts(self, job: str) -> Op[list[Artifact]]:
        return self._op(lambda changes: artifacts.of_job(changes, job), reads=True)

    def read_artifact(self, job: str, name: str, part: int) -> Op[bytes | None]:
        return self._op(lambda changes: artifacts.read(changes, job, name, part), reads=True)

    def put_token(self, token: TokenRecord) -> Op[None]:
        storable("a token's name", token.id, token.role, token.name)
        return self._op(lambda changes: tokens.put(changes, token))

    def drop_token(self, token: str) -> Op[bool]:
        return self._op(lambda changes: tokens.drop(changes, token))

    def tokens(self) -> Op[list[TokenRecord]]:
        return self._op(tokens.tokens, reads=True)
