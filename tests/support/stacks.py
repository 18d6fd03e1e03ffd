"""Dump the stacks of all threads and of the event loop's tasks, to debug a hanging process."""

from __future__ import annotations

import asyncio
import faulthandler
import linecache
import signal
import sys
from typing import Any

#: Deeper chains of awaits are cut off.
DEEPEST = 50


def tell_on(signum: signal.Signals, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """From now on this signal makes the process say on its standard error where each of its threads is, also when
    Python stands still, and then, as long as `loop` turns, where each of its tasks is.
    """
    faulthandler.unregister(signum)  # else it would take what is registered already for good
    if loop is not None:
        loop.add_signal_handler(signum, lambda: sys.stderr.write(tasks(loop)))
    faulthandler.register(signum, chain=loop is not None)


def tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Each task of a loop, from its first line down to what it waits for."""
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
