"""The job store on SQLite. A store operation runs inside one transaction, on the connection of the engine's writer or
of the caller.

All state is in the tables, so any connection to the file can run an operation. Values are encoded and checked when the
operation is created, before the transaction begins.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from backstay.engine.base import Micros, Op, StoreOperation, Wake
from backstay.errors import ConfigError
from backstay.job.exchange import Delivery, ExchangeCommand, ExchangeReply, Renewal, RenewalVerdict
from backstay.job.model import (
    FINAL,
    Enqueued,
    Job,
    JobResult,
    LogLine,
    NewJob,
    Queue,
    StartRate,
    State,
    Tick,
    WorkerRecord,
)
from backstay.job.run_model import Artifact, Definition, EventPage, NewRun, Run, RunEvent, RunStatus, TokenRecord
from backstay.job.stores.sqlite import admin, pruner, queues
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import NUMBERS, encode, json_text
from backstay.job.stores.sqlite.enqueue import Enqueuer
from backstay.job.stores.sqlite.exchange import exchange, next_due
from backstay.job.stores.sqlite.finish_batch import FinishBatch
from backstay.job.stores.sqlite.finish_effects import deliver
from backstay.job.stores.sqlite.prepared import prepare, require_storable
from backstay.job.stores.sqlite.query import get, listing
from backstay.job.stores.sqlite.reap import make_due, reap
from backstay.job.stores.sqlite.records import artifacts, cron, definitions, logs, tokens, workers
from backstay.job.stores.sqlite.renew import renew
from backstay.job.stores.sqlite.runs import events, runs
from backstay.job.stores.sqlite.runs.rerun import rerun_failed

T = TypeVar("T")


class SqliteStore:
    """`backstay.job.store.Store` on SQLite. `prefix`: the prefix of the hub channels on which it announces the ends of
    jobs and the events of runs.
    """

    shards = 1
    announces, announcement_gap = False, 0.0
    channels_per_shard = 1
    splits_claim_and_ack = False
    claims_consume_hints = False
    read_handoff = None

    def __init__(self, namespace: str, prefix: str) -> None:
        self._space = namespace
        self._prefix = prefix

    def _op(self, verb: Callable[[Changes], T], *, reads: bool = False) -> Op[T]:
        """Wrap a function as a StoreOperation for the engine. `reads`: the function changes nothing."""

        def work(db: sqlite3.Connection, now: Micros, wakes: list[Wake]) -> T:
            return verb(Changes(db, self._space, self._prefix, now, wakes, reads=reads))

        return StoreOperation(work, key=self._space, reads=reads)

    # ── work ──

    def enqueue(self, shard: int, jobs: Sequence[NewJob], *, announce: bool = False) -> Op[list[Enqueued]]:
        prepared = [prepare(job) for job in jobs]

        def verb(changes: Changes) -> list[Enqueued]:
            enqueuer = Enqueuer(changes, prepared)
            enqueuer.check()
            answers = enqueuer.write()
            changes.write()
            return answers

        return self._op(verb)

    def exchange(self, command: ExchangeCommand) -> Op[ExchangeReply]:
        finishes = FinishBatch(command.finishes)
        return self._op(lambda changes: exchange(changes, command, finishes))

    def renew(self, shard: int, worker: str, lease: Micros, leases: Sequence[Renewal]) -> Op[list[RenewalVerdict]]:
        ids = json_text([renewal.job for renewal in leases])
        return self._op(lambda changes: renew(changes, worker, lease, leases, ids))

    def reap(self, shard: int, limit: int = 1000) -> Op[dict[str, int]]:
        def verb(changes: Changes) -> dict[str, int]:
            reap(changes, max(0, limit))
            make_due(changes, max(0, limit))
            return changes.close()

        return self._op(verb)

    def read_outbox(self, shard: int, limit: int = 1000) -> Op[list[Delivery]]:
        """Return an empty list: there is one shard, so no job waits for a chain of another shard."""
        return self._op(lambda _: [], reads=True)

    def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> Op[dict[str, int]]:
        def verb(changes: Changes) -> dict[str, int]:
            for delivery in deliveries:
                record = admin.find_record(changes, delivery.job)
                if record is not None:
                    deliver(changes, record, delivery.chain, delivery.result)
            return changes.close()

        return self._op(verb)

    def ack_deliveries(self, shard: int, deliveries: Sequence[Delivery]) -> Op[None]:
        return self._op(lambda _: None, reads=True)

    # ── administration ──

    def cancel(self, job: str, reason: str) -> Op[State | None]:
        return self._op(lambda changes: admin.cancel(changes, job, reason))

    def trigger(self, job: str) -> Op[State | None]:
        return self._op(lambda changes: admin.trigger(changes, job))

    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> Op[int]:
        if state not in FINAL:
            raise ConfigError(f"cannot purge {state} jobs: only final states can be purged ({', '.join(FINAL)})")
        (number,) = NUMBERS[state]
        return self._op(lambda changes: pruner.purge(changes, number, queue, max(0, limit)))

    def pause(self, queue: str, *, paused: bool) -> Op[None]:
        return self._op(lambda changes: queues.pause(changes, queue, paused=paused))

    def limit_queue(self, queue: str, rate: StartRate | None) -> Op[None]:
        return self._op(lambda changes: queues.limit(changes, queue, rate))

    # ── queries ──

    def get(self, job: str) -> Op[Job | None]:
        return self._op(lambda changes: get.get(changes, job), reads=True)

    def watch(self, job: str, *, chain: bool = False) -> Op[Job | None]:
        return self._op(lambda changes: get.watch(changes, job, chain=chain))

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

    # ── logs and outputs ──

    def append_log(self, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> Op[bool]:
        return self._op(lambda changes: logs.append_log(changes, job, fence, lines, first))

    def read_log(self, job: str, after: int = 0, limit: int = 1000) -> Op[list[LogLine]]:
        return self._op(lambda changes: logs.read_log(changes, job, after, max(0, limit)), reads=True)

    def put_outputs(self, job: str, fence: int, outputs: dict[str, str]) -> Op[bool]:
        return self._op(lambda changes: logs.put_outputs(changes, job, fence, outputs))

    def get_outputs(self, job: str) -> Op[dict[str, str]]:
        return self._op(lambda changes: logs.get_outputs(changes, job), reads=True)

    # ── workers, cron, pruning ──

    def heartbeat(self, worker: WorkerRecord) -> Op[None]:
        doc = encode(worker)
        return self._op(lambda changes: workers.heartbeat(changes, worker.id, doc))

    def unregister_worker(self, worker: str) -> Op[None]:
        return self._op(lambda changes: workers.unregister(changes, worker))

    def workers(self) -> Op[list[WorkerRecord]]:
        return self._op(workers.workers, reads=True)

    def ticks(self, names: Sequence[str]) -> Op[dict[str, Micros]]:
        return self._op(lambda changes: cron.ticks(changes, names))

    def tick(self, tick: Tick) -> Op[bool]:
        prepared = prepare(tick.job)
        return self._op(lambda changes: cron.tick(changes, tick.name, tick.at, prepared))

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
        return self._op(lambda changes: events.read_run(changes, run, after, max(0, limit)), reads=True)

    def events(self, shard: int, after: str = "", limit: int = 1000) -> Op[EventPage]:
        events.parse_cursor(after)
        return self._op(lambda changes: events.read_all(changes, after, max(0, limit)), reads=True)

    def check_runs(self, shard: int, limit: int = 100) -> Op[list[str]]:
        return self._op(lambda changes: runs.check(changes, max(0, limit)))

    # ── definitions, artifacts, tokens ──

    def put_definition(self, workflow: str, digest: str, doc: bytes) -> Op[Definition]:
        require_storable("the name of a definition", workflow, digest)
        return self._op(lambda changes: definitions.put(changes, workflow, digest, doc))

    def get_definition(self, workflow: str, version: int = 0) -> Op[Definition | None]:
        return self._op(lambda changes: definitions.get(changes, workflow, version), reads=True)

    def list_definitions(self, *, after: str = "", limit: int = 100) -> Op[list[Definition]]:
        return self._op(lambda changes: definitions.list_newest(changes, after, max(0, limit)), reads=True)

    def put_artifact(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> Op[bool]:
        require_storable("the name of an artifact", artifact.name, artifact.digest)
        return self._op(lambda changes: artifacts.put(changes, artifact, fence, part, data, last=last))

    def list_artifacts(self, job: str) -> Op[list[Artifact]]:
        return self._op(lambda changes: artifacts.list_artifacts(changes, job), reads=True)

    def read_artifact(self, job: str, name: str, part: int) -> Op[bytes | None]:
        return self._op(lambda changes: artifacts.read(changes, job, name, part), reads=True)

    def put_token(self, token: TokenRecord) -> Op[None]:
        require_storable("the name of a token", token.id, token.role, token.name, token.owner)
        return self._op(lambda changes: tokens.put(changes, token))

    def drop_token(self, token: str) -> Op[bool]:
        return self._op(lambda changes: tokens.drop(changes, token))

    def tokens(self) -> Op[list[TokenRecord]]:
        return self._op(tokens.tokens, reads=True)

    def put_secret(self, name: str, value: bytes) -> Op[bytes]:
        return self._op(lambda changes: tokens.put_secret(changes, name, value))
