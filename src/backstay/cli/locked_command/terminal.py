"""The controlling terminal, lent to a command the way a shell lends it to a job.

Whoever is in the foreground gets Ctrl-C and Ctrl-Z from the kernel, and nobody else does: a command that has the
terminal hears them once, directly; one that has not hears of them once, through us.
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
    """Lend it to a process group, take it back. Does nothing while we are in the background ourselves."""

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
        """Put a group in the foreground in our place. False when that is not ours to give."""
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
        """Return to the foreground; `mend` undoes what a command that was killed did to the screen."""
        group, self._lent_to = self._lent_to, 0
        if not group:
            return
        with contextlib.suppress(OSError, termios.error), _unstoppable():
            if os.tcgetpgrp(self._fd) == group:
                os.tcsetpgrp(self._fd, os.getpgrp())
                if mend and self._modes is not None:
                    termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def close(self) -> None:
        """Take it back and let go. Safe twice."""
        self.take_back()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def wants_terminal() -> bool:
    """Is this command for a person? Not inside a pipeline: its other end, a pager say, may need the terminal."""
    try:
        return sys.stdin.isatty() and not stat.S_ISFIFO(os.fstat(1).st_mode)
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _unstoppable() -> Generator[None, None, None]:
    """A process in the background that touches the terminal is stopped, unless it refuses to be."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
