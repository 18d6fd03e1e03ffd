"""A guard process that ends a command's process group when this process is killed and cannot do it itself.

`PR_SET_PDEATHSIG` reaches only the command, not its children, and only on Linux; it also needs code between fork and
exec, which is unsafe with threads. So the guard is a shell that reads from a pipe, which ends when this process dies.
The shell leads the process group that the command joins, so the command never runs unguarded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

SHELL = "/bin/sh"
#: $$ is the id of the guard and of its process group. A line on the pipe lets the guard exit; end of file means that
#: the parent died.
SCRIPT = """
trap '' HUP INT QUIT TERM USR1 USR2 ALRM TSTP TTIN TTOU
read -r word && exit 0
kill -s TERM -- "-$$"
kill -s CONT -- "-$$"
sleep "$1"
kill -s KILL -- "-$$"
"""
#: Seconds that a dismissed guard has to exit: it only reads one line.
EXIT_TIMEOUT = 1.0
#: A signal to the command's group must not end its guard, so these signals are blocked before the guard starts; its
#: script then ignores them. SIGCHLD stays unblocked, or the shell would not notice the end of its own `sleep`.
BLOCKED_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}


class OrphanGuard:
    """Leads a process group, and ends the group if this process dies before it calls `dismiss`. Without /bin/sh on this
    host it does nothing.
    """

    def __init__(self, grace: float) -> None:
        read, self._pipe = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        # A blocked signal stays blocked across exec, so the guard is protected from its first instruction on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a constant script
                [SHELL, "-c", SCRIPT, "backstay-guard", f"{grace:.3f}"],
                stdin=read,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
                cwd="/",
            )
        except OSError:
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(read)

    @property
    def group(self) -> int:
        """The process group that the command must join. When there is no guard it is 0, which creates a new group."""
        return self._process.pid if self._process is not None else 0

    @property
    def has_ended(self) -> bool:
        """Whether the guard process has ended, because something killed it. This check leaves it a zombie, so the
        system cannot give its process group id to another process yet.
        """
        if self._process is None:
            return False
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def dismiss(self) -> None:
        """End the guard without ending its group. Safe to call twice."""
        if self._pipe < 0:
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, b"done\n")
        os.close(self._pipe)
        self._pipe = -1
        if self._process is not None:
            try:
                self._process.wait(EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:  # the guard was stopped (SIGSTOP)
                self._process.kill()
                self._process.wait()
