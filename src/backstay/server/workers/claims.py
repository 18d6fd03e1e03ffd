"""The worker protocol: claim, keep alive, complete, fail. Any server of a fleet answers for any lease."""

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
from backstay.runtime.serialization import ANYTHING
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Call, Gone
from backstay.server.schemas.jobs import STATUSES, ClaimRequest, FinishReply, Handout, Status
from backstay.server.workers.channel_pool import Lanes
from backstay.server.workers.job_payload import handout
from backstay.server.workers.lease_names import USUAL, read_name
from backstay.workflow.command import spec as command_spec
from backstay.workflow.command.spec import CommandSpec

if TYPE_CHECKING:
    from backstay.server.app import Server

log = logging.getLogger("backstay.server")

#: How often somebody who waits looks by himself: the first of those who wait for the same, and the others.
FIRST_LOOK, OTHERS_LOOK = 1.2, 10.0
#: Leases that are remembered; others are looked up.
MOST = 100_000


class Held(msgspec.Struct, frozen=True):
    """What the server remembers of a lease that it handed out."""

    worker: str
    ttl: Micros
    #: What the job is called over HTTP.
    name: str
    attempt: int
    retries: int
    backoff: Backoff | None
    #: What a command job is to do, where it says which outputs it leaves.
    spec: CommandSpec | None = None


