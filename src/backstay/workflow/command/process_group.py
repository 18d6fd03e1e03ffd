"""The processes of a command job: one group, started, signalled and ended as a whole.

A guard leads the group (see `orphan_guard`), so that nothing of it survives a worker that is killed. A process that
leaves the group by itself (setsid, a container's daemon) is out of reach: the kernel knows no family beyond it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from backstay.runtime.orphan_guard import Guard

#: How often the rest of an ending group is looked for.
LOOK_AGAIN = 0.02
#: How long SIGKILL may take: not even that ends what hangs in the kernel.
KILLED_WITHIN = 2.0
#: A command that asks the terminal for a password must fail: stopped, it would wait for ever. Blocked signals stay so
#: over exec, and the kernel then refuses the read.
ASKS_TERMINAL = {signal.SIGTTIN, signal.SIGTTOU}
PROC = "/proc"
_LINUX = sys.platform == "linux"


class ProcessGroup:
    """Made with its first process. All of its methods belong to the event loop's thread."""

    def __init__(self, grace: float) -> None:
        #: Seconds between SIGTERM and SIGKILL, also when nobody is left to send them but the guard.
        self.grace = grace
        self._guard: Guard | None = None
        self._first = 0

    @property
    def id(self) -> int:
        """0: nothing runs."""
        return (self._guard.group if self._guard is not None else 0) or self._first

    def start(
        self, arguments: Sequence[str], *, env: Mapping[str, str], cwd: str, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start a process in the group. Raises OSError."""
        if self._guard is not None and self._guard.has_ended:
            self.kill()  # what ran with it has nobody who would end it
            self._guard.dismiss()
            self._guard = None
        if self._guard is None:
            self._guard = Guard(self.grace)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKS_TERMINAL)
        try:
            process = subprocess.Popen(  # noqa: S603 - running what we are given is what this is for
                list(arguments),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                process_group=self.id,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if not self.id:
            self._first = process.pid
        return process

    def send(self, number: int) -> None:
        if self.id:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.id, number)

    def members(self) -> list[int]:
        """Processes of the group that still run, without the guard."""
        group = self.id
        if not group:
            return []
        guard = self._guard.group if self._guard is not None else 0
        return [pid for pid in (_members(group) if _LINUX else _members_by_ps(group)) if pid != guard]

    async def end(self) -> None:
        """SIGTERM for all, SIGKILL for whoever is left after the grace. Nothing of the group is left afterwards."""
        if not self.id:
            return
        loop = asyncio.get_running_loop()
        try:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)  # who sleeps cannot obey
            if not await self._gone(loop.time() + self.grace):
                self.send(signal.SIGKILL)
                await self._gone(loop.time() + KILLED_WITHIN)
        finally:
            self.kill()
            await self._dismiss()

    def kill(self) -> None:
        """SIGKILL for all, now. The guard goes with them."""
        self.send(signal.SIGKILL)

    async def close(self) -> None:
        """Nothing of it runs any more, or nobody cares."""
        await self._dismiss()

    async def _gone(self, until: float) -> bool:
        while self.members():
            if asyncio.get_running_loop().time() >= until:
                return False
            await asyncio.sleep(LOOK_AGAIN)
        return True

    async def _dismiss(self) -> None:
        guard, self._guard, self._first = self._guard, None, 0
        if guard is not None:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, guard.dismiss))


def _members(group: int) -> list[int]:
    """From Linux's table of processes. Those that have ended and wait to be fetched do not count."""
    found: list[int] = []
    wanted = b"%d" % group
    for name in os.listdir(PROC):  # noqa: PTH208 - text is all that is needed
        if not name.isdecimal():
            continue
        try:
            handle = os.open(f"{PROC}/{name}/stat", os.O_RDONLY)
        except OSError:  # it has ended meanwhile
            continue
        try:
            stat = os.read(handle, 1024)
        except OSError:
            continue
        finally:
            os.close(handle)
        # pid (name) state ppid pgrp …: a name may have anything in it, parentheses as well.
        state, _, pgrp = stat.rpartition(b")")[2].split(None, 3)[:3]
        if pgrp == wanted and state not in b"ZX":
            found.append(int(name))
    return found


def _members_by_ps(group: int) -> list[int]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,pgid=,stat="],  # noqa: S607 - wherever it lies
        capture_output=True,
        check=False,
        text=True,
    )
    rows = (line.split(None, 2) for line in listing.stdout.splitlines())
    return [int(row[0]) for row in rows if len(row) > 2 and int(row[1]) == group and not row[2].startswith("Z")]  # noqa: PLR2004 - as asked for


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit code, negative when a signal ended it. Told by the kernel; a thread waits where that cannot be."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def told() -> None:
        if not future.done():
            future.set_result(None)

    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        handle = -1
    if handle < 0:
        return await _ended_by_thread(process, loop)
    try:
        loop.add_reader(handle, told)
        try:
            await future
        finally:
            loop.remove_reader(handle)
    finally:
        os.close(handle)
    return process.wait()


async def _ended_by_thread(process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> int:
    future: asyncio.Future[int] = loop.create_future()

    def settle(code: int) -> None:
        if not future.done():
            future.set_result(code)

    def wait() -> None:
        code = process.wait()
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, code)

    threading.Thread(target=wait, name="backstay-command", daemon=True).start()
    return await future
