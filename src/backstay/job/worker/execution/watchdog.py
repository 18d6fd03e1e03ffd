"""Warns when a handler blocks the event loop: everything else in the worker stands still meanwhile.

A thread asks the loop for a sign of life while jobs run. Leases are safe (the keeper has a thread of its own), but
completions, hints, time limits and all other handlers wait. So do signals: when the worker is to stop, and the time for
that is over, the handler is ended where it stands.
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

from backstay.engine.base import steady

if TYPE_CHECKING:
    from backstay.job.worker.execution.attempt import Attempt
    from backstay.job.worker.process_signals import Signals
    from backstay.job.worker.slots import Slots
    from backstay.telemetry import Telemetry

log = logging.getLogger("backstay")

#: How often the loop is asked, as a part of what it may take to answer.
LOOKS = 4
#: One that stays blocked is named again after this many times as long, and so on.
AGAIN = 5
#: Lines of the stack that show where it hangs.
FRAMES = 6
#: A second signal that the loop has not heard of after this long is obeyed without it.
UNHEARD = 0.5


class Watchdog:
    """Runs from `start` until `stop`; both are safe twice."""

    def __init__(self, slots: Slots, telemetry: Telemetry, after: float, signals: Signals, drain: float) -> None:
        self._slots = slots
        self._telemetry = telemetry
        self._after = after
        self._signals = signals
        self._drain = drain
        self._look = max(0.05, after / LOOKS)
        self._told = False
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stopping = threading.Event()
        self._answered = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None and self._after > 0:
            self._thread = threading.Thread(target=self._run, name="backstay-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._answered.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(1.0)

    def _run(self) -> None:
        while not self._stopping.wait(self._look):
            if not self._slots.busy:
                continue
            self._answered.clear()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:  # the loop is closed
                return
            asked = steady()
            patience, warn_at = self._after, asked + self._after
            while not self._answered.wait(self._look) and not self._stopping.is_set():
                now = steady()
                if now >= warn_at:
                    self._warn(now - asked)
                    patience *= AGAIN
                    warn_at = now + patience
                if now >= asked + self._after and self._signals.came:
                    self._obey(now)

    def _obey(self, now: float) -> None:
        """The worker is to stop, and its loop does not hear of it."""
        came, attempt = self._signals.came, self._blocker()
        if attempt is None:
            return
        if not self._told:
            self._told = True
            log.warning(
                "%s is heard once %s lets go of the event loop, which it blocks; in %g s, or at the next signal, it is"
                " ended and given back",
                self._signals.name,
                attempt.name,
                self._drain,
            )
        if now >= came[0] + self._drain or (len(came) > 1 and now >= came[1] + UNHEARD):
            log.warning("%s blocks the loop of a worker that is to stop: it is ended and given back", attempt.name)
            self._signals.end(attempt)

    def _blocker(self) -> Attempt | None:
        """Whose handler runs at this moment."""
        task = None
        with suppress(RuntimeError):
            task = asyncio.current_task(self._loop)
        return next((a for a in list(self._slots.held.values()) if a.task is task and task is not None), None)

    def _warn(self, seconds: float) -> None:
        attempt = self._blocker()
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
