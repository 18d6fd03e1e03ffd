"""A shell that outlives us: when this process is killed without a word, it ends the command.

`PR_SET_PDEATHSIG` would reach the command but not what it started, and only on Linux; it would also need code
between fork and exec, which is unsafe with threads. A shell at the end of a pipe needs neither.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

SHELL = "/bin/sh"

SCRIPT = """
trap '' HUP INT QUIT TERM
read -r group || exit 0
read -r word && exit 0
kill -s TERM -- "-$group"
kill -s CONT -- "-$group"
tenths=$1
while [ "$tenths" -gt 0 ] && kill -0 -- "-$group"; do
    sleep 0.1
    tenths=$((tenths - 1))
done
kill -s KILL -- "-$group"
"""


class Guard:
    """Told a process group, ends it unless dismissed first. Without a shell on this host it does nothing."""

    def __init__(self, grace: float) -> None:
        read, self._pipe = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            # A session of its own: neither Ctrl-C nor a hang-up shall reach it.
            self._process = subprocess.Popen(  # noqa: S603 - a constant script
                [SHELL, "-c", SCRIPT, "holdfast-guard", str(round(grace * 10))],
                stdin=read,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        except OSError:
            pass
        finally:
            os.close(read)

    def watch(self, group: int) -> None:
        """From now on that group ends when this process does."""
        self._tell(f"{group}\n")

    def dismiss(self) -> None:
        """Nothing to guard any more. Safe twice."""
        if self._pipe < 0:
            return
        self._tell("done\n")
        os.close(self._pipe)
        self._pipe = -1
        if self._process is not None:
            self._process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line.encode())
