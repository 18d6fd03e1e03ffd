"""A worker process of a race: `python -m support.races.chaos_worker URL …` runs jobs and records each start and end."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import signal
from pathlib import Path
from typing import Any

from backstay import Backstay
from backstay.job.api.context import current_job
from backstay.testing.histories.job_history import END, START, NoteWriter

#: More than any race uses: no job may fail because it is out of attempts.
RETRIES = 1000


def chores(stay: Any, notebook: NoteWriter | None = None, seconds: float = 0.0) -> Any:
    """Define the job type of the race on an async or a blocking Backstay. A process that only enqueues passes no
    notebook.
    """

    async def chore(n: int) -> int:
        job = current_job()
        if notebook is not None:
            notebook.write(START, n, job.fence, job.attempt)
        await asyncio.sleep(seconds)
        if notebook is not None:
            notebook.write(END, n, job.fence, job.attempt)
        return job.fence

    return stay.job(retries=RETRIES, backoff=0)(chore)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m support.races.chaos_worker", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--hub", default="")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--lease", type=float, default=2.0)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.005, help="duration of each job")
    args = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)
    stay = Backstay(args.url, namespace=args.namespace, hub=args.hub or None, shards=args.shards)
    chores(stay, NoteWriter(args.folder, args.label), args.seconds)
    try:  # no `open()` first: it would fail while the engine is unreachable, but a worker waits for the engine
        await stay.worker(concurrency=args.concurrency, lease=args.lease).run()
    finally:
        await stay.close()


if __name__ == "__main__":
    asyncio.run(main())
