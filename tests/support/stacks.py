"""Dump the stacks of all threads and of the event loop's tasks, to debug a hanging process."""

from __future__ import annotations

import asyncio
import faulthandler
import linecache
import signal
import sys
from typing import Any

#: The largest number of frames shown for a task.
DEEPEST = 50


def dump_stacks_on(signum: signal.Signals, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Install a signal handler that writes the stacks of all threads to standard error, even while the interpreter is
    blocked, and then the stacks of all tasks of `loop`, if that loop is running.
    """
    faulthandler.unregister(signum)  # otherwise a second `register` would not install its handler again
    if loop is not None:
        loop.add_signal_handler(signum, lambda: sys.stderr.write(tasks(loop)))
    faulthandler.register(signum, chain=loop is not None)


def tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Return the stack of each task of a loop, outermost frame first, with the future that the task waits for."""
    lines: list[str] = []
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        lines.append(f"Task {task.get_name()}:")
        lines += _awaits(task.get_coro())
        lines.append(f"  waits for {getattr(task, '_fut_waiter', None)!r}")
    return "\n".join(lines) + "\n"


def _awaits(awaited: Any) -> list[str]:
    lines: list[str] = []
    for _ in range(DEEPEST):
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        code = frame.f_code
        line = linecache.getline(code.co_filename, frame.f_lineno).strip()
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_qualname}: {line}')
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return lines
