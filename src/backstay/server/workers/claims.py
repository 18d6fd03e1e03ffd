"""The worker protocol: claim, renew, complete, fail, release. Any server on the same engine can serve any lease."""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from backstay.engine.base import Micros, steady
from backstay.errors import ConfigError, CorruptRecord, JobError, JobNotFound, WorkflowError
from backstay.job import metadata
from backstay.job.api.codec import RESULT_LIMIT
from backstay.job.api.retry import DEFAULT, Backoff
from backstay.job.flows import known_shard, send
from backstay.job.ids import lease_id
from backstay.job.model import FINAL, Claim, Claimed, Failure, Finish, FinishKind, Job, Renewal
from backstay.job.reserved import COMMAND
from backstay.runtime.serialization import PLAIN_CODEC
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Disconnected, Request
from backstay.server.schemas.jobs import STATUSES, ClaimRequest, FinishReply, Handout, Status
from backstay.server.workers.channel_pool import ChannelPool
from backstay.server.workers.job_payload import build_handout
from backstay.server.workers.lease_names import DEFAULT_TTL, parse_lease_name
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.spec import CommandSpec

if TYPE_CHECKING:
    from backstay.server.app import Server

log = logging.getLogger("backstay.server")

#: Seconds between polls of a waiting claim: of the head of its FIFO queue, and of the others.
HEAD_POLL, OTHERS_POLL = 1.2, 10.0
#: Leases and replies that are cached; others are read from the store.
MAX_CACHED = 100_000


class LeaseRecord(msgspec.Struct, frozen=True):
    """What the server caches of a lease."""

    worker: str
    ttl: Micros
    #: The job's name in HTTP responses: its key in the run, or its id.
    name: str
    attempt: int
    retries: int
    backoff: Backoff | None
    #: The spec of a command job that declares outputs.
    spec: CommandSpec | None = None


