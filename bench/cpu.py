"""Read the CPU seconds of other processes, on Linux."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def used(pid: int) -> float:
    """Return the CPU seconds of a process."""
    return sum(_fields(pid)[11:13]) / TICKS


def used_by_all(pid: int) -> float:
    """Return the CPU seconds of a server and its children, including children that have ended."""
    total = sum(_fields(pid)[11:15])
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            total += sum(_fields(int(child))[11:13])
        except OSError:
            continue  # the child has just ended; the parent's figures will include it
    return total / TICKS


def _fields(pid: int) -> list[int]:
    """Return the fields of /proc/PID/stat behind the name; the first is the state."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(part) if part.lstrip("-").isdigit() else 0 for part in parts]
