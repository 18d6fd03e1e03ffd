"""What jobs leave behind: log lines and outputs. Only the current lease may write."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.base import Micros
from holdfast.job.model import LogLine
from holdfast.job.sqlite.changes import Changes
from holdfast.job.sqlite.shape import HAS_LOG, HAS_OUTPUTS, RUNNING
from holdfast.job.sqlite.texts import load

LOG = load("log")


def append_log(changes: Changes, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> bool:
    num = _writable(changes, job, fence, HAS_LOG)
    if num is None:
        return False
    changes.db.executemany(LOG["append"], [(num, seq, *line) for seq, line in enumerate(lines, first)])
    return True


def read_log(changes: Changes, job: str, after: int, limit: int) -> list[LogLine]:
    row = changes.db.execute(LOG["found"], (changes.space, job)).fetchone()
    if row is None:
        return []
    return [LogLine(*line) for line in changes.db.execute(LOG["read"], (row[0], after, limit))]


def put_outputs(changes: Changes, job: str, fence: int, outputs: dict[str, str]) -> bool:
    num = _writable(changes, job, fence, HAS_OUTPUTS)
    if num is None:
        return False
    changes.db.executemany(LOG["put"], [(num, key, value) for key, value in outputs.items()])
    return True


def get_outputs(changes: Changes, job: str) -> dict[str, str]:
    row = changes.db.execute(LOG["found"], (changes.space, job)).fetchone()
    return {} if row is None else dict(changes.db.execute(LOG["outputs"], (row[0],)))


def _writable(changes: Changes, job: str, fence: int, flag: int) -> int | None:
    """The job's number, if this lease may write. The flag says that something has to go when the job does."""
    row = changes.db.execute(LOG["found"], (changes.space, job)).fetchone()
    if row is None:
        return None
    num, state, current, flags = row
    if fence and (state != RUNNING or current != fence):
        return None
    if not flags & flag:
        changes.db.execute(LOG["flag"], (flag, num))
    return int(num)
