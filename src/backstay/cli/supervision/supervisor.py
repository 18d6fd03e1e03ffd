"""Run several worker processes: start them, restart crashed ones, forward signals.

Each child runs in a session of its own, so Ctrl-C on the terminal reaches only the supervisor, which forwards it. Each
child also watches the read end of a pipe; only the supervisor holds the write end. When the supervisor dies, the kernel
closes the write end. The children notice this and drain.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from backstay.cli.exit_codes import USAGE
from backstay.cli.supervision.reload import SourceWatcher
from backstay.engine.base import steady
from backstay.runtime.loop import Loop
from backstay.telemetry import Telemetry

log = logging.getLogger("backstay")

#: The environment variable that gives a child the file descriptor of its end of the pipe.
PIPE = "BACKSTAY_SUPERVISOR_PIPE"
#: Seconds. A crashed child is restarted after FIRST_PAUSE; the pause doubles with each crash, up to LONGEST_PAUSE. If
#: the child ran for more than SETTLED seconds before it crashed, the next pause is FIRST_PAUSE again.
FIRST_PAUSE, LONGEST_PAUSE, SETTLED = 0.5, 30.0, 60.0
#: Seconds between checks for changed source files (`--reload`).
CHECK_SECONDS = 0.5


class Supervisor:
    """Runs `count` children. The first signal drains them, the second stops them at once, the third kills them."""

    def __init__(self, command: Callable[[int], Sequence[str]], count: int, *, burst: bool, reload: bool) -> None:
        self._command = command
        self._count = count
        self._burst = burst
        self._sources = SourceWatcher(Path.cwd()) if reload else None
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._signals = 0
        self._stopping = asyncio.Event()
        self._reloads = 0
        #: Set when the supervisor stops or the sources change, to end the pause before a restart.
        self._wake = asyncio.Event()

    async def run(self) -> int:
        """Run until all children have ended, and return the exit code of this command. It is 2 when a child rejected
        its options. Otherwise it is 0 or, with `burst`, the largest exit code of a child.
        """
        loop = asyncio.get_running_loop()
        theirs, ours = os.pipe()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number.name)
        watch = Loop(self._check_sources, name="reload", every=CHECK_SECONDS, telemetry=Telemetry())
        if self._sources is not None:
            watch.start()
        try:
            codes = await asyncio.gather(*(self._run_child(place, theirs) for place in range(self._count)))
        finally:
            await watch.stop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            os.close(ours)
            os.close(theirs)
        if USAGE in codes:
            return USAGE
        return max(codes) if self._burst else 0

    async def _run_child(self, place: int, pipe: int) -> int:
        """Start one child, restart it after each crash, and return its last exit code."""
        failures = 0
        while not self._stopping.is_set():
            began, reloads = steady(), self._reloads
            process = self._children[place] = await asyncio.create_subprocess_exec(
                *self._command(place),
                env=os.environ | {PIPE: str(pipe)},
                pass_fds=(pipe,),
                start_new_session=True,
            )
            code = await process.wait()
            del self._children[place]
            if self._stopping.is_set() or (self._burst and code == 0):
                return abs(code)
            if self._reloads != reloads:
                failures = 0
                continue
            if (
                code == USAGE and self._sources is None
            ):  # the child has printed the reason, and a restart would fail the same way
                self._give_up()
                return code
            failures = 1 if steady() - began > SETTLED else failures + 1
            if self._burst and failures > 3:  # noqa: PLR2004 - a burst must end, so it gives up
                return abs(code)
            pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
            log.error("worker process %d %s; restarting in %g s", process.pid, _describe_exit(code), pause)
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
            failures = 0 if self._reloads != reloads else failures
        return 0

    def _give_up(self) -> None:
        if not self._stopping.is_set():
            log.error("a worker process rejected its options: stopping")
            self._stopping.set()
            self._wake.set()
            self._signal_children(signal.SIGTERM)

    def _on_signal(self, name: str) -> None:
        self._signals += 1
        what = ("draining", "stopping now", "killing")[min(self._signals, 3) - 1]
        log.warning("%s: %s %d worker processes", name, what, len(self._children))
        self._stopping.set()
        self._wake.set()
        self._signal_children(signal.SIGKILL if self._signals > 2 else signal.SIGTERM)  # noqa: PLR2004 - the third

    def _signal_children(self, number: int) -> None:
        for process in list(self._children.values()):
            with suppress(ProcessLookupError):
                process.send_signal(number)

    async def _check_sources(self) -> None:
        if self._sources is not None and (changed := self._sources.find_changes()) and not self._stopping.is_set():
            log.warning("%s changed: restarting", ", ".join(Path(path).name for path in changed[:3]))
            self._reloads += 1
            self._wake.set()
            self._signal_children(signal.SIGTERM)


def _describe_exit(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def watch_supervisor(stop: Callable[[], None]) -> Callable[[], None]:
    """In a child process: call `stop` when the supervisor dies. Return a function that ends this watch."""
    loop = asyncio.get_running_loop()
    pipe = os.environ.pop(PIPE, "")
    if not pipe:
        return lambda: None
    fd = int(pipe)

    def on_supervisor_death() -> None:
        loop.remove_reader(fd)
        log.warning("the supervisor died: draining")
        stop()

    loop.add_reader(fd, on_supervisor_death)
    return lambda: None if loop.is_closed() else _end_watch(loop, fd)


def _end_watch(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    loop.remove_reader(fd)
    with suppress(OSError):
        os.close(fd)
