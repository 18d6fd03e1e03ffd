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
    """The controlling terminal. It gives the foreground to a process group and takes it back, unless this process is in
    the background itself.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._modes: list[Any] | None = None
        self._lent_to = 0

    @classmethod
    def find(cls) -> Terminal | None:
        """Open the controlling terminal; None when there is none."""
        try:
            return cls(os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            return None

    @property
    def lent(self) -> bool:
        return self._lent_to != 0

    def lend(self, group: int) -> bool:
        """Give the foreground of the terminal to a process group. Return False when this is impossible, for example
        because this process is not in the foreground itself.
        """
        try:
            if os.tcgetpgrp(self._fd) not in (os.getpgrp(), group):
                return False
            if self._modes is None:
                self._modes = termios.tcgetattr(self._fd)
            with _block_sigttou():
                os.tcsetpgrp(self._fd, group)
        except (OSError, termios.error):  # the terminal was closed, or the group has ended
            return False
        self._lent_to = group
        return True

    def take_back(self, *, restore_modes: bool = False) -> None:
        """Take the foreground back. `restore_modes`: also undo changes of the terminal modes that a killed command may
        have left (no echo, raw input).
        """
        group, self._lent_to = self._lent_to, 0
        if not group:
            return
        with contextlib.suppress(OSError, termios.error), _block_sigttou():
            if os.tcgetpgrp(self._fd) == group:
                os.tcsetpgrp(self._fd, os.getpgrp())
                if restore_modes and self._modes is not None:
                    termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def close(self) -> None:
        """Take the foreground back and close the terminal. Safe to call twice."""
        self.take_back()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def wants_terminal() -> bool:
    """Whether the command should get the foreground: its input is a terminal, and its output is not a pipe. If it
    writes to a pipe, the program that reads from the pipe, such as a pager, may need the terminal.
    """
    try:
        return sys.stdin.isatty() and not stat.S_ISFIFO(os.fstat(1).st_mode)
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _block_sigttou() -> Generator[None, None, None]:
    """Block SIGTTOU inside the `with` block. The kernel sends this signal to a background process that changes the
    terminal, and its default action would suspend the process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
