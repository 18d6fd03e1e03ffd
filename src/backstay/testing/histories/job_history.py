"""Histories of job attempts: workers record each start and end, and the checker verifies them against the store.

Each worker appends fixed-size notes to its own file, unbuffered, so the notes of a killed process are kept.
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
#: Seconds after its resume within which a suspended process may write the note that it was about to write.
LATE = 0.5
_NOTE = struct.Struct("<BIQIdI")
START, END = 1, 2


class Note(NamedTuple):
    """The start or end of an attempt of job `n` in process `pid` at `t` (`steady()`, shared by all processes)."""

    kind: int
    n: int
    fence: int
    pid: int
    t: float
    #: The attempt's number in the store. A gap between two notes shows attempts that were claimed and never started.
    attempt: int


class Notebook:
    """Writes the notes of one process."""

    def __init__(self, folder: Path, label: str) -> None:
        self._fd = os.open(folder / f"{label}{SUFFIX}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._pid = os.getpid()

    def write(self, kind: int, n: int, fence: int, attempt: int) -> None:
        os.write(self._fd, _NOTE.pack(kind, n, fence, self._pid, steady(), attempt))


def read(folder: Path) -> list[Note]:
    """Return all notes, in order of time. A note that a kill truncated is left out."""
    notes: list[Note] = []
    for file in sorted(folder.glob("*" + SUFFIX)):
        raw = file.read_bytes()
        whole = len(raw) // _NOTE.size * _NOTE.size
        notes += [Note(*fields) for fields in _NOTE.iter_unpack(raw[:whole])]
    return sorted(notes, key=lambda note: note.t)


class Outcome(NamedTuple):
    """The final record of a job in the store."""

    state: str
    #: The fence of the lease that finished the job. Each attempt returns its own fence, so `result` must be equal.
    fence: int
    result: int | None
    attempt: int


@dataclass
class JobReport:
    """The counts and the violations of a history."""

    jobs: int = 0
    starts: int = 0
    #: Jobs that started more than once, after a kill or a lost lease.
    again: int = 0
    #: Seconds from each kill until the interrupted job restarted, divided by the leases that had to expire: the next
    #: worker may have been killed, too, before it started the job.
    restarts: list[float] = field(default_factory=list[float])
    #: Attempts that were claimed and never started.
    unbegun: int = 0
    violations: list[str] = field(default_factory=list[str])

    def restart(self, percent: float) -> float:
        ordered = sorted(self.restarts)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs, {self.starts} starts, {self.again} begun again, kill to restart"
            f" p50 {self.restart(50):.2f} s, p99 {self.restart(99):.2f} s of {len(self.restarts)},"
            f" claimed by a worker that was killed before the start {self.unbegun},"
            f" violations {len(self.violations)}"
        )


def check(
    notes: Iterable[Note],
    outcomes: Mapping[int, Outcome | None],
    kills: Mapping[int, float],
    resumes: Mapping[int, Sequence[float]] | None = None,
) -> JobReport:
    """Check that every job completed exactly once, under its last lease. `kills` and `resumes`: the times (`steady()`)
    at which processes were killed and suspended processes were resumed, by process id.
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
            # A process that was suspended before its kill had already lost its leases.
            if killed is not None and before.t <= killed <= after.t and (n, before.fence) not in ended:
                leases = max(1, after.attempt - before.attempt)
                report.restarts.append((after.t - killed) / leases)
                report.unbegun += leases - 1
    return report


def _in_order(starts: list[Note], resumes: dict[int, list[float]]) -> list[Note]:
    """Leave out starts with an outdated fence that a process recorded right after its resume: it was suspended between
    the check of its lease and the note. That is at most one start per resume, since a loop starts handlers one by one.
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
