"""Job ids: made by the caller, in order of time, with the shard they live in.

`<shard>-<milliseconds><counter><random>`, all hexadecimal: of two ids of one process, the later one is larger. A
lease id is `<job id>.<fence>`: no job id has a dot.
"""

from __future__ import annotations

import os
import random
import time
from zlib import crc32


class Ids:
    """Makes ids. One for each process: after a fork, `reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._random = random.Random(os.urandom(32))
        self._millis = 0
        self._counter = 0

    def new(self, shard: int) -> str:
        """A new id in a shard. A clock that is set back keeps counting in its last millisecond."""
        millis = time.time_ns() // 1_000_000
        if millis > self._millis:
            self._millis, self._counter = millis, 0
        else:
            self._counter += 1
        # 11, 5 and 12 digits, written as one number: half the time.
        return f"{shard:x}-{(self._millis << 68) + (self._counter << 48) + self._random.getrandbits(48):028x}"

    def several(self, shard: int, n: int) -> list[str]:
        """The next `n` ids in a shard."""
        if not n:
            return []
        head, _, digits = self.new(shard).partition("-")
        self._counter += n - 1
        place, bits, form = int(digits, 16) >> 48, self._random.getrandbits, f"{head}-%028x"
        return [form % (((place + i) << 48) + bits(48)) for i in range(n)]

    def anywhere(self, shards: int) -> str:
        """A new id in some shard."""
        return self.new(self._random.randrange(shards) if shards > 1 else 0)


def shard_of(id_: str) -> int:
    """The shard that a job id or a lease id names. Raises ValueError for what is neither."""
    return int(id_.partition("-")[0], 16)


def moved(id_: str, shard: int) -> str:
    """The same id in another shard."""
    return f"{shard:x}-{id_.partition('-')[2]}"


def home(key: str, shards: int) -> int:
    """The shard of whatever is named by a key: the same in every process."""
    return crc32(key.encode()) % shards


def lease_id(job: str, fence: int) -> str:
    return f"{job}.{fence}"


def split_lease(lease: str) -> tuple[str, int]:
    """Job and fence of a lease id. Raises ValueError for what is none."""
    job, _, fence = lease.rpartition(".")
    if not job:
        raise ValueError(lease)
    return job, int(fence)
