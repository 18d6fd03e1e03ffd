"""Give the controlling terminal to a command, as a shell does for a job.

The kernel sends Ctrl-C and Ctrl-Z to the foreground process group only. A command in the foreground gets them from the
kernel; a command in the background gets them once, forwarded by this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import termios
from collections.abc import Generator
from typing import Any


class Terminal:
    """Moves a process group to the foreground and back. Does nothing while this process is in the background."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._modes: list[Any] | None = None
        self._lent_to = 0

    @classmethod
    def find(cls) -> Terminal | None:
        """The controlling terminal, if there is one."""
        try:
            return cls(os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            return None

    @property
    def lent(self) -> bool:
        return self._lent_to != 0

    def lend(self, group: int) -> bool:
        """Put a group in the foreground instead of this process. False when this process is not in the foreground."""
        try:
            if os.tcgetpgrp(self._fd) not in (os.getpgrp(), group):
                return False
            if self._modes is None:
                self._modes = termios.tcgetattr(self._fd)
            with _unstoppable():
                os.tcsetpgrp(self._fd, group)
        except (OSError, termios.error):  # hung up, or the group has ended
            return False
        self._lent_to = group
        return True

    def take_back(self, *, mend: bool = False) -> None:
        """Return to the foreground; `mend` restores the terminal modes after a command was killed."""
        group, self._lent_to = self._lent_to, 0
        if not group:
            return
        with contextlib.suppress(OSError, termios.error), _unstoppable():
            if os.tcgetpgrp(self._fd) == group:
                os.tcsetpgrp(self._fd, os.getpgrp())
                if mend and self._modes is not None:
                    termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def close(self) -> None:
        """Return to the foreground and close the terminal. Safe to call twice."""
        self.take_back()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def wants_terminal() -> bool:
    """Whether the command is interactive. In a pipeline it is not: another process, such as a pager, may need the
    terminal.
    """
    try:
        return sys.stdin.isatty() and not stat.S_ISFIFO(os.fstat(1).st_mode)
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _unstoppable() -> Generator[None, None, None]:
    """Block SIGTTOU: the kernel would suspend a background process that changes the terminal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
