"""Choose a job's shard. Everything that changes in one transaction lives in one shard, so a job's keys determine it."""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.job.ids import hash_shard, shard_of
from backstay.job.model import Concurrency, Unique


class CrossShardKey(ConfigError):
    """A job's concurrency or unique key lives in another shard than the job."""

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
) -> int | None:
    """Return the job's shard: that of its chain or run, else of its concurrency key, else of its unique key, else of
    the first chain it waits for; None if any shard will do. Raises CrossShardKey for keys of different shards.
    """
    if shards == 1:
        return 0
    keys = [(key, what) for key, what in ((concurrency, "concurrency_key"), (unique, "unique")) if key is not None]
    if chain:
        place, why = checked_shard(chain, shards), f"its chain {chain}"
    elif keys:
        place, why = hash_shard(keys[0][0].key, shards), f"{keys[0][1]} {keys[0][0].key!r}"
    else:
        return checked_shard(after[0], shards) if after else None
    for key, what in keys:
        there = hash_shard(key.key, shards)
        if there != place:
            raise CrossShardKey(
                f"{what} {key.key!r} lives in shard {there}, but this job in shard {place} because of {why}, and a"
                " job has one shard. Give concurrency_key and unique the same text, leave one out, or use shards=1.",
                there,
            )
    return place


def checked_shard(id_: str, shards: int) -> int:
    """Return the shard of an id. Raises ConfigError if there is no such shard."""
    try:
        found = shard_of(id_)
    except ValueError:
        found = -1
    if not 0 <= found < shards:
        raise ConfigError(f"{id_!r} is not a job or chain id of this Backstay, which has {shards} shards")
    return found
