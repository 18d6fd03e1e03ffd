"""The process group of a command job: its processes are signalled and ended together.

A guard process leads the group (see `orphan_guard`) and ends it if the worker is killed. A process that leaves the
group (setsid, a container daemon) cannot be found and is not ended.
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

from backstay.runtime.orphan_guard import OrphanGuard

#: Seconds between checks whether an ending group is empty.
POLL_INTERVAL = 0.02
#: Seconds to wait after SIGKILL: it does not end a process in uninterruptible sleep.
KILL_TIMEOUT = 2.0
#: Signals that are blocked in commands. The kernel sends SIGTTIN to a background process that reads from the terminal,
#: for example a password, and stops it forever. If the signal is blocked, the read fails with EIO instead. Blocked
#: signals stay blocked after exec.
TERMINAL_SIGNALS = {signal.SIGTTIN, signal.SIGTTOU}
PROC = "/proc"
_LINUX = sys.platform == "linux"


class ProcessGroup:
    """A process group, created with its first process. Not thread-safe: call it on the event loop's thread."""

    def __init__(self, grace: float) -> None:
        #: Seconds between SIGTERM and SIGKILL, also when the guard sends them because the worker died.
        self.grace = grace
        self._guard: OrphanGuard | None = None
        self._first = 0

    @property
    def id(self) -> int:
        """The id of the process group; 0 before the first process."""
        return (self._guard.group if self._guard is not None else 0) or self._first

    def start(
        self, arguments: Sequence[str], *, env: Mapping[str, str], cwd: str, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start a process in the group. Raises OSError."""
        if self._guard is not None and self._guard.has_ended:
            self.kill()  # the guard is dead: without it, the group would survive a crash of this worker
            self._guard.dismiss()
            self._guard = None
        if self._guard is None:
            self._guard = OrphanGuard(self.grace)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
        try:
            process = subprocess.Popen(  # noqa: S603 - a command job runs what its definition contains
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

    def list_members(self) -> list[int]:
        """Return the running processes of the group, without the guard."""
        group = self.id
        if not group:
            return []
        guard = self._guard.group if self._guard is not None else 0
        return [pid for pid in (_list_members(group) if _LINUX else _list_members_by_ps(group)) if pid != guard]

    async def end(self) -> None:
        """Send SIGTERM, then SIGKILL to the processes left after the grace. All processes have ended afterwards."""
        if not self.id:
            return
        loop = asyncio.get_running_loop()
        try:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)  # a stopped process handles SIGTERM only after it continues
            if not await self._wait_empty(loop.time() + self.grace):
                self.send(signal.SIGKILL)
                await self._wait_empty(loop.time() + KILL_TIMEOUT)
        finally:
            self.kill()
            await self._dismiss()

    def kill(self) -> None:
        """Send SIGKILL to all processes, the guard included."""
        self.send(signal.SIGKILL)

    async def close(self) -> None:
        """End the guard process only. Call it when all other processes of the group have ended."""
        await self._dismiss()

    async def _wait_empty(self, until: float) -> bool:
        while self.list_members():
            if asyncio.get_running_loop().time() >= until:
                return False
            await asyncio.sleep(POLL_INTERVAL)
        return True

    async def _dismiss(self) -> None:
        guard, self._guard, self._first = self._guard, None, 0
        if guard is not None:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, guard.dismiss))


def _list_members(group: int) -> list[int]:
    """List a group's processes from /proc, without zombies."""
    found: list[int] = []
    wanted = b"%d" % group
    for name in os.listdir(PROC):  # noqa: PTH208 - only names are needed
        if not name.isdecimal():
            continue
        try:
            handle = os.open(f"{PROC}/{name}/stat", os.O_RDONLY)
        except OSError:  # the process has ended since it was listed
            continue
        try:
            stat = os.read(handle, 1024)
        except OSError:
            continue
        finally:
            os.close(handle)
        # Format: pid (name) state ppid pgrp …. The name may contain any character, also parentheses.
        state, _, pgrp = stat.rpartition(b")")[2].split(None, 3)[:3]
        if pgrp == wanted and state not in b"ZX":
            found.append(int(name))
    return found


def _list_members_by_ps(group: int) -> list[int]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,pgid=,stat="],  # noqa: S607 - found through PATH
        capture_output=True,
        check=False,
        text=True,
    )
    rows = (line.split(None, 2) for line in listing.stdout.splitlines())
    return [int(row[0]) for row in rows if len(row) > 2 and int(row[1]) == group and not row[2].startswith("Z")]  # noqa: PLR2004 - three columns, as in -o


async def wait_exit(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process and return its exit code, negative after a signal. Uses a pidfd, or a thread where the system
    has no pidfds.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def on_exit() -> None:
        if not future.done():
            future.set_result(None)

    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        handle = -1
    if handle < 0:
        return await _wait_exit_in_thread(process, loop)
    try:
        loop.add_reader(handle, on_exit)
        try:
            await future
        finally:
            loop.remove_reader(handle)
    finally:
        os.close(handle)
    return process.wait()


async def _wait_exit_in_thread(process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> int:
    future: asyncio.Future[int] = loop.create_future()

    def set_code(code: int) -> None:
        if not future.done():
            future.set_result(code)

    def wait() -> None:
        code = process.wait()
        with suppress(RuntimeError):  # the loop is closed, so no coroutine waits
            loop.call_soon_threadsafe(set_code, code)

    threading.Thread(target=wait, name="backstay-command", daemon=True).start()
    return await future
