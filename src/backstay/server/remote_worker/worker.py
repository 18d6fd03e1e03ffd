"""`backstay worker --server URL`: a worker that speaks HTTP alone. It needs no way to the engine: it claims commands of
workflows (and functions that its program defines), keeps their leases, sends what they say, and tells how they ended.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from backstay.engine.base import Micros, steady
from backstay.errors import BackstayError, CommandFailed, EngineUnavailable
from backstay.job.api.definition import BaseJobType
from backstay.job.reserved import COMMAND, COMMANDS
from backstay.job.worker.execution.outcome import failure
from backstay.job.worker.execution.threads import Threads
from backstay.runtime.core import Core
from backstay.server.remote_worker import files
from backstay.server.remote_worker.client import Answered, Client, segment
from backstay.server.remote_worker.function import FunctionRun, Lost
from backstay.workflow.command.environment import Surroundings
from backstay.workflow.command.execution import Execution, Stopped
from backstay.workflow.command.job_type import NEEDS_DIR, by_job, identity, mentions, step_runs
from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.expressions.expression import Context, Need, Result

log = logging.getLogger("backstay")

#: How long a claim waits at the server, and the pause after one that failed: first, and at most.
WAIT, FIRST_PAUSE, LONGEST_PAUSE = 25.0, 0.2, 10.0
#: Chunks that are sent in one request, and how long a server that is away is tried for the sake of a job's end.
BATCH, PERSIST = 1000, 120.0
BEAT = 10.0
#: How long a lease waits for its next heartbeat at most: a cancellation is heard of by then.
SOON = 5.0


class Hand:
    """One job in this worker's hands."""

    def __init__(self, client: Client, handout: dict[str, Any]) -> None:
        self._client = client
        self.job: dict[str, Any] = handout["job"]
        self.lease: str = handout["lease"]["lease_id"]
        self.ttl: float = handout["lease"]["ttl_secs"]
        self._path = f"/api/jobs/{segment(self.lease)}"
        self._said = 0
        self.progress: float | None = None
        self.cancelled = self.lost = False

    async def say(self, lines: Sequence[tuple[Micros, str, str]]) -> None:
        """Send output, in order. Numbered, so that what is sent again is stored once."""
        for first in range(0, len(lines), BATCH):
            batch = lines[first : first + BATCH]
            chunks = [
                {"sequence": self._said + n, "timestamp_ms": at // 1000, "stream": stream, "data": data}
                for n, (at, stream, data) in enumerate(batch)
            ]
            await self._persist("logs", {"chunks": chunks})
            self._said += len(batch)

    async def end(self, verb: str, body: dict[str, Any]) -> None:
        """Tell how it ended, through absences of the server. Raises Lost."""
        await self._persist(verb, body)

    async def put(self, name: str, raw: bytes) -> None:
        """Leave a file with the job. Raises Lost."""
        await self._again(lambda: self._client.put(f"{self._path}/artifacts/{segment(name)}", raw))

    async def beat(self) -> None:
        """Raises Lost."""
        answer = await self._once("heartbeat", {"progress": self.progress})
        self.cancelled = self.cancelled or bool(answer["cancelled"])

    async def _once(self, verb: str, body: Any) -> Any:
        return await self._asked(self._client.post(f"{self._path}/{verb}", body))

    async def _asked(self, request: Awaitable[Any]) -> Any:
        try:
            return await request
        except Answered as error:
            if error.status == 409:  # noqa: PLR2004 - the lease is not current
                self.lost = True
                raise Lost from None
            raise

    async def _persist(self, verb: str, body: Any) -> None:
        await self._again(lambda: self._client.post(f"{self._path}/{verb}", body))

    async def _again(self, request: Callable[[], Awaitable[Any]]) -> None:
        """Through absences of the server."""
        began, pause = steady(), FIRST_PAUSE
        while True:
            try:
                await self._asked(request())
                return
            except (EngineUnavailable, Answered) as error:
                again = not isinstance(error, Answered) or error.status in (408, 429, 500, 502, 503, 504)
                if not again or self.lost or steady() - began > PERSIST:
                    raise
                await asyncio.sleep(random.uniform(pause / 2, pause))
                pause = min(pause * 2, LONGEST_PAUSE)


class RemoteWorker:
    """Claims and runs until `stop()`. `core`: of a program whose functions it may run; None: commands only."""

    def __init__(
        self,
        client: Client,
        *,
        surroundings: Surroundings | None,
        core: Core | None = None,
        queues: Sequence[str] = (),
        labels: Sequence[str] = (),
        concurrency: int = 1,
        lease: float = 30.0,
        drain: float = 30.0,
        grace: float = 5.0,
        name: str = "",
    ) -> None:
        self._client = client
        self._surroundings = surroundings
        self._core = core
        self.queues = [*(queues if core is not None else ()), *([COMMANDS] if surroundings is not None else [])]
        self.labels = sorted(set(labels))
        self._concurrency = concurrency
        self._lease = lease
        self._drain = drain
        self._grace = grace
        self._threads = Threads(asyncio.get_running_loop())
        self.id = name or f"{socket.gethostname()}-{random.getrandbits(32):08x}"
        self._stopping = asyncio.Event()
        self._executions: dict[str, Execution | FunctionRun] = {}
        self._running = 0
        self.done = 0

    def stop(self) -> None:
        """Claim no more; what runs has `drain` seconds, then it is given back. From the loop. Twice: now."""
        if self._stopping.is_set():
            self._drain = 0.0
            for execution in self._executions.values():
                execution.stop()
        self._stopping.set()

    async def run(self) -> None:
        registered: dict[str, Any] = {"worker_id": self.id, "labels": self.labels, "queues": self.queues}
        registered |= {"concurrency": self._concurrency, "host": socket.gethostname()}
        await self._reach(registered)
        beat = asyncio.create_task(self._beat())
        slots = [asyncio.create_task(self._slot()) for _ in range(self._concurrency)]
        try:
            await self._stopping.wait()
            await asyncio.wait(slots, timeout=self._drain)
            for execution in self._executions.values():
                execution.stop()
            await asyncio.wait(slots)
        finally:
            for task in (*slots, beat):
                task.cancel()
            await asyncio.gather(*slots, beat, return_exceptions=True)
            self._threads.close()
            with suppress(BackstayError, Answered):
                await self._client.delete(f"/api/workers/{segment(self.id)}", timeout=2.0)
            await self._client.close()

    async def _reach(self, registered: dict[str, Any]) -> None:
        """A server that is not there yet is waited for. Raises Answered when it refuses."""
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                await self._client.post("/api/workers/register", registered)
                return
            except EngineUnavailable as error:
                if pause == FIRST_PAUSE:
                    log.warning("waiting for the server: %s", error)
                await self._rest(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), random.uniform(seconds / 2, seconds))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            with suppress(BackstayError, Answered):
                body = {"running": self._running, "draining": self._stopping.is_set()}
                await self._client.post(f"/api/workers/{segment(self.id)}/heartbeat", body)

    async def _slot(self) -> None:
        """One job after another."""
        pause = FIRST_PAUSE
        wish = {
            "worker_id": self.id,
            "labels": self.labels,
            "queues": self.queues,
            "lease_ttl_secs": self._lease,
            "wait_secs": WAIT,
        }
        while not self._stopping.is_set():
            claim = asyncio.create_task(self._client.post("/api/jobs/claim", wish, timeout=WAIT + 30))
            stop = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({claim, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if not claim.done():  # the server notices that we have gone, and gives nothing out
                claim.cancel()
                with suppress(asyncio.CancelledError):
                    await claim
                return
            try:
                found = claim.result()
            except (BackstayError, Answered) as error:
                log.warning("no job could be claimed: %s", error)
                await self._rest(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            if found is not None:
                await self._carry_out(Hand(self._client, found))

    async def _carry_out(self, hand: Hand) -> None:
        self._running += 1
        tend = asyncio.create_task(self._tend(hand))
        try:
            await self._attempt(hand)
            self.done += 1
        except Lost:
            log.warning("the lease of %s was lost", hand.job["job_id"])
        except (BackstayError, Answered) as error:
            log.error("what became of %s could not be told: %s", hand.job["job_id"], error)  # noqa: TRY400 - one line
        finally:
            self._running -= 1
            tend.cancel()
            await asyncio.gather(tend, return_exceptions=True)

    async def _tend(self, hand: Hand) -> None:
        """Keep the lease; end the job when somebody wants that, or when the lease is lost."""
        while True:
            await asyncio.sleep(min(hand.ttl / 3, SOON))
            execution = self._executions.get(hand.lease)
            with suppress(BackstayError, Answered, Lost):
                sent = steady()
                await hand.beat()
                if isinstance(execution, FunctionRun):
                    execution.renewed(sent)
            execution = self._executions.get(hand.lease)
            if execution is not None and hand.lost:
                execution.kill()
            elif execution is not None and hand.cancelled:
                execution.stop()

    async def _attempt(self, hand: Hand) -> None:
        job = hand.job
        log.info("%s %s: attempt %d", job["workflow_id"], job["job_id"], job["attempt"])
        if job["type"] != COMMAND:
            await self._function(hand)
            return
        try:
            body = await self._command(hand)
        except Stopped:
            if hand.lost:
                raise Lost from None
            if hand.cancelled:
                await hand.end("fail", {"error": "it was cancelled", "cancelled": True})
            else:
                await hand.end("release", {})
        except Lost:
            raise
        except TimeoutError:
            await hand.end("fail", {"error": f"it ran longer than {job['timeout_secs']:g} s"})
        except CommandFailed as error:
            await hand.end("fail", {"error": str(error)[:10_000]})
        except Exception as error:  # noqa: BLE001 - whatever a function raises is its failure
            said = failure(error, job["attempt"])
            await hand.end("fail", {"error": f"{said.kind}: {said.message}"[:10_000]})
        else:
            await hand.end("complete", body)

    async def _command(self, hand: Hand) -> dict[str, Any]:
        job = hand.job
        if self._surroundings is None:
            raise CommandFailed("this worker runs no commands; start it with --allow-commands")
        spec = msgspec.convert(job["args"]["command"], CommandSpec)
        upstream: Mapping[str, dict[str, str]] = job["upstream_outputs"]
        results: Mapping[str, Result] = job["upstream_results"]
        needs = {key: Need(results[key], upstream.get(key, {})) for key in spec.needs}
        context = Context(needs=by_job(needs), inputs=spec.inputs, matrix=spec.matrix, env=spec.env)
        fence = int(hand.lease.rpartition(".")[2])
        fetched = Path(tempfile.mkdtemp(prefix="backstay-needs-")) if mentions(spec, NEEDS_DIR) else None
        execution = Execution(
            spec,
            self._surroundings,
            given=identity(job["uid"], job["run_id"], job["attempt"], fence, spec, needs),
            needs={key: dict(upstream.get(key, {})) for key in spec.needs},
            sink=hand.say,
            now=_now,
            condition=lambda step, failed, outputs: step_runs(step, context, failed=failed, outputs=outputs),
            collect=lambda directory, say: files.leave(directory, hand.put, say),
            needs_directory=fetched,
        )
        self._executions[hand.lease] = execution
        limit = (
            asyncio.get_running_loop().call_later(job["timeout_secs"], execution.stop) if job["timeout_secs"] else None
        )
        began = steady()
        try:
            if fetched is not None:
                await files.fetch(self._client, job, spec.needs, fetched)
            return {"outputs": await execution.run()}
        except Stopped:
            if limit is not None and steady() - began >= job["timeout_secs"] and not hand.cancelled:
                raise TimeoutError from None
            raise
        finally:
            del self._executions[hand.lease]
            if fetched is not None:
                shutil.rmtree(fetched, ignore_errors=True)
            if limit is not None:
                limit.cancel()

    async def _function(self, hand: Hand) -> None:
        job = hand.job
        known: BaseJobType[..., Any] | None = self._core.jobs.get(job["type"]) if self._core is not None else None
        if known is None:
            await hand.end("fail", {"error": f"LookupError: this worker knows no job type {job['type']!r}"})
            return
        run = self._executions[hand.lease] = FunctionRun(hand, known, self._threads, self._grace)
        try:
            told = await run.run()
        finally:
            del self._executions[hand.lease]
        if told is None:
            raise Lost
        await hand.end(*told)


def _now() -> Micros:
    return time.time_ns() // 1000
