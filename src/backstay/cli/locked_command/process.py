"""Start, signal, suspend, resume and terminate a command and its process group.

Everything runs on the event loop's thread. The command's exit is collected only there, on SIGCHLD, so its process id
cannot be reused between the check that it runs and a signal to it.
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

#: Seconds between checks whether a process group that got SIGTERM still has processes.
CHECK_SECONDS = 0.05
#: A command that accesses the terminal from the background is suspended. If it cannot get the foreground, it is resumed
#: after this many seconds and may try again.
RESUME_RETRY_SECONDS = 0.5

WANTS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


class CommandProcess:
    """A running command. `ended` resolves to its exit code, or to -N when signal N ended it."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        guard: OrphanGuard,
        terminal: Terminal | None,
        in_foreground: bool,
        may_resume: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._guard = guard
        self._terminal = terminal
        self._may_resume = may_resume
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - it runs the user's command
                list(arguments), env=dict(environment), process_group=guard.group
            )
        except BaseException:
            self._loop.remove_signal_handler(signal.SIGCHLD)
            raise
        self.group = guard.group or self._process.pid
        if terminal is not None and in_foreground:
            terminal.lend(self.group)
        self._reap()

    def signal(self, number: int) -> None:
        """Send a signal to the command's whole process group, unless the command has ended."""
        if number == signal.SIGCONT:
            # With a terminal, SIGCONT comes from the shell's `fg`, and `_on_suspended` then resumes the command itself.
            # If SIGCONT were also forwarded here, it could arrive after the user's next Ctrl-Z and undo that.
            if self._terminal is None:
                self._resume()
        elif not self.ended.done():
            self._send(number)

    def _send(self, number: int) -> bool:
        """Send a signal to the command's process group. Return False when the group has no process left, or none that
        this process may signal.
        """
        try:
            os.killpg(self.group, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _reap(self) -> None:
        while not self.ended.done():
            pid, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._on_suspended(os.WSTOPSIG(status))
            else:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._loop.remove_signal_handler(signal.SIGCHLD)
                self.ended.set_result(self._process.returncode)

    def _on_suspended(self, number: int) -> None:
        """Handle a command that signal `number` has suspended: SIGTSTP after Ctrl-Z, or SIGTTIN or SIGTTOU because it
        accessed the terminal from the background.

        After a terminal access, give the command the foreground and resume it. Otherwise, or if this process has no
        foreground to give, suspend this process as well: the shell then sees the whole job as suspended.
        """
        terminal = self._terminal
        asks = number in WANTS_TERMINAL
        if terminal is None or not (asks or terminal.lent or number == signal.SIGTSTP):
            return
        if asks and terminal.lend(self.group):
            self._send(signal.SIGCONT)
            return
        was_in_foreground = terminal.lent
        terminal.take_back()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), number if asks else signal.SIGTSTP)
        # The call above has suspended this process, too. It continues here after the user has typed `fg` or `bg` in the
        # shell.
        signal.signal(signal.SIGTSTP, before)
        in_foreground = (was_in_foreground or asks) and self._may_resume() and terminal.lend(self.group)
        if asks and not in_foreground:
            self._loop.call_later(RESUME_RETRY_SECONDS, self._resume)
        else:
            self._resume()

    def _resume(self) -> None:
        # If the lock's lease was lost during the suspension, do not resume the command: `run_locked` terminates it.
        if not self.ended.done() and self._may_resume():
            self._send(signal.SIGCONT)

    def _has_other_processes(self) -> bool:
        """Whether other processes of the group are still running, after the command itself has ended."""
        self._guard.dismiss()
        return self._send(0)

    async def terminate(self, grace: float) -> None:
        """Terminate the whole group: SIGTERM, then SIGKILL for the processes left after `grace` seconds."""
        deadline = self._loop.time() + grace
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)  # a suspended process cannot handle SIGTERM
        while (left := deadline - self._loop.time()) > 0:
            if not self.ended.done():
                await asyncio.wait({self.ended}, timeout=left)
            elif self._has_other_processes():
                await asyncio.sleep(min(left, CHECK_SECONDS))
            else:
                return
        self._send(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):  # SIGKILL does not end a process in uninterruptible sleep
            await asyncio.wait_for(asyncio.shield(self.ended), 1.0)
