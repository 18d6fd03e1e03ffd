"""`backstay worker --server URL`: a worker that talks to a server over HTTP and never to the engine.

The worker claims command jobs of workflows, and jobs whose functions its program defines. It renews their leases, sends
their logs and reports their outcomes.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from backstay.engine.base import Micros, steady
from backstay.engine.jitter import RANDOM
from backstay.errors import BackstayError, CommandFailed, EngineUnavailable
from backstay.job.api.definition import BaseJobType
from backstay.job.reserved import COMMAND, COMMANDS
from backstay.job.worker.execution.outcome import describe_failure
from backstay.job.worker.execution.threads import Threads
from backstay.server.remote_worker import files
from backstay.server.remote_worker.client import RequestRefused, ServerClient, encode_segment
from backstay.server.remote_worker.function import FunctionRun
from backstay.server.remote_worker.leased_job import FIRST_PAUSE, LONGEST_PAUSE, LeasedJob, LeaseRevoked
from backstay.workflow.command.environment import CommandEnvironment
from backstay.workflow.command.execution import Execution, Stopped
from backstay.workflow.command.job_type import NEEDS_DIR, build_identity, group_by_job, mentions, should_run_step
from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.expressions.expression import Context, Need, Result

log = logging.getLogger("backstay")

#: Seconds that a claim waits at the server (long poll).
CLAIM_WAIT = 25.0
#: Seconds between heartbeats of the worker.
HEARTBEAT_SECONDS = 10.0
#: The longest time between heartbeats of a lease, in seconds. A cancellation reaches the worker within this time.
LONGEST_LEASE_HEARTBEAT = 5.0


class RemoteWorker:
    """Claims and runs jobs until `stop()`; each of `concurrency` slots runs one job at a time. `job_types` are the
    functions that it can run, by name; None: it runs commands only.
    """

    def __init__(
        self,
        client: ServerClient,
        *,
        environment: CommandEnvironment | None,
        job_types: Mapping[str, BaseJobType[..., Any]] | None = None,
        queues: Sequence[str] = (),
        labels: Sequence[str] = (),
        concurrency: int = 1,
        lease: float = 30.0,
        drain: float = 30.0,
        grace: float = 5.0,
        name: str = "",
    ) -> None:
        self._client = client
        self._environment = environment
        self._job_types = job_types
        self.queues = [*(queues if job_types is not None else ()), *([COMMANDS] if environment is not None else [])]
        self.labels = sorted(set(labels))
        self._concurrency = concurrency
        self._lease = lease
        self._drain_seconds = drain
        self._grace = grace
        self._threads = Threads(asyncio.get_running_loop())
        self.id = name or f"{socket.gethostname()}-{RANDOM.getrandbits(32):08x}"
        self._stopping = asyncio.Event()
        self._executions: dict[str, Execution | FunctionRun] = {}
        self._running = 0
        self.done = 0

    def stop(self) -> None:
        """Stop claiming; running jobs have `drain` seconds and are then released. A second call releases them at once.
        Call it on the event loop.
        """
        if self._stopping.is_set():
            self._drain_seconds = 0.0
            for execution in self._executions.values():
                execution.stop()
        self._stopping.set()

    async def run(self) -> None:
        registered: dict[str, Any] = {"worker_id": self.id, "labels": self.labels, "queues": self.queues}
        registered |= {"concurrency": self._concurrency, "host": socket.gethostname()}
        await self._register(registered)
        beat = asyncio.create_task(self._send_heartbeats())
        slots = [asyncio.create_task(self._run_slot()) for _ in range(self._concurrency)]
        try:
            await self._stopping.wait()
            await asyncio.wait(slots, timeout=self._drain_seconds)
            for execution in self._executions.values():
                execution.stop()
            await asyncio.wait(slots)
        finally:
            for task in (*slots, beat):
                task.cancel()
            await asyncio.gather(*slots, beat, return_exceptions=True)
            self._threads.close()
            with suppress(BackstayError, RequestRefused):
                await self._client.delete(f"/api/workers/{encode_segment(self.id)}", timeout=2.0)
            await self._client.close()

    async def _register(self, registered: dict[str, Any]) -> None:
        """Register the worker, with retries until the server is reachable. Raises RequestRefused."""
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                await self._client.post("/api/workers/register", registered)
                return
            except EngineUnavailable as error:
                if pause == FIRST_PAUSE:
                    log.warning("waiting for the server: %s", error)
                await self._pause(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _pause(self, seconds: float) -> None:
        """Sleep for up to `seconds`, with jitter. Returns early when the worker stops."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), RANDOM.uniform(seconds / 2, seconds))

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            with suppress(BackstayError, RequestRefused):
                body = {"running": self._running, "draining": self._stopping.is_set()}
                await self._client.post(f"/api/workers/{encode_segment(self.id)}/heartbeat", body)

    async def _run_slot(self) -> None:
        """Claim and run one job after another."""
        pause = FIRST_PAUSE
        wanted = {
            "worker_id": self.id,
            "labels": self.labels,
            "queues": self.queues,
            "lease_ttl_secs": self._lease,
            "wait_secs": CLAIM_WAIT,
        }
        while not self._stopping.is_set():
            claim = asyncio.create_task(self._client.post("/api/jobs/claim", wanted, timeout=CLAIM_WAIT + 30))
            stop = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({claim, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if not claim.done():  # the worker stops: the server notices the disconnect and hands out no job
                claim.cancel()
                with suppress(asyncio.CancelledError):
                    await claim
                return
            try:
                found = claim.result()
            except (BackstayError, RequestRefused) as error:
                log.warning("claim failed, retrying in up to %.1f s: %s", pause, error)
                await self._pause(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            if found is not None:
                await self._run_job(LeasedJob(self._client, found))

    async def _run_job(self, leased: LeasedJob) -> None:
        self._running += 1
        renewing = asyncio.create_task(self._renew_lease(leased))
        try:
            await self._run_attempt(leased)
            self.done += 1
        except LeaseRevoked:
            log.warning("the lease of %s was lost", leased.job["job_id"])
        except (BackstayError, RequestRefused) as error:
            log.error("could not report the outcome of %s: %s", leased.job["job_id"], error)  # noqa: TRY400 - a traceback adds nothing
        finally:
            self._running -= 1
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _renew_lease(self, leased: LeasedJob) -> None:
        """Send heartbeats for the lease. Stops the job when it is cancelled, and kills it when its lease is lost."""
        while True:
            await asyncio.sleep(min(leased.ttl / 3, LONGEST_LEASE_HEARTBEAT))
            execution = self._executions.get(leased.lease)
            with suppress(BackstayError, RequestRefused, LeaseRevoked):
                sent = steady()
                await leased.heartbeat()
                if isinstance(execution, FunctionRun):
                    execution.extend_lease(sent)
            execution = self._executions.get(leased.lease)
            if execution is not None and leased.lost:
                execution.kill()
            elif execution is not None and leased.cancelled:
                execution.stop()

    async def _run_attempt(self, leased: LeasedJob) -> None:
        job = leased.job
        log.info("%s %s: attempt %d", job["workflow_id"], job["job_id"], leased.attempt)
        if job["type"] != COMMAND:
            await self._run_function(leased)
            return
        try:
            body = await self._run_command(leased)
        except Stopped:
            if leased.lost:
                raise LeaseRevoked from None
            if leased.cancelled:
                await leased.finish("fail", {"error": "the job was cancelled", "cancelled": True})
            else:
                await leased.finish("release", {})
        except LeaseRevoked:
            raise
        except TimeoutError:
            await leased.finish("fail", {"error": f"the attempt ran longer than {leased.timeout:g} s"})
        except CommandFailed as error:
            await leased.finish("fail", {"error": str(error)[:10_000]})
        except Exception as error:  # noqa: BLE001 - any exception is a failure of the attempt
            failure = describe_failure(error, leased.attempt)
            await leased.finish("fail", {"error": f"{failure.kind}: {failure.message}"[:10_000]})
        else:
            await leased.finish("complete", body)

    async def _run_command(self, leased: LeasedJob) -> dict[str, Any]:
        job = leased.job
        if self._environment is None:
            raise CommandFailed("this worker does not run commands; start it with --allow-commands")
        spec = msgspec.convert(job["args"]["command"], CommandSpec)
        upstream: Mapping[str, dict[str, str]] = job["upstream_outputs"]
        results: Mapping[str, Result] = job["upstream_results"]
        needs = {key: Need(results[key], upstream.get(key, {})) for key in spec.needs}
        context = Context(needs=group_by_job(needs), inputs=spec.inputs, matrix=spec.matrix, env=spec.env)
        fence = int(leased.lease.rpartition(".")[2])
        fetched = Path(tempfile.mkdtemp(prefix="backstay-needs-")) if mentions(spec, NEEDS_DIR) else None
        execution = Execution(
            spec,
            self._environment,
            given=build_identity(job["uid"], job["run_id"], leased.attempt, fence, spec, needs),
            needs={key: dict(upstream.get(key, {})) for key in spec.needs},
            sink=leased.send_log,
            now=_now,
            condition=lambda step, failed, outputs: should_run_step(step, context, failed=failed, outputs=outputs),
            collect=lambda directory, log_line: files.upload(directory, leased.put_artifact, log_line),
            needs_directory=fetched,
        )
        self._executions[leased.lease] = execution
        limit = asyncio.get_running_loop().call_later(leased.timeout, execution.stop) if leased.timeout else None
        began = steady()
        try:
            if fetched is not None:
                await files.download(self._client, job, spec.needs, fetched)
            return {"outputs": await execution.run()}
        except Stopped:
            if limit is not None and steady() - began >= leased.timeout and not leased.cancelled:
                raise TimeoutError from None
            raise
        finally:
            del self._executions[leased.lease]
            if fetched is not None:
                shutil.rmtree(fetched, ignore_errors=True)
            if limit is not None:
                limit.cancel()

    async def _run_function(self, leased: LeasedJob) -> None:
        job = leased.job
        known = None if self._job_types is None else self._job_types.get(job["type"])
        if known is None:
            await leased.finish("fail", {"error": f"LookupError: this worker has no job type {job['type']!r}"})
            return
        run = self._executions[leased.lease] = FunctionRun(leased, known, self._threads, self._grace)
        try:
            report = await run.run()
        finally:
            del self._executions[leased.lease]
        if report is None:
            raise LeaseRevoked
        await leased.finish(*report)


def _now() -> Micros:
    return time.time_ns() // 1000
