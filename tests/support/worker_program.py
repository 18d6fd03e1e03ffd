"""A program with jobs, for workers in separate processes. Its handlers write each start and end to the journal file."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import backstay
from backstay import Backstay, fixed

stay = Backstay()
JOURNAL = Path(os.environ.get("WORKER_JOURNAL", os.devnull))


def write_line(*words: object) -> None:
    """Append a line to the journal. It is one `write`, so that lines of several processes do not mix."""
    fd = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(fd, (" ".join(str(word) for word in words) + "\n").encode())
    finally:
        os.close(fd)


@stay.job(retries=3, backoff=fixed(0.01))
async def record(n: int, seconds: float = 0.0, first: float = -1.0) -> int:
    """Sleep, and write the start and the end. `first`: the duration of the first attempt, instead of `seconds`."""
    ctx = backstay.current_job()
    if ctx.attempt == 1 and first >= 0:
        seconds = first
    write_line("start", n, ctx.attempt, ctx.fence, os.getpid())
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        write_line("cancelled", n, ctx.attempt, ctx.fence, os.getpid())
        raise
    write_line("end", n, ctx.attempt, ctx.fence, os.getpid())
    return n


@stay.job()
async def block_loop(seconds: float) -> None:
    write_line("start", "block", backstay.current_job().attempt)
    time.sleep(seconds)  # noqa: ASYNC251 - the job blocks the loop on purpose
    write_line("end", "block")


@stay.job(retries=2, backoff=fixed(0.01))
async def kill_worker() -> None:
    write_line("kill", os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


@stay.job()
async def version() -> str:
    return "one"
