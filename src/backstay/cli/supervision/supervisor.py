"""Several worker processes: started, watched, restarted when they crash, told when to stop.

Children have sessions of their own, so that Ctrl-C reaches them through the supervisor only, once. Each holds the end
of a pipe: a supervisor that is killed lets go of the other end, and they drain by themselves.
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
from backstay.cli.supervision.reload import Sources
from backstay.engine.base import steady
from backstay.runtime.loop import Loop
from backstay.telemetry import Telemetry

log = logging.getLogger("backstay")

#: Where a child finds its end of the pipe.
PIPE = "BACKSTAY_SUPERVISOR_PIPE"
#: Pauses before a child that crashed is started again: first, at most; one that has lived so long begins anew.
FIRST_PAUSE, LONGEST_PAUSE, SETTLED = 0.5, 30.0, 60.0
#: How often the sources are looked at.
LOOK = 0.5


class Supervisor:
    """Runs `count` children. A first signal drains them, a second stops them now, a third kills them."""

    def __init__(self, command: Callable[[int], Sequence[str]], count: int, *, burst: bool, reload: bool) -> None:
        self._command = command
        self._count = count
        self._burst = burst
        self._sources = Sources(Path.cwd()) if reload else None
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._signals = 0
        self._stopping = asyncio.Event()
        self._reloads = 0
        #: Whoever waits before a child starts again need not: it is to stop, or the sources have changed.
        self._news = asyncio.Event()

    async def run(self) -> int:
        """Until all have ended. Answers the exit code: the worst of a burst; 2 for what cannot work; else 0."""
        loop = asyncio.get_running_loop()
        theirs, ours = os.pipe()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number.name)
        watch = Loop(self._look, name="reload", every=LOOK, telemetry=Telemetry())
        if self._sources is not None:
            watch.start()
        try:
            codes = await asyncio.gather(*(self._keep(place, theirs) for place in range(self._count)))
        finally:
            await watch.stop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            os.close(ours)
            os.close(theirs)
        if USAGE in codes:
            return USAGE
        return max(codes) if self._burst else 0

    async def _keep(self, place: int, pipe: int) -> int:
        """One child after another in this place."""
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
            if code == USAGE and self._sources is None:  # it has said why, and would say so each time
                self._give_up()
                return code
            failures = 1 if steady() - began > SETTLED else failures + 1
            if self._burst and failures > 3:  # noqa: PLR2004 - it will not get better
                return abs(code)
            pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
            log.error("worker process %d %s; another starts in %g s", process.pid, _how(code), pause)
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), pause)
            failures = 0 if self._reloads != reloads else failures
        return 0

    def _give_up(self) -> None:
        if not self._stopping.is_set():
            log.error("a worker process cannot work as it was asked to: stopping")
            self._stopping.set()
            self._news.set()
            self._tell(signal.SIGTERM)

    def _signalled(self, name: str) -> None:
        self._signals += 1
        what = ("draining", "stopping now", "killing")[min(self._signals, 3) - 1]
        log.warning("%s: %s %d worker processes", name, what, len(self._children))
        self._stopping.set()
        self._news.set()
        self._tell(signal.SIGKILL if self._signals > 2 else signal.SIGTERM)  # noqa: PLR2004 - the third

    def _tell(self, number: int) -> None:
        for process in list(self._children.values()):
            with suppress(ProcessLookupError):
                process.send_signal(number)

    async def _look(self) -> None:
        if self._sources is not None and (changed := self._sources.changed()) and not self._stopping.is_set():
            log.warning("%s changed: starting anew", ", ".join(Path(path).name for path in changed[:3]))
            self._reloads += 1
            self._news.set()
            self._tell(signal.SIGTERM)


def _how(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def hear_the_end(stop: Callable[[], None]) -> Callable[[], None]:
    """In a child: call `stop` when the supervisor is gone. Answers what ends the listening."""
    loop = asyncio.get_running_loop()
    pipe = os.environ.pop(PIPE, "")
    if not pipe:
        return lambda: None
    fd = int(pipe)

    def ended() -> None:
        loop.remove_reader(fd)
        log.warning("the supervisor is gone: draining")
        stop()

    loop.add_reader(fd, ended)
    return lambda: None if loop.is_closed() else _forget(loop, fd)


def _forget(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    loop.remove_reader(fd)
    with suppress(OSError):
        os.close(fd)
