"""A worker's view of one shard: attempts to acknowledge, how many jobs may be pending there, when to poll it next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.engine.jitter import RANDOM

if TYPE_CHECKING:
    from backstay.job.worker.channel import WorkerChannel
    from backstay.job.worker.execution.attempt import Attempt

#: A number of expected jobs that means: the shard has a backlog of unknown size.
MANY = float("inf")
#: One exchange acknowledges at most this many attempts, with about this many bytes of results.
LARGEST, LARGEST_BYTES = 1000, 4 * 1024 * 1024
#: Random delay after a job's due time, in seconds: keeps a fleet of workers from claiming at once (thundering herd).
JITTER = 0.01
#: A poll may find no job although the shard reported a due one. After PATIENT such polls in a row, each further one
#: doubles the random delay before the next poll. From the MOST_PATIENT-th on, the delay does not grow any more.
PATIENT, MOST_PATIENT = 2, 8


class ShardState:
    """A worker's view of one shard. Used on the event loop only."""

    __slots__ = (
        "announced",
        "channels",
        "empty_polls",
        "expected",
        "finished",
        "has_last_attempts",
        "hints",
        "hints_only",
        "number",
        "poll_at",
        "serves_runs",
        "suspects",
    )

    def __init__(self, number: int, channels: list[WorkerChannel]) -> None:
        self.number = number
        self.channels = channels
        #: Finished attempts that are not acknowledged yet.
        self.finished: list[Attempt] = []
        #: Attempts of an exchange that the store rejected: each is sent alone, to find the invalid one.
        self.suspects: list[Attempt] = []
        #: How many jobs may be pending in the shard.
        self.expected: float = MANY
        #: Whether `expected` was derived only from announcements: no poll or claim has shown that jobs are pending.
        self.hints_only = False
        #: The announcements whose counters limit the next claim, if `hints_only`: the claim gets at most as many jobs
        #: as it can take from these counters (`notifications.py`).
        self.hints: list[str] = []
        #: Whether an announcement has come since the last exchange began. If so, poll once more after that exchange.
        self.announced = False
        self.poll_at = 0.0
        #: Whether the last claimed job belongs to a workflow run. Then exchanges with the shard do not overlap, because
        #: they would contend for the run (`ClaimSizer.splits_traffic`).
        self.serves_runs = False
        #: Whether the last claim returned a job that is at its last attempt. If so, no jobs are prefetched.
        self.has_last_attempts = False
        #: Consecutive polls that found nothing although the shard reported a due job.
        self.empty_polls = 0

    @property
    def is_idle(self) -> bool:
        return not self.finished and not self.suspects and not any(channel.busy for channel in self.channels)

    @property
    def has_locked_jobs(self) -> bool:
        """Whether the last exchange found no job, but reported a due one, which another transaction had locked. False
        after MOST_PATIENT such exchanges in a row.
        """
        return 0 < self.empty_polls < MOST_PATIENT

    def delay_until_due(self, next_in: int | None, jobs: int) -> float:
        """Return the seconds until the next poll. `next_in`: the µs until a job becomes due, as an exchange reported;
        None if none will. `jobs`: how many jobs that exchange claimed. The delay grows while a job is reported as due
        but cannot be claimed.
        """
        if jobs or next_in is None or next_in > JITTER * 1_000_000:
            self.empty_polls = 0
        else:
            self.empty_polls = min(self.empty_polls + 1, MOST_PATIENT)
        if next_in is None:
            return MANY
        return next_in / 1_000_000 + RANDOM.uniform(0.001, JITTER) * (1 << max(0, self.empty_polls - PATIENT))

    def take_batch(self) -> list[Attempt]:
        """Remove and return the attempts that one exchange acknowledges, from the front of `finished`."""
        finished = self.finished
        end, size = 0, 0
        for attempt in finished[:LARGEST]:
            if attempt.finish is not None:
                size += len(attempt.finish.result)
            if size > LARGEST_BYTES and end:
                break
            end += 1
        batch = finished[:end]
        del finished[:end]
        return batch