class Claims:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._core = server.core
        self._store = server.store
        self.lanes = Lanes(
            server.core,
            server.store,
            server.deadlines,
            server.settings.engine_patience,
            server.ears.ring_jobs,
        )
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._answers: OrderedDict[str, tuple[str, FinishReply]] = OrderedDict()

    async def close(self) -> None:
        await self.lanes.close()

    # ── claiming ──

    async def claim(self, call: Call, wanted: ClaimRequest) -> Handout | None:
        labels = tuple(sorted(set(wanted.labels)))
        queues = tuple(dict.fromkeys(wanted.queues))
        ttl = int(wanted.lease_ttl_secs * 1_000_000)
        self._server.presences.seen(wanted.worker_id, labels, queues)
        claim = Claim(want=1, queues=(queues,), labels=labels, lease=ttl)
        while True:
            job, pause = await self._look(wanted.worker_id, claim)
            if job is None and wanted.wait_secs > 0:
                job = await self._wait(call, wanted, claim, pause)
            if job is None:
                return None
            try:
                return await self._hand_out(job, wanted.worker_id, ttl)
            except (ConfigError, CorruptRecord, JobError, WorkflowError, Refusal) as error:  # nobody could do it
                log.warning("%s cannot be handed out: %s", job.id, error)
                await self.fail(lease_id(job.id, job.fence), f"it cannot be handed out: {error}", retryable=False)

    async def _hand_out(self, job: Claimed, worker: str, ttl: Micros) -> Handout:
        scene = await self._server.runbook.scene(job)
        made = handout(job, scene, worker, ttl)
        travels = metadata.unpack(job.meta)
        spec = scene.declared if scene.declared is not None and scene.declared.outputs else None
        held = Held(worker, ttl, scene.name, job.attempt, job.retries, travels.backoff, spec)
        self._held[made.lease.lease_id] = held
        if len(self._held) > MOST:
            self._held.popitem(last=False)
        return made

    async def _look(self, worker: str, claim: Claim) -> tuple[Claimed | None, float]:
        """A job, if there is one; else the seconds after which there may be."""
        shards = self._store.shards
        first = random.randrange(shards) if shards > 1 else 0
        pause = FIRST_LOOK
        for place in range(shards):
            reply = await self.lanes.claim(worker, (first + place) % shards, claim)
            if reply.jobs:
                return reply.jobs[0], 0.0
            if reply.next_in is not None:
                pause = min(pause, reply.next_in / 1_000_000 + 0.001)
        return None, pause

    async def _wait(self, call: Call, wanted: ClaimRequest, claim: Claim, pause: float) -> Claimed | None:
        server = self._server
        server.make_room()
        until = steady() + wanted.wait_secs
        job: Claimed | None = None
        wish = (claim.queues[0], claim.labels)
        server.waiting += 1
        try:
            with server.ears.in_line(wish) as bell:
                while job is None and (left := until - steady()) > 0 and not server.is_closing:
                    nap = min(pause, left) if server.ears.is_first(wish, bell) else min(OTHERS_LOOK, left)
                    await call.wait_for(bell.wait(), nap)
                    bell.clear()
                    # A client that leaves during the look itself costs its job a lease's time.
                    job, pause = await self._look(wanted.worker_id, claim)
            if job is None:
                return None
            server.ears.ring_next(wish)  # there may be more
            if call.departure().done():
                await self.release(lease_id(job.id, job.fence))
                raise Gone
            return job
        finally:
            server.waiting -= 1

    # ── leases ──

    def parts(self, lease: str) -> tuple[str, int, int]:
        """Job, fence and shard of a lease. Raises Refusal (409): one that never was is like one that has ended."""
        try:
            job, fence, _ = read_name(lease)
            return job, fence, known_shard(self._core, job)
        except (ValueError, JobNotFound):
            raise stale(lease) from None

    async def held(self, lease: str) -> Held:
        """Of a lease that is current. Raises Refusal (409)."""
        found = self._held.get(lease)
        if found is not None:
            return found
        job_id, fence, _ = self.parts(lease)
        job = await send(self._core, self._store.get(job_id))
        if job is None or job.state != "running" or job.fence != fence:
            raise stale(lease)
        name = await self._server.runbook.key_of(job)
        spec = command_spec.decode(job.args) if job.type == COMMAND else None
        _, _, ttl = read_name(lease)
        found = Held(job.worker, ttl, name, job.attempt, job.retries, metadata.unpack(job.meta).backoff, spec)
        self._held[lease] = found
        return found

    async def beat(self, lease: str, ttl: float | None, progress: float | None) -> bool:
        """Keep it alive. True: somebody wants its job ended. Raises Refusal (409)."""
        job, fence, shard = self.parts(lease)
        held = await self.held(lease)
        if ttl is not None:
            held = self._held[lease] = replace(held, ttl=int(ttl * 1_000_000))
        renewal = Renewal(job, fence, -1.0 if progress is None else progress)
        (verdict,) = await send(self._core, self._store.renew(shard, held.worker, held.ttl, (renewal,)))
        if verdict == "lost":
            self._held.pop(lease, None)
            raise stale(lease)
        return verdict == "cancelled"

    # ── ends ──

    async def _spec(self, lease: str, job_id: str) -> CommandSpec | None:
        """Of a command job: what it was to do."""
        held = self._held.get(lease)
        if held is not None:
            return held.spec
        job = await send(self._core, self._store.get(job_id))
        return command_spec.decode(job.args) if job is not None and job.type == COMMAND else None

    async def complete(self, lease: str, result: Any, outputs: dict[str, str]) -> FinishReply:
        """`result` UNSET: the outputs are the result."""
        job, fence, _ = self.parts(lease)
        if (first := self._repeated(lease, "complete")) is not None:
            return first
        outputs = await self._server.runbook.declared(job, await self._spec(lease, job), outputs)
        raw = ANYTHING.encode(outputs if result is UNSET else result)
        if len(raw) > RESULT_LIMIT:
            raise Refusal(413, f"a result has at most {RESULT_LIMIT} bytes; leave a file as an artifact instead")
        finish = Finish(job=job, fence=fence, kind="complete", result=raw, outputs=outputs)
        return await self._finish(lease, "complete", finish)

    async def fail(
        self, lease: str, error: str, *, retryable: bool, after: float | None = None, cancelled: bool = False
    ) -> FinishReply:
        """`after`: seconds until the next attempt; None: as the back-off says."""
        job, fence, _ = self.parts(lease)
        if (first := self._repeated(lease, "fail")) is not None:
            return first
        try:
            held = await self.held(lease)
        except Refusal:
            held = Held("", USUAL, job, 1, 0, None)  # a repeat, perhaps; else the step refuses it
        now = self._core.engine.now()
        said = Failure("WorkerReported", error or "the worker reported a failure", _mark(job, fence), held.attempt, now)
        if after is None:
            after = (held.backoff or DEFAULT).delay(held.attempt)
        kind: FinishKind = "cancel" if cancelled else "retry" if retryable else "fail"
        finish = Finish(job=job, fence=fence, kind=kind, error=said, delay=int(after * 1_000_000))
        return await self._finish(lease, "fail", finish)

    async def release(self, lease: str, after: float = 0.0) -> FinishReply:
        """Give it back, as if it had not been claimed; with `after`, to be had again in so many seconds."""
        job, fence, _ = self.parts(lease)
        kind: FinishKind = "snooze" if after else "release"
        return await self._finish(
            lease, "release", Finish(job=job, fence=fence, kind=kind, delay=int(after * 1_000_000))
        )

    def _repeated(self, lease: str, verb: str) -> FinishReply | None:
        known = self._answers.get(lease)
        if known is None:
            return None
        if known[0] != verb:
            raise stale(lease, f"it has ended with {known[0]}")
        return known[1]

    async def _finish(self, lease: str, verb: str, finish: Finish) -> FinishReply:
        if (first := self._repeated(lease, verb)) is not None:
            return first
        verdict = await self.lanes.finish(finish)
        job: Job | None = None
        if verdict != "ok":
            job = await send(self._core, self._store.get(finish.job))
            if job is None or not _did(job, finish, verb):
                self._held.pop(lease, None)
                raise stale(lease)
        elif verb != "complete":
            job = await send(self._core, self._store.get(finish.job))
        held = self._held.pop(lease, None)
        name = held.name if held is not None else await self._server.runbook.name_of(finish.job, job)
        status: Status = "success" if verb == "complete" else "queued"
        if job is not None and (job.fence == finish.fence or job.state in FINAL):
            status = STATUSES[job.state]
        answer = FinishReply(lease_id=lease, job_id=name, status=status)
        self._answers[lease] = (verb, answer)
        if len(self._answers) > MOST:
            self._answers.popitem(last=False)
        return answer


def _mark(job: str, fence: int) -> str:
    """Kept with a failure, so that whoever reported it is known when it reports it again."""
    return f"reported under lease {lease_id(job, fence)}"


def _did(job: Job, finish: Finish, verb: str) -> bool:
    """Whether this lease has ended the job in this way before, as the job's own record tells."""
    if verb == "fail":
        return job.error is not None and job.error.trace == _mark(finish.job, finish.fence)
    if job.fence != finish.fence:
        return False
    return job.state == "completed" if verb == "complete" else job.state in ("pending", "scheduled")


def stale(lease: str, why: str = "it ran out, was ended or never was") -> Refusal:
    return Refusal(409, f"lease {lease[:200]!r} is not current: {why}. Nothing was changed; stop working on its job.")
