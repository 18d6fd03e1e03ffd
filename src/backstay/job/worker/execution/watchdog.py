"""The watchdog: warns when a handler blocks the event loop, and ends that handler when the worker must stop.

A thread probes the event loop while jobs run. While the loop is blocked, leases are safe (the keeper renews them on its
own thread), but acknowledgements, notifications, time limits and all other handlers wait. So does the handling of stop
signals: once the time to drain is over, the watchdog ends the blocking handler.
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
    from backstay.job.worker.process_signals import ProcessSignals
    from backstay.job.worker.slots import Slots
    from backstay.telemetry import Telemetry

log = logging.getLogger("backstay")

#: How often the event loop is probed within `blocked_after`, the worker's option that says after how many seconds a
#: blocked loop is reported.
PROBES = 4
#: While the loop stays blocked, the time until the next warning grows by this factor.
REPEAT_FACTOR = 5
#: Stack frames shown in the warning.
FRAMES = 6
#: If the event loop is still blocked this many seconds after a second stop signal, the watchdog ends the blocking
#: handler.
UNHANDLED = 0.5


class Watchdog:
    """Watches the event loop from its own thread between `start` and `stop`. Both are safe to call twice."""

    def __init__(self, slots: Slots, telemetry: Telemetry, after: float, signals: ProcessSignals, drain: float) -> None:
        self._slots = slots
        self._telemetry = telemetry
        self._after = after
        self._signals = signals
        self._drain = drain
        self._interval = max(0.05, after / PROBES)
        self._stop_warned = False
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stopping = threading.Event()
        self._loop_answered = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None and self._after > 0:
            self._thread = threading.Thread(target=self._run, name="backstay-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._loop_answered.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(1.0)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            if not self._slots.busy:
                continue
            self._loop_answered.clear()
            try:
                self._loop.call_soon_threadsafe(self._loop_answered.set)
            except RuntimeError:  # the loop is closed
                return
            asked = steady()
            patience, warn_at = self._after, asked + self._after
            while not self._loop_answered.wait(self._interval) and not self._stopping.is_set():
                now = steady()
                if now >= warn_at:
                    self._warn(now - asked)
                    patience *= REPEAT_FACTOR
                    warn_at = now + patience
                if now >= asked + self._after and self._signals.received:
                    self._enforce_stop(now)

    def _enforce_stop(self, now: float) -> None:
        """End the handler that blocks the event loop, once the time to drain since the first stop signal is over, or
        soon after a second signal. The event loop would do this itself, but it is blocked.
        """
        came, attempt = self._signals.received, self._blocking_attempt()
        if attempt is None:
            return
        if not self._stop_warned:
            self._stop_warned = True
            log.warning(
                "%s takes effect once %s stops blocking the event loop; after %g s, or at the next signal, the job is"
                " ended and released",
                self._signals.name,
                attempt.name,
                self._drain,
            )
        if now >= came[0] + self._drain or (len(came) > 1 and now >= came[1] + UNHANDLED):
            log.warning("%s blocks the event loop of a stopping worker: ending and releasing it", attempt.name)
            self._signals.interrupt_blocking(attempt)

    def _blocking_attempt(self) -> Attempt | None:
        """Return the attempt whose handler the event loop runs at this moment."""
        task = None
        with suppress(RuntimeError):
            task = asyncio.current_task(self._loop)
        return next((a for a in list(self._slots.leased.values()) if a.task is task and task is not None), None)

    def _warn(self, seconds: float) -> None:
        attempt = self._blocking_attempt()
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented
        where = _format_stack(frame)
        name = attempt.name if attempt is not None else "code that is not a job's handler"
        self._telemetry.emit("job.blocks_loop", job=name, seconds=seconds)
        log.warning(
            "%s has blocked the event loop for %.1f s; nothing else can run. Use await instead of blocking calls, or"
            " make the handler a plain function, which runs in a thread. It is blocked at:\n%s",
            name,
            seconds,
            where,
        )


def _format_stack(frame: FrameType | None) -> str:
    if frame is None:
        return "  (unknown)"
    return "".join(traceback.format_list(traceback.extract_stack(frame)[-FRAMES:])).rstrip()
