"""Follow a run: pass its events and its jobs' output to a viewer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from backstay.cli.views.run_progress import ENDED, Progress, Row
from backstay.job import metadata
from backstay.job.flows import send
from backstay.job.model import LogLine
from backstay.job.run_model import FINISHED, Run, RunEvent
from backstay.job.store import JOB_STORE
from backstay.workflow.run import unpack_doc

if TYPE_CHECKING:
    from backstay.runtime.core import Core

#: Seconds between polls. The run is in this process, so a poll is cheap.
LOOK = 0.05
PAGE = 1000


class Viewer(Protocol):
    """Receives the events and the output of a run."""

    def moved(self, row: Row, event: RunEvent) -> None: ...

    def wrote(self, row: Row, line: LogLine) -> None: ...

    def look(self) -> None:
        """Called after every poll."""
        ...


class Watch:
    """Follows one run from its start to its end."""

    def __init__(self, core: Core, run: Run, viewer: Callable[[Progress], Viewer]) -> None:
        self._core = core
        self._store = core.services.get(JOB_STORE)
        self.id = run.id
        self.progress = Progress(unpack_doc(run.doc))
        self._viewer = viewer(self.progress)
        self._seen = 0
        #: By job id: the job's key and type, and the number of the last log line read.
        self._known: dict[str, tuple[str, str]] = {}
        self._read: dict[str, int] = {}

    async def to_the_end(self) -> Run:
        while True:
            run = await send(self._core, self._store.get_run(self.id))
            if run is None:
                raise LookupError(self.id)
            await self._events()
            await self._logs()
            self._viewer.look()
            if run.status in FINISHED and self._seen >= run.events:
                return run
            await asyncio.sleep(LOOK)

    async def _events(self) -> None:
        while page := await send(self._core, self._store.run_events(self.id, self._seen, PAGE)):
            for event in page:
                key, kind = await self._whose(event.job) if event.job else ("", "")
                self._seen = event.seq
                row = self.progress.apply(event, key, kind)
                if row is None:
                    continue
                if row.status in ENDED:
                    await self._log(row)  # show the output before the outcome
                    if event.kind == "completed":
                        row.outputs = await send(self._core, self._store.get_outputs(event.job))
                self._viewer.moved(row, event)

    async def _whose(self, job: str) -> tuple[str, str]:
        if job not in self._known:
            found = await send(self._core, self._store.get(job))
            self._known[job] = (metadata.unpack(found.meta).key or job, found.type) if found is not None else (job, "")
        return self._known[job]

    async def _logs(self) -> None:
        for row in self.progress.rows.values():
            if row.status == "running":
                await self._log(row)

    async def _log(self, row: Row) -> None:
        for job in row.ids[-1:]:
            while page := await send(self._core, self._store.read_log(job, self._read.get(job, 0), PAGE)):
                self._read[job] = page[-1].seq
                for line in page:
                    self._viewer.wrote(row, line)
                if len(page) < PAGE:
                    break
