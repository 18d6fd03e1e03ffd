"""Read the CPU seconds of other processes, on Linux."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    return sum(_fields(pid)[11:13]) / TICKS


def cpu_seconds_with_children(pid: int) -> float:
    """Return the CPU seconds that a process and its children have used, including children that have ended."""
    total = sum(_fields(pid)[11:15])
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            total += sum(_fields(int(child))[11:13])
        except OSError:
            continue  # the child has just ended; the parent's own figures include it from now on
    return total / TICKS


def _fields(pid: int) -> list[int]:
    """Return the fields of /proc/PID/stat after the program's name. The first of them is the state, as 0."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(part) if part.lstrip("-").isdigit() else 0 for part in parts]
