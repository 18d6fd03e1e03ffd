"""A shell that outlives us: when this process is killed without a word, it ends the commands that it started.

`PR_SET_PDEATHSIG` would reach the command but not what it started, and only on Linux; it would also need code
between fork and exec, which is unsafe with threads. A shell at the end of a pipe needs neither. It leads the process
group that the command then joins, so there is no moment in which the command runs unguarded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

SHELL = "/bin/sh"
#: $$ is the guard and its group. A word means that all went well, the pipe's end that we are dead.
SCRIPT = """
trap '' HUP INT QUIT TERM USR1 USR2 ALRM TSTP TTIN TTOU
read -r word && exit 0
kill -s TERM -- "-$$"
kill -s CONT -- "-$$"
sleep "$1"
kill -s KILL -- "-$$"
"""
#: It has one word to read.
LEAVES_WITHIN = 1.0
#: What the command's group gets is not for its guard: blocked from the start, ignored once the shell can.
#: Its own `sleep` must still be able to tell it of its end.
DEAF_TO = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}


class Guard:
    """Leads a process group, and ends it unless dismissed first. Without a shell on this host it does nothing."""

    def __init__(self, grace: float) -> None:
        read, self._pipe = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        # A blocked signal stays blocked over exec: the guard is deaf from its first instruction on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
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
        """The group to join; 0, which is a new one, when nobody guards."""
        return self._process.pid if self._process is not None else 0

    @property
    def has_ended(self) -> bool:
        """Somebody killed it. It stays in the table of processes, so that its group's number is nobody else's yet."""
        if self._process is None:
            return False
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def dismiss(self) -> None:
        """Nothing to guard any more. Safe twice."""
        if self._pipe < 0:
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, b"done\n")
        os.close(self._pipe)
        self._pipe = -1
        if self._process is not None:
            try:
                self._process.wait(LEAVES_WITHIN)
            except subprocess.TimeoutExpired:  # somebody stopped it
                self._process.kill()
                self._process.wait()
