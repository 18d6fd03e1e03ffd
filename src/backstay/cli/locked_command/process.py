"""Start, signal, suspend, resume and terminate a command and its process group.

All of it runs on the event loop's thread, driven by SIGCHLD, so a signal never reaches a reused process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from backstay.cli.locked_command.terminal import Terminal
from backstay.runtime.orphan_guard import OrphanGuard

#: Seconds between checks for processes that are left in a terminating group.
LOOK_AGAIN = 0.05
#: Seconds between attempts while this process is in the background and no shell can foreground it.
ASK_AGAIN = 0.5

WANTS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


class Command:
    """A running command. `ended` resolves to its exit code, negative when a signal ended it."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        guard: OrphanGuard,
        terminal: Terminal | None,
        in_front: bool,
        may_go_on: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._guard = guard
        self._terminal = terminal
        self._may_go_on = may_go_on
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_signal_handler(signal.SIGCHLD, self._look)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - running what we are given is what this is for
                list(arguments), env=dict(environment), process_group=guard.group
            )
        except BaseException:
            self._loop.remove_signal_handler(signal.SIGCHLD)
            raise
        self.group = guard.group or self._process.pid
        if terminal is not None and in_front:
            terminal.lend(self.group)
        self._look()

    def signal(self, number: int) -> None:
        """Send to the whole group. Nothing happens once the command has ended."""
        if number == signal.SIGCONT:
            # On a terminal, SIGCONT is the shell's `fg`, which is forwarded already; do not undo the next Ctrl-Z.
            if self._terminal is None:
                self._go_on()
        elif not self.ended.done():
            self._send(number)

    def _send(self, number: int) -> bool:
        """False when the group has no process left that this process may signal."""
        try:
            os.killpg(self.group, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _look(self) -> None:
        while not self.ended.done():
            pid, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
            else:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._loop.remove_signal_handler(signal.SIGCHLD)
                self.ended.set_result(self._process.returncode)

    def _stopped(self, number: int) -> None:
        """The command was suspended by Ctrl-Z or by terminal access from the background: suspend this process, too."""
        terminal = self._terminal
        asks = number in WANTS_TERMINAL
        if terminal is None or not (asks or terminal.lent or number == signal.SIGTSTP):
            return
        if asks and terminal.lend(self.group):
            self._send(signal.SIGCONT)
            return
        was_in_front = terminal.lent
        terminal.take_back()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), number if asks else signal.SIGTSTP)
        # The whole shell job is suspended here until `fg` or `bg`.
        signal.signal(signal.SIGTSTP, before)
        in_front = (was_in_front or asks) and self._may_go_on() and terminal.lend(self.group)
        if asks and not in_front:
            self._loop.call_later(ASK_AGAIN, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        # The lease may have expired during the suspension; then the command is terminated, not resumed.
        if not self.ended.done() and self._may_go_on():
            self._send(signal.SIGCONT)

    def _others(self) -> bool:
        """Whether the group has processes left after the command has ended."""
        self._guard.dismiss()
        return self._send(0)

    async def end(self, grace: float) -> None:
        """Terminate the whole group: SIGTERM, then SIGKILL for the processes left after `grace` seconds."""
        deadline = self._loop.time() + grace
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)  # a suspended process cannot handle SIGTERM
        while (left := deadline - self._loop.time()) > 0:
            if not self.ended.done():
                await asyncio.wait({self.ended}, timeout=left)
            elif self._others():
                await asyncio.sleep(min(left, LOOK_AGAIN))
            else:
                return
        self._send(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):  # SIGKILL does not end a process in uninterruptible sleep
            await asyncio.wait_for(asyncio.shield(self.ended), 1.0)
