"""Warns when a handler blocks the event loop: everything else in the worker stands still meanwhile.

A thread asks the loop for a sign of life while jobs run. Leases are safe (the keeper has a thread of its own), but
completions, hints, time limits and all other handlers wait.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from holdfast.engine.base import steady

if TYPE_CHECKING:
    from holdfast.job.slots import Slots
    from holdfast.telemetry import Telemetry

log = logging.getLogger("holdfast")

#: How often the loop is asked, as a part of what it may take to answer.
LOOKS = 4
#: One that stays blocked is named again after this many times as long, and so on.
AGAIN = 5
#: Lines of the stack that show where it hangs.
FRAMES = 6


class Watchdog:
    """Runs from `start` until `stop`; both are safe twice."""

    def __init__(self, slots: Slots, telemetry: Telemetry, after: float) -> None:
        self._slots = slots
        self._telemetry = telemetry
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stopping = threading.Event()
        self._answered = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None and self._after > 0:
            self._thread = threading.Thread(target=self._run, name="holdfast-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._answered.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(1.0)

    def _run(self) -> None:
        while not self._stopping.wait(max(0.05, self._after / LOOKS)):
            if not self._slots.busy:
                continue
            self._answered.clear()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:  # the loop is closed
                return
            asked = steady()
            patience = self._after
            while not self._answered.wait(patience) and not self._stopping.is_set():
                self._warn(steady() - asked)
                patience *= AGAIN

    def _warn(self, seconds: float) -> None:
        task = None
        with suppress(RuntimeError):
            task = asyncio.current_task(self._loop)
        attempt = next((a for a in list(self._slots.held.values()) if a.task is task and task is not None), None)
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented
        where = _where(frame)
        name = attempt.name if attempt is not None else "something that is not a job"
        self._telemetry.emit("job.blocks_loop", job=name, seconds=seconds)
        log.warning(
            "%s has blocked the event loop for %.1f s; nothing else runs meanwhile. Await instead of waiting, or make"
            " the handler a plain function, which runs in a thread. It is here:\n%s",
            name,
            seconds,
            where,
        )


def _where(frame: FrameType | None) -> str:
    if frame is None:
        return "  (unknown)"
    return "".join(traceback.format_list(traceback.extract_stack(frame)[-FRAMES:])).rstrip()
