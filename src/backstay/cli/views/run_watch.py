"""Follow a run: pass its events and its jobs' output to a viewer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from backstay.cli.views.run_progress import ENDED, Row, RunProgress
from backstay.job import metadata
from backstay.job.flows import send
from backstay.job.model import LogLine
from backstay.job.run_model import FINISHED, Run, RunEvent
from backstay.job.store import JOB_STORE
from backstay.workflow.run import unpack_doc

if TYPE_CHECKING:
    from backstay.runtime.core import Core

#: Seconds between polls. The run is in this process's memory (`memory://`), so a poll is cheap.
POLL_SECONDS = 0.05
PAGE = 1000


class Viewer(Protocol):
    """Shows a run to the user. A `Watch` calls it with each event and each piece of output of the run's jobs."""

    def on_event(self, row: Row, event: RunEvent) -> None: ...

    def on_output(self, row: Row, line: LogLine) -> None: ...

    def on_poll(self) -> None:
        """Handle the end of a poll: the watch calls this after it has passed on all new events and output."""
        ...


class Watch:
    """Polls one run until it ends, and passes its events and output to a viewer."""

    def __init__(self, core: Core, run: Run, viewer: Callable[[RunProgress], Viewer]) -> None:
        self._core = core
        self._store = core.services.get(JOB_STORE)
        self.id = run.id
        self.progress = RunProgress(unpack_doc(run.doc))
        self._viewer = viewer(self.progress)
        self._seen = 0
        #: The key and type of each job, by job id.
        self._known: dict[str, tuple[str, str]] = {}
        #: The number of the last log line that was read of each job, by job id.
        self._read: dict[str, int] = {}

    async def follow(self) -> Run:
        while True:
            run = await send(self._core, self._store.get_run(self.id))
            if run is None:
                raise LookupError(self.id)
            await self._read_events()
            await self._read_logs()
            self._viewer.on_poll()
            if run.status in FINISHED and self._seen >= run.events:
                return run
            await asyncio.sleep(POLL_SECONDS)

    async def _read_events(self) -> None:
        while page := await send(self._core, self._store.run_events(self.id, self._seen, PAGE)):
            for event in page:
                key, kind = await self._job_key_and_type(event.job) if event.job else ("", "")
                self._seen = event.seq
                row = self.progress.apply(event, key, kind)
                if row is None:
                    continue
                if row.status in ENDED:
                    await self._read_log(row)  # show the output before the outcome
                    if event.kind == "completed":
                        row.outputs = await send(self._core, self._store.get_outputs(event.job))
                self._viewer.on_event(row, event)

    async def _job_key_and_type(self, job: str) -> tuple[str, str]:
        if job not in self._known:
            found = await send(self._core, self._store.get(job))
            self._known[job] = (metadata.unpack(found.meta).key or job, found.type) if found is not None else (job, "")
        return self._known[job]

    async def _read_logs(self) -> None:
        for row in self.progress.rows.values():
            if row.status == "running":
                await self._read_log(row)

    async def _read_log(self, row: Row) -> None:
        for job in row.ids[-1:]:
            while page := await send(self._core, self._store.read_log(job, self._read.get(job, 0), PAGE)):
                self._read[job] = page[-1].seq
                for line in page:
                    self._viewer.on_output(row, line)
                if len(page) < PAGE:
                    break