class Claims:
    """Serves claims and leases of HTTP workers. Repeated finishes get the first reply again."""

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
        self._leases: OrderedDict[str, LeaseRecord] = OrderedDict()
        self._replies: OrderedDict[str, tuple[str, FinishReply]] = OrderedDict()

    async def close(self) -> None:
        await self.channels.close()

    # ── claiming ──

    async def claim(self, request: Request, wanted: ClaimRequest) -> Handout | None:
        """Claim one job; waits up to `wait_secs` for it. A job whose records cannot be read fails for good."""
        labels = tuple(sorted(set(wanted.labels)))
        queues = tuple(dict.fromkeys(wanted.queues))
        ttl = int(wanted.lease_ttl_secs * 1_000_000)
        self._server.heartbeats.record_claim(wanted.worker_id, labels, queues)
        claim = Claim(want=1, queues=(queues,), labels=labels, lease=ttl)
        while True:
            job, pause = await self._try_claim(wanted.worker_id, claim)
            if job is None and wanted.wait_secs > 0:
                job = await self._wait(request, wanted, claim, pause)
            if job is None:
                return None
            try:
                return await self._build_handout(job, wanted.worker_id, ttl)
            except (ConfigError, CorruptRecord, JobError, WorkflowError, Refusal) as error:  # no worker could run it
                log.warning("job %s cannot be handed out: %s", job.id, error)
                await self.fail(lease_id(job.id, job.fence), f"cannot be handed out: {error}", retryable=False)

    async def _build_handout(self, job: Claimed, worker: str, ttl: Micros) -> Handout:
        details = await self._server.run_lookup.load_details(job)
        made = build_handout(job, details, worker, ttl)
        meta = metadata.unpack(job.meta)
        spec = details.spec if details.spec is not None and details.spec.outputs else None
        record = LeaseRecord(worker, ttl, details.name, job.attempt, job.retries, meta.backoff, spec)
        self._leases[made.lease.lease_id] = record
        if len(self._leases) > MAX_CACHED:
            self._leases.popitem(last=False)
        return made

    async def _try_claim(self, worker: str, claim: Claim) -> tuple[Claimed | None, float]:
        """Try all shards once, from a random one on. Returns a job, or None and the seconds until the next attempt."""
        shards = self._store.shards
        first = random.randrange(shards) if shards > 1 else 0
        pause = HEAD_POLL
        for offset in range(shards):
            reply = await self.channels.claim(worker, (first + offset) % shards, claim)
            if reply.jobs:
                return reply.jobs[0], 0.0
            if reply.next_in is not None:
                pause = min(pause, reply.next_in / 1_000_000 + 0.001)
        return None, pause

    async def _wait(self, request: Request, wanted: ClaimRequest, claim: Claim, pause: float) -> Claimed | None:
        server = self._server
        server.check_waiting_limit()
        until = steady() + wanted.wait_secs
        job: Claimed | None = None
        claim_filter = (claim.queues[0], claim.labels)
        server.waiting += 1
        try:
            with server.notifier.queue_claim(claim_filter) as wakeup:
                while job is None and (left := until - steady()) > 0 and not server.is_closing:
                    nap = min(pause, left) if server.notifier.is_head(claim_filter, wakeup) else min(OTHERS_POLL, left)
                    await request.wait_for(wakeup.wait(), nap)
                    wakeup.clear()
                    # A disconnect that is noticed only after the check below costs the job one lease TTL.
                    job, pause = await self._try_claim(wanted.worker_id, claim)
            if job is None:
                return None
            server.notifier.wake_next_claim(claim_filter)  # more jobs may be pending
            if request.disconnected().done():
                await self.release(lease_id(job.id, job.fence))
                raise Disconnected
            return job
        finally:
            server.waiting -= 1

    # ── leases ──

    def parse_lease(self, lease: str) -> tuple[str, int, int]:
        """Return job, fence and shard of a lease. Raises Refusal (409): an invalid lease id is like an expired
        lease.
        """
        try:
            job, fence, _ = parse_lease_name(lease)
            return job, fence, known_shard(self._core, job)
        except (ValueError, JobNotFound):
            raise stale_lease(lease) from None

    async def get_lease(self, lease: str) -> LeaseRecord:
        """Return the record of a current lease. Raises Refusal (409)."""
        found = self._leases.get(lease)
        if found is not None:
            return found
        job_id, fence, _ = self.parse_lease(lease)
        job = await send(self._core, self._store.get(job_id))
        if job is None or job.state != "running" or job.fence != fence:
            raise stale_lease(lease)
        name = await self._server.run_lookup.key_of(job)
        spec = command_spec.decode(job.args) if job.type == COMMAND else None
        _, _, ttl = parse_lease_name(lease)
        found = LeaseRecord(job.worker, ttl, name, job.attempt, job.retries, metadata.unpack(job.meta).backoff, spec)
        self._leases[lease] = found
        return found

    async def renew(self, lease: str, ttl: float | None, progress: float | None) -> bool:
        """Renew a lease. Returns whether its job is to be cancelled. Raises Refusal (409)."""
        job, fence, shard = self.parse_lease(lease)
        record = await self.get_lease(lease)
        if ttl is not None:
            record = self._leases[lease] = replace(record, ttl=int(ttl * 1_000_000))
        renewal = Renewal(job, fence, -1.0 if progress is None else progress)
        (verdict,) = await send(self._core, self._store.renew(shard, record.worker, record.ttl, (renewal,)))
        if verdict == "lost":
            self._leases.pop(lease, None)
            raise stale_lease(lease)
        return verdict == "cancelled"

    # ── finishing ──

    async def _spec(self, lease: str, job_id: str) -> CommandSpec | None:
        """Return the spec of a command job; None for other jobs."""
        record = self._leases.get(lease)
        if record is not None:
            return record.spec
        job = await send(self._core, self._store.get(job_id))
        return command_spec.decode(job.args) if job is not None and job.type == COMMAND else None

    async def complete(self, lease: str, result: Any, outputs: dict[str, str]) -> FinishReply:
        """Complete a job. `result` UNSET: the outputs are the result."""
        job, fence, _ = self.parse_lease(lease)
        if (first := self._earlier_reply(lease, "complete")) is not None:
            return first
        outputs = await self._server.run_lookup.evaluate_outputs(job, await self._spec(lease, job), outputs)
        raw = PLAIN_CODEC.encode(outputs if result is UNSET else result)
        if len(raw) > RESULT_LIMIT:
            raise Refusal(413, f"a result may have at most {RESULT_LIMIT} bytes; upload an artifact instead")
        finish = Finish(job=job, fence=fence, kind="complete", result=raw, outputs=outputs)
        return await self._finish(lease, "complete", finish)

    async def fail(
        self, lease: str, error: str, *, retryable: bool, after: float | None = None, cancelled: bool = False
    ) -> FinishReply:
        """Fail an attempt. `after`: seconds until the next one; None: as the backoff says."""
        job, fence, _ = self.parse_lease(lease)
        if (first := self._earlier_reply(lease, "fail")) is not None:
            return first
        try:
            record = await self.get_lease(lease)
        except Refusal:
            record = LeaseRecord("", DEFAULT_TTL, job, 1, 0, None)  # perhaps a repeat; else the store refuses it
        now = self._core.engine.now()
        failure = Failure(
            "WorkerReported", error or "the worker reported a failure", _lease_marker(job, fence), record.attempt, now
        )
        if after is None:
            after = (record.backoff or DEFAULT).delay(record.attempt)
        kind: FinishKind = "cancel" if cancelled else "retry" if retryable else "fail"
        finish = Finish(job=job, fence=fence, kind=kind, error=failure, delay=int(after * 1_000_000))
        return await self._finish(lease, "fail", finish)

    async def release(self, lease: str, after: float = 0.0) -> FinishReply:
        """Release a job as if it had not been claimed; with `after`, it is due again in that many seconds."""
        job, fence, _ = self.parse_lease(lease)
        kind: FinishKind = "snooze" if after else "release"
        return await self._finish(
            lease, "release", Finish(job=job, fence=fence, kind=kind, delay=int(after * 1_000_000))
        )

    def _earlier_reply(self, lease: str, verb: str) -> FinishReply | None:
        known = self._replies.get(lease)
        if known is None:
            return None
        if known[0] != verb:
            raise stale_lease(lease, f"it was already finished with {known[0]}")
        return known[1]

    async def _finish(self, lease: str, verb: str, finish: Finish) -> FinishReply:
        if (first := self._earlier_reply(lease, verb)) is not None:
            return first
        verdict = await self.channels.finish(finish)
        job: Job | None = None
        if verdict != "ok":
            job = await send(self._core, self._store.get(finish.job))
            if job is None or not _is_repeat(job, finish, verb):
                self._leases.pop(lease, None)
                raise stale_lease(lease)
        elif verb != "complete":
            job = await send(self._core, self._store.get(finish.job))
        record = self._leases.pop(lease, None)
        name = record.name if record is not None else await self._server.run_lookup.name_of(finish.job, job)
        status: Status = "success" if verb == "complete" else "queued"
        if job is not None and (job.fence == finish.fence or job.state in FINAL):
            status = STATUSES[job.state]
        answer = FinishReply(lease_id=lease, job_id=name, status=status)
        self._replies[lease] = (verb, answer)
        if len(self._replies) > MAX_CACHED:
            self._replies.popitem(last=False)
        return answer


def _lease_marker(job: str, fence: int) -> str:
    """Return the marker that a failure is stored with: it identifies the lease when the same report is repeated."""
    return f"reported under lease {lease_id(job, fence)}"


def _is_repeat(job: Job, finish: Finish, verb: str) -> bool:
    """Whether the stored job shows that this lease finished it in the same way before."""
    if verb == "fail":
        return job.error is not None and job.error.trace == _lease_marker(finish.job, finish.fence)
    if job.fence != finish.fence:
        return False
    return job.state == "completed" if verb == "complete" else job.state in ("pending", "scheduled")


def stale_lease(lease: str, why: str = "it expired, was finished or never existed") -> Refusal:
    return Refusal(409, f"lease {lease[:200]!r} is not current: {why}. Nothing was changed; stop working on its job.")
