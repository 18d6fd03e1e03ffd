"""Choose a job's shard. A job changes in one transaction with its chain, its run, its unique key and its concurrency
key, so all of them must share a shard.
"""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.job.ids import hash_shard, rate_shard, shard_of
from backstay.job.model import Concurrency, StartRate, Unique


class CrossShardKey(ConfigError):
    """The error for a job whose concurrency key or unique key belongs to another shard (`shard`) than the job."""

    def __init__(self, message: str, shard: int) -> None:
        super().__init__(message)
        self.shard = shard


def shard_for(
    shards: int,
    *,
    chain: str = "",
    concurrency: Concurrency | None = None,
    unique: Unique | None = None,
    after: tuple[str, ...] = (),
    rate: StartRate | None = None,
) -> int | None:
    """Return the job's shard: that of its chain or run (`chain`), else of its concurrency key, else of its unique key,
    else of the first chain that it waits for, else of its rate; None if the caller may choose any. Raises CrossShardKey
    if one of its keys belongs to another shard. The rate may belong to another shard (`stores/redis/permits.py`).
    """
    if shards == 1:
        return 0
    keys = [(key, what) for key, what in ((concurrency, "concurrency_key"), (unique, "unique")) if key is not None]
    if chain:
        place, why = check_shard(chain, shards), f"its chain {chain}"
    elif keys:
        place, why = hash_shard(keys[0][0].key, shards), f"{keys[0][1]} {keys[0][0].key!r}"
    else:
        if after:
            return check_shard(after[0], shards)
        return None if rate is None else rate_shard(rate.bucket, shards)
    for key, what in keys:
        there = hash_shard(key.key, shards)
        if there != place:
            raise CrossShardKey(
                f"{what} {key.key!r} lives in shard {there}, but this job in shard {place} because of {why}, and a"
                " job has one shard. Give concurrency_key and unique the same text, leave one out, or use shards=1.",
                there,
            )
    return place


def check_shard(id_: str, shards: int) -> int:
    """Return the shard that a job, chain or run id contains. Raises ConfigError if there is no such shard."""
    try:
        found = shard_of(id_)
    except ValueError:
        found = -1
    if not 0 <= found < shards:
        raise ConfigError(f"{id_!r} is not a job or chain id of this Backstay, which has {shards} shards")
    return found
