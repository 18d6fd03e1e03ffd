"""The worker protocol: claim, renew, complete, fail, release. Any server on the same engine can serve any lease, for
the owner that claimed the job.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from backstay.engine.base import Micros, steady
from backstay.engine.jitter import RANDOM
from backstay.errors import ConfigError, CorruptRecord, JobError, WorkflowError
from backstay.job import metadata
from backstay.job.api.codec import RESULT_LIMIT
from backstay.job.api.retry import DEFAULT, Backoff
from backstay.job.exchange import Claim, Claimed, Renewal
from backstay.job.flows import send
from backstay.job.ids import lease_id
from backstay.job.model import Failure, Finish, FinishKind, Job
from backstay.job.reserved import COMMAND
from backstay.runtime.serialization import PLAIN_CODEC
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Disconnected, Request
from backstay.server.schemas.jobs import STATUSES, ClaimRequest, FinishReply, Handout, Status
from backstay.server.workers.channel_pool import ChannelPool
from backstay.server.workers.job_payload import build_handout
from backstay.server.workers.lease_names import LeaseNames, LeaseRef, stale_lease
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.spec import CommandSpec

if TYPE_CHECKING:
    from backstay.server.app import Server

log = logging.getLogger("backstay.server")

#: Seconds between two polls of a long-polling claim. Claims for the same queues and labels wait in a FIFO queue: the
#: first one polls every HEAD_POLL seconds, those behind it every OTHERS_POLL seconds.
HEAD_POLL, OTHERS_POLL = 1.2, 10.0
#: The largest number of cached leases, and of cached replies to reports that a job is completed, failed or released.
#: What is not cached is read from the store.
MAX_CACHED = 100_000


class LeaseRecord(msgspec.Struct, frozen=True):
    """What the server caches about a lease."""

    worker: str
    ttl: Micros
    #: The job's name in HTTP responses: its key in the run, or its id.
    name: str
    attempt: int
    retries: int
    backoff: Backoff | None
    #: The spec of a command job, whose declared outputs are evaluated at its end. May be None if it declares none.
    #: Always None for a job that is not a command job.
    spec: CommandSpec | None = None


class Claims:
    """Serves claims and leases of HTTP workers. If a worker repeats its report that a job is completed, failed or
    released, it gets the reply to the first report.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._core = server.core
        self._store = server.store
        self.channels = ChannelPool(
            server.core,
            server.store,
            server.deadlines,
            server.settings.engine_timeout,
            server.notifier.wake_claims,
        )
        self.names = LeaseNames(server.core, server.store)
        self._leases: OrderedDict[str, LeaseRecord] = OrderedDict()
        self._replies: OrderedDict[str, tuple[str, FinishReply]] = OrderedDict()

    async def close(self) -> None:
        await self.channels.close()

    # ── claiming ──

    async def claim(self, request: Request, wanted: ClaimRequest) -> Handout | None:
        """Claim one job, waiting up to `wait_secs`; None if there is none. A job whose records cannot be read becomes a
        dead letter.
        """
        labels = tuple(sorted(set(wanted.labels)))
        queues = tuple(dict.fromkeys(wanted.queues))
        ttl = int(wanted.lease_ttl_secs * 1_000_000)
        self._server.heartbeats.record_claim(wanted.worker_id, labels, queues, request.principal.owner)
        claim = Claim(want=1, queues=(queues,), labels=labels, lease=ttl)
        await self.names.load_key()  # before the claim: a job that cannot be handed out would stay leased
        while True:
            job, pause = await self._try_claim(wanted.worker_id, claim)
            if job is None and wanted.wait_secs > 0:
                job = await self._wait_for_job(request, wanted, claim, pause)
            if job is None:
                return None
            try:
                name = self.names.make(request.principal, job.id, job.fence, ttl)
                return await self._build_handout(job, wanted.worker_id, ttl, name)
            except (ConfigError, CorruptRecord, JobError, WorkflowError, Refusal) as error:  # it would fail again
                log.warning("job %s cannot be handed out: %s", job.id, error)
                lease = self.names.of_server(job.id, job.fence)
                await self.fail(lease, f"cannot be handed out: {error}", retryable=False)

    async def _build_handout(self, job: Claimed, worker: str, ttl: Micros, name: str) -> Handout:
        details = await self._server.run_lookup.load_details(job)
        made = build_handout(job, details, worker, ttl, name)
        meta = metadata.unpack(job.meta)
        spec = details.spec if details.spec is not None and details.spec.outputs else None
        record = LeaseRecord(worker, ttl, details.name, job.attempt, job.retries, meta.backoff, spec)
        self._leases[lease_id(job.id, job.fence)] = record
        if len(self._leases) > MAX_CACHED:
            self._leases.popitem(last=False)
        return made

    async def _try_claim(self, worker: str, claim: Claim) -> tuple[Claimed | None, float]:
        """Try all shards once, starting at a random one. Returns a job, or None and the seconds until the next try."""
        shards = self._store.shards
        first = RANDOM.randrange(shards) if shards > 1 else 0
        pause = HEAD_POLL
        for offset in range(shards):
            reply = await self.channels.claim(worker, (first + offset) % shards, claim)
            if reply.jobs:
                return reply.jobs[0], 0.0
            if reply.next_in is not None:
                pause = min(pause, reply.next_in / 1_000_000 + 0.001)
        return None, pause

    async def _wait_for_job(self, request: Request, wanted: ClaimRequest, claim: Claim, pause: float) -> Claimed | None:
        server = self._server
        until = steady() + wanted.wait_secs
        job: Claimed | None = None
        claim_filter = (claim.queues[0], claim.labels)
        with server.notifier.queue_claim(claim_filter) as wakeup:
            while job is None and (left := until - steady()) > 0 and not server.is_closing:
                longest = min(pause, left) if server.notifier.is_head(claim_filter, wakeup) else min(OTHERS_POLL, left)
                await request.wait_for(wakeup.wait(), longest)
                wakeup.clear()
                # The client may disconnect during this claim. Usually the check below (`watch_disconnect`) notices
                # that, and the job is released. If not, the job stays leased until the lease expires.
                job, pause = await self._try_claim(wanted.worker_id, claim)
        if job is None:
            return None
        # More jobs may be pending, so wake the next claim that waits in the same FIFO queue.
        server.notifier.wake_next_claim(claim_filter)
        if request.watch_disconnect().done():
            await self.release(self.names.of_server(job.id, job.fence))
            raise Disconnected
        return job

    # ── leases ──

    async def get_lease(self, lease: LeaseRef) -> LeaseRecord:
        """Return the record of a current lease. Raises Refusal (409)."""
        found = self._leases.get(lease.key)
        if found is not None:
            return found
        job = await send(self._core, self._store.get(lease.job))
        if job is None or job.state != "running" or job.fence != lease.fence:
            raise stale_lease(lease.name)
        name = await self._server.run_lookup.key_of(job)
        spec = command_spec.decode(job.args) if job.type == COMMAND else None
        backoff = metadata.unpack(job.meta).backoff
        found = LeaseRecord(job.worker, lease.ttl, name, job.attempt, job.retries, backoff, spec)
        self._leases[lease.key] = found
        return found

    async def renew(self, lease: LeaseRef, ttl: float | None, progress: float | None) -> bool:
        """Renew a lease. Returns whether its job is to be cancelled. Raises Refusal (409)."""
        record = await self.get_lease(lease)
        if ttl is not None:
            record = self._leases[lease.key] = replace(record, ttl=int(ttl * 1_000_000))
        renewal = Renewal(lease.job, lease.fence, -1.0 if progress is None else progress)
        (verdict,) = await send(self._core, self._store.renew(lease.shard, record.worker, record.ttl, (renewal,)))
        if verdict == "lost":
            self._leases.pop(lease.key, None)
            raise stale_lease(lease.name)
        return verdict == "cancelled"

    # ── finishing ──

    async def _spec(self, lease: LeaseRef) -> CommandSpec | None:
        """Return the spec of a command job, which the caller needs for its declared outputs. None for other jobs, and
        possibly for a command job that declares no outputs.
        """
        record = self._leases.get(lease.key)
        if record is not None:
            return record.spec
        job = await send(self._core, self._store.get(lease.job))
        return command_spec.decode(job.args) if job is not None and job.type == COMMAND else None

    async def complete(self, lease: LeaseRef, result: Any, outputs: dict[str, str]) -> FinishReply:
        """Complete a job. `outputs`: the outputs that the worker reported. `result`: the job's result. If it is UNSET,
        the result is a mapping of all outputs: the reported ones and those that the job's definition declares.
        """
        if (first := self._earlier_reply(lease, "complete")) is not None:
            return first
        outputs = await self._server.run_lookup.evaluate_outputs(lease.job, await self._spec(lease), outputs)
        raw = PLAIN_CODEC.encode(outputs if result is UNSET else result)
        if len(raw) > RESULT_LIMIT:
            raise Refusal(413, f"a result may have at most {RESULT_LIMIT} bytes; upload an artifact instead")
        finish = Finish(job=lease.job, fence=lease.fence, kind="complete", result=raw, outputs=outputs)
        return await self._finish(lease, "complete", finish)

    async def fail(
        self, lease: LeaseRef, error: str, *, retryable: bool, after: float | None = None, cancelled: bool = False
    ) -> FinishReply:
        """Fail an attempt. `after`: seconds until the next attempt; None: the job's backoff decides."""
        if (first := self._earlier_reply(lease, "fail")) is not None:
            return first
        job, fence = lease.job, lease.fence
        try:
            record = await self.get_lease(lease)
        except Refusal:
            record = LeaseRecord("", lease.ttl, job, 1, 0, None)  # a repeated report, or stale: `_finish` decides
        now = self._core.engine.now()
        failure = Failure(
            "WorkerReported", error or "the worker reported a failure", _lease_marker(job, fence), record.attempt, now
        )
        if after is None:
            after = (record.backoff or DEFAULT).delay(record.attempt)
        kind: FinishKind = "cancel" if cancelled else "retry" if retryable else "fail"
        finish = Finish(job=job, fence=fence, kind=kind, error=failure, delay=int(after * 1_000_000))
        return await self._finish(lease, "fail", finish)

    async def release(self, lease: LeaseRef, after: float = 0.0) -> FinishReply:
        """Release a job without using up an attempt; with `after`, it is due again in that many seconds."""
        kind: FinishKind = "snooze" if after else "release"
        finish = Finish(job=lease.job, fence=lease.fence, kind=kind, delay=int(after * 1_000_000))
        return await self._finish(lease, "release", finish)

    def _earlier_reply(self, lease: LeaseRef, verb: str) -> FinishReply | None:
        known = self._replies.get(lease.key)
        if known is None:
            return None
        if known[0] != verb:
            raise stale_lease(lease.name, f"it was already finished with {known[0]}")
        return known[1]

    async def _finish(self, lease: LeaseRef, verb: str, finish: Finish) -> FinishReply:
        if (first := self._earlier_reply(lease, verb)) is not None:
            return first
        verdict = await self.channels.finish(finish)
        job: Job | None = None
        if verdict != "ok":
            job = await send(self._core, self._store.get(finish.job))
            if job is None or not _is_repeat(job, finish, verb):
                self._leases.pop(lease.key, None)
                raise stale_lease(lease.name)
        elif verb != "complete":
            job = await send(self._core, self._store.get(finish.job))
        record = self._leases.pop(lease.key, None)
        name = record.name if record is not None else await self._server.run_lookup.name_of(finish.job, job)
        status: Status = "success" if verb == "complete" else "queued"
        if job is not None and job.fence == finish.fence:
            status = STATUSES[job.state]  # under a later fence, the job was queued again by this report
        answer = FinishReply(lease_id=lease.name, job_id=name, status=status)
        self._replies[lease.key] = (verb, answer)
        if len(self._replies) > MAX_CACHED:
            self._replies.popitem(last=False)
        return answer


def _lease_marker(job: str, fence: int) -> str:
    """Return a text that names the lease under which an HTTP worker reported a failure. It is stored in place of the
    failure's stack trace. `_is_repeat` compares it, to recognize a report that the worker sends twice.
    """
    return f"reported under lease {lease_id(job, fence)}"


def _is_repeat(job: Job, finish: Finish, verb: str) -> bool:
    """Whether the stored job shows that the same report under this lease was already recorded."""
    if verb == "fail":
        return job.error is not None and job.error.trace == _lease_marker(finish.job, finish.fence)
    if verb == "complete":
        return job.fence == finish.fence and job.state == "completed"
    # Not every engine keeps the fence of a job that no worker holds: 0 says that no later claim has been made since.
    return job.fence in (finish.fence, 0) and job.state in ("pending", "scheduled")
