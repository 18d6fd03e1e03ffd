"""Histories of job attempts: workers record each start and end, and the checker compares these notes with the store.

Each worker appends fixed-size notes to its own file, unbuffered, so a kill loses none.
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
#: Seconds after a process was resumed in which it may still write a note that it was about to write when suspended.
LATE = 0.5
_NOTE = struct.Struct("<BIQIdI")
START, END = 1, 2


class Note(NamedTuple):
    """The start or end of an attempt of job number `n` in process `pid`, at the time `t` (`steady()`)."""

    kind: int
    n: int
    fence: int
    pid: int
    t: float
    #: The attempt's number in the store. If the notes of a job skip a number, the attempt with that number was claimed,
    #: but its handler never started.
    attempt: int


class NoteWriter:
    """Appends notes (starts and ends of attempts) to the file of one process."""

    def __init__(self, folder: Path, label: str) -> None:
        self._fd = os.open(folder / f"{label}{SUFFIX}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._pid = os.getpid()

    def write(self, kind: int, n: int, fence: int, attempt: int) -> None:
        os.write(self._fd, _NOTE.pack(kind, n, fence, self._pid, steady(), attempt))


def read(folder: Path) -> list[Note]:
    """Return the notes of all processes, in order of time. A last note that a kill has truncated is left out."""
    notes: list[Note] = []
    for file in sorted(folder.glob("*" + SUFFIX)):
        raw = file.read_bytes()
        whole = len(raw) // _NOTE.size * _NOTE.size
        notes += [Note(*fields) for fields in _NOTE.iter_unpack(raw[:whole])]
    return sorted(notes, key=lambda note: note.t)


class FinalRecord(NamedTuple):
    """The final record of a job in the store."""

    state: str
    #: The fence of the lease that finished the job. Each attempt returns its fence, so `result` must be equal to it.
    fence: int
    result: int | None
    attempt: int


@dataclass
class JobReport:
    """The result of checking a history of jobs."""

    jobs: int = 0
    starts: int = 0
    #: The number of jobs that started more than once, after a kill or a lost lease.
    again: int = 0
    #: How long a job waited for a new worker, for each attempt that a kill interrupted: the seconds from the kill to
    #: the next start of the job, divided by the number of leases that had to expire in between. Usually that is the one
    #: lease of the killed worker. It is more if further workers claimed the job and were killed before they started it.
    restarts: list[float] = field(default_factory=list[float])
    #: The number of attempts that were claimed and never started.
    never_started: int = 0
    violations: list[str] = field(default_factory=list[str])

    def restart(self, percent: float) -> float:
        ordered = sorted(self.restarts)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs, {self.starts} starts, {self.again} begun again, kill to restart"
            f" p50 {self.restart(50):.2f} s, p99 {self.restart(99):.2f} s of {len(self.restarts)},"
            f" claimed by a worker that was killed before the start {self.never_started},"
            f" violations {len(self.violations)}"
        )


def check(
    notes: Iterable[Note],
    outcomes: Mapping[int, FinalRecord | None],
    kills: Mapping[int, float],
    resumes: Mapping[int, Sequence[float]] | None = None,
) -> JobReport:
    """Check that every job completed exactly once, under its last lease.

    notes: what the handlers recorded when they started and ended.
    outcomes: the final record of each job, by the job's number.
    kills: when each killed process was killed, by process id (seconds of `steady()`).
    resumes: when each suspended process was resumed, by process id (seconds of `steady()`).
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
        mine = _drop_late_starts(starts[n], left)
        report.starts += len(mine)
        report.again += len(mine) > 1
        report.violations += [f"job {n}: {what}" for what in _find_violations(mine, outcome, ended)]
        for before, after in pairwise(mine):
            killed = kills.get(before.pid)
            # Count only a kill during the attempt. A process that was suspended before may have lost its lease already.
            if killed is not None and before.t <= killed <= after.t and (n, before.fence) not in ended:
                leases = max(1, after.attempt - before.attempt)
                report.restarts.append((after.t - killed) / leases)
                report.never_started += leases - 1
    return report


def _drop_late_starts(starts: list[Note], resumes: dict[int, list[float]]) -> list[Note]:
    """Return the starts of a job without the excusable late ones. A start is late if its fence is lower than that of an
    earlier start. It is excusable if its process checked the lease, was suspended, and wrote the start right after it
    was resumed, when another process had the lease. Each resume excuses only one late start, because a process starts
    handlers one at a time.
    """
    kept: list[Note] = []
    highest = 0
    for note in starts:
        if note.fence < highest:
            resumed = next((t for t in resumes.get(note.pid, ()) if t <= note.t <= t + LATE), None)
            if resumed is not None:
                resumes[note.pid].remove(resumed)
                continue
        highest = max(highest, note.fence)
        kept.append(note)
    return kept


def _find_violations(starts: list[Note], outcome: FinalRecord | None, ended: set[tuple[int, int]]) -> list[str]:
    if outcome is None:
        return ["lost: the store does not know it"]
    if outcome.state != "completed":
        return [f"stuck: {outcome.state} after {outcome.attempt} attempts"]
    wrong: list[str] = []
    fences = [note.fence for note in starts]
    if not fences:
        return ["completed, but no worker ran it"]
    if sorted(set(fences)) != fences:
        wrong.append(f"fences did not grow: {fences}")
    if outcome.result != outcome.fence:
        wrong.append(f"finished under fence {outcome.fence}, with the result of {outcome.result}")
    if max(fences) != outcome.fence:
        wrong.append(f"begun under {max(fences)}, and completed under {outcome.fence}")
    if starts and (starts[0].n, outcome.fence) not in ended:
        wrong.append(f"completed under {outcome.fence}, which never came to its end")
    return wrong
