"""Log lines and outputs of jobs. Only the worker that holds a job's lease may write them."""

from __future__ import annotations

from collections.abc import Sequence

from backstay.engine.base import Micros
from backstay.job.model import LogLine
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import HAS_LOG, HAS_OUTPUTS, RUNNING
from backstay.job.stores.sqlite.statements import load

LOG = load("log")


def append_log(changes: Changes, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> bool:
    num = _flag_if_leased(changes, job, fence, HAS_LOG)
    if num is None:
        return False
    changes.db.executemany(LOG["append"], [(num, seq, *line) for seq, line in enumerate(lines, first)])
    return True


def read_log(changes: Changes, job: str, after: int, limit: int) -> list[LogLine]:
    num = find(changes, job)
    return [LogLine(*line) for line in changes.db.execute(LOG["read"], (num, after, limit))]


def put_outputs(changes: Changes, job: str, fence: int, outputs: dict[str, str]) -> bool:
    num = _flag_if_leased(changes, job, fence, HAS_OUTPUTS)
    if num is None:
        return False
    changes.db.executemany(LOG["put_output"], [(num, key, value) for key, value in outputs.items()])
    return True


def get_outputs(changes: Changes, job: str) -> dict[str, str]:
    return dict(changes.db.execute(LOG["outputs"], (find(changes, job),)))


def find(changes: Changes, job: str, fence: int = 0) -> int | None:
    """Return the job's row number; None if the job is not stored, or if no worker runs it under a lease with this
    fence. With fence 0, the lease is not checked.
    """
    row = changes.db.execute(LOG["find"], (changes.space, job)).fetchone()
    if row is None:
        return None
    num, state, current, _ = row
    return None if fence and (state != RUNNING or current != fence) else int(num)


def _flag_if_leased(changes: Changes, job: str, fence: int, flag: int) -> int | None:
    """Like `find`, but also set the given flag of the job (HAS_LOG or HAS_OUTPUTS). It says that the job has rows in
    another table, which must be deleted with the job.
    """
    num = find(changes, job, fence)
    if num is not None:
        changes.db.execute(LOG["set_flag"], (flag, num))
    return num
