"""What workers did, written down as it happened, and whether it was right.

Each worker appends fixed-size notes to a file of its own, without a buffer: what a killed process wrote stays written.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from backstay.engine.base import steady

SUFFIX = ".jobs"
#: Seconds that a process which goes on may take to write down what it was about to.
LATE = 0.5
_NOTE = struct.Struct("<BIQIdI")
START, END = 1, 2


class Note(NamedTuple):
    """An attempt at job `n` began or ended in process `pid` at `t`, on the clock that all processes of a host share."""

    kind: int
    n: int
    fence: int
    pid: int
    t: float
    #: Which one it was, by the store's count: those between two that began were handed out and never began.
    attempt: int


class Notebook:
    """Where one process writes."""

    def __init__(self, folder: Path, label: str) -> None:
        self._fd = os.open(folder / f"{label}{SUFFIX}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._pid = os.getpid()

    def write(self, kind: int, n: int, fence: int, attempt: int) -> None:
        os.write(self._fd, _NOTE.pack(kind, n, fence, self._pid, steady(), attempt))


def read(folder: Path) -> list[Note]:
    """All notes, in order of time. The last one of a killed process may be cut short."""
    notes: list[Note] = []
    for file in sorted(folder.glob("*" + SUFFIX)):
        raw = file.read_bytes()
        whole = len(raw) // _NOTE.size * _NOTE.size
        notes += [Note(*fields) for fields in _NOTE.iter_unpack(raw[:whole])]
    return sorted(notes, key=lambda note: note.t)


class Outcome(NamedTuple):
    """A job as the store has it at the end."""

    state: str
    #: The lease that finished it, and what that attempt returned: the fence it was told.
    fence: int
    result: int | None
    attempt: int


@dataclass
class JobReport:
    """A history in figures, and what is wrong with it."""

    jobs: int = 0
    starts: int = 0
    #: Jobs that began more than once, which a kill or a lost lease explains.
    again: int = 0
    #: Seconds from each kill until what it interrupted began again, for each lease that had to run out: whoever had a
    #: job next may have been killed, too, before it began.
    restarts: list[float] = field(default_factory=list[float])
    #: Attempts that were handed out and never began.
    unbegun: int = 0
    violations: list[str] = field(default_factory=list[str])

    def restart(self, percent: float) -> float:
        ordered = sorted(self.restarts)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs, {self.starts} starts, {self.again} begun again, kill to restart"
            f" p50 {self.restart(50):.2f} s, p99 {self.restart(99):.2f} s of {len(self.restarts)},"
            f" handed out to somebody killed before it began {self.unbegun},"
            f" violations {len(self.violations)}"
        )


def check(
    notes: Iterable[Note],
    outcomes: Mapping[int, Outcome | None],
    kills: Mapping[int, float],
    resumes: Mapping[int, Sequence[float]] | None = None,
) -> JobReport:
    """Every job completed, by its last lease, once. `kills`: when (steady) each killed process was killed; `resumes`:
    when each one that was stopped went on.
    """
    report = JobReport(jobs=len(outcomes))
    left = {pid: list(times) for pid, times in (resumes or {}).items()}
    starts: dict[int, list[Note]] = {n: [] for n in outcomes}
    ended: set[tuple[int, int]] = set()
    for note in notes:
        if note.n not in starts:
            report.violations.append(f"job {note.n} was run and never enqueued")
        elif note.kind == START:
            starts[note.n].append(note)
        else:
            ended.add((note.n, note.fence))
    for n, outcome in outcomes.items():
        mine = _in_order(starts[n], left)
        report.starts += len(mine)
        report.again += len(mine) > 1
        report.violations += [f"job {n}: {what}" for what in _wrong(mine, outcome, ended)]
        for before, after in pairwise(mine):
            killed = kills.get(before.pid)
            # Who was stopped first had lost its jobs before it was killed.
            if killed is not None and before.t <= killed <= after.t and (n, before.fence) not in ended:
                leases = max(1, after.attempt - before.attempt)
                report.restarts.append((after.t - killed) / leases)
                report.unbegun += leases - 1
    return report


def _in_order(starts: list[Note], resumes: dict[int, list[float]]) -> list[Note]:
    """Without what a process had made sure of when it was stopped, and wrote down when it went on: no program can do
    both at once. One at most each time, since its loop begins one handler after another.
    """
    kept: list[Note] = []
    highest = 0
    for note in starts:
        if note.fence < highest:
            went_on = next((t for t in resumes.get(note.pid, ()) if t <= note.t <= t + LATE), None)
            if went_on is not None:
                resumes[note.pid].remove(went_on)
                continue
        highest = max(highest, note.fence)
        kept.append(note)
    return kept


def _wrong(starts: list[Note], outcome: Outcome | None, ended: set[tuple[int, int]]) -> list[str]:
    if outcome is None:
        return ["lost: the store does not know it"]
    if outcome.state != "completed":
        return [f"stuck: {outcome.state} after {outcome.attempt} attempts"]
    wrong: list[str] = []
    fences = [note.fence for note in starts]
    if not fences:
        return ["completed, and nobody ran it"]
    if sorted(set(fences)) != fences:
        wrong.append(f"fences did not grow: {fences}")
    if outcome.result != outcome.fence:
        wrong.append(f"finished under fence {outcome.fence}, with the result of {outcome.result}")
    if max(fences) != outcome.fence:
        wrong.append(f"begun under {max(fences)}, and completed under {outcome.fence}")
    if starts and (starts[0].n, outcome.fence) not in ended:
        wrong.append(f"completed under {outcome.fence}, which never came to its end")
    return wrong
