"""Jobs that run in child processes, which import them from this module."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import backstay
from backstay import Backstay, Snooze

stay = Backstay(os.environ.get("JOBS_URL", "memory://"), namespace=os.environ.get("JOBS_NAMESPACE", "process-jobs"))


@stay.job(pool="process")
def where(n: int) -> tuple[int, int]:
    return os.getpid(), n


@stay.job(pool="process", retries=0)
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@stay.job(pool="process", retries=0)
def die_before_its_child(path: str) -> None:
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    Path(path).write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


@stay.job(pool="process", retries=0)
def exit_process() -> None:
    sys.exit(4)


@stay.job(pool="process", retries=0, timeout=0.5)
def endless() -> None:
    while True:
        time.sleep(0.1)


@stay.job(pool="process", retries=0)
def wait_for_cancel() -> None:
    ctx = backstay.current_job()
    ctx.log("waiting")
    ctx.progress(0.25)
    while True:
        ctx.check()
        time.sleep(0.01)


@stay.job(pool="process", retries=0)
def wait_for_file(path: str) -> int:
    ctx = backstay.current_job()
    ctx.progress(0.25)
    while not Path(path).exists():
        ctx.check()
        time.sleep(0.01)
    return os.getpid()


@stay.job(pool="process")
def snooze_once() -> str | Snooze:
    ctx = backstay.current_job()
    ctx.outputs["who"] = ctx.id
    if not ctx.snoozes:
        return Snooze(0.01)
    ctx.continue_with(where, 5)
    return "done"
