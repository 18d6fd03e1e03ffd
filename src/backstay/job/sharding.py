"""In which shard a job lives. What must change in one step lives in one shard, so its keys decide."""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.job.ids import home, shard_of
from backstay.job.model import Concurrency, Unique


class Elsewhere(ConfigError):
    """A key of a job lives in another shard than its run."""

    def __init__(self, message: str, shard: int) -> None:
        super().__init__(message)
        self.shard = shard


def home_of(
    shards: int,
    *,
    chain: str = "",
    concurrency: Concurrency | None = None,
    unique: Unique | None = None,
    after: tuple[str, ...] = (),
) -> int | None:
    """The chain's or run's shard; else its concurrency key's, else its unique key's, else that of the first chain it
    waits for; None: any. Raises ConfigError for keys that live elsewhere than the job would.
    """
    if shards == 1:
        return 0
    keys = [(key, what) for key, what in ((concurrency, "concurrency_key"), (unique, "unique")) if key is not None]
    if chain:
        place, why = shard(chain, shards), f"its chain {chain}"
    elif keys:
        place, why = home(keys[0][0].key, shards), f"{keys[0][1]} {keys[0][0].key!r}"
    else:
        return shard(after[0], shards) if after else None
    for key, what in keys:
        there = home(key.key, shards)
        if there != place:
            raise Elsewhere(
                f"{what} {key.key!r} lives in shard {there}, and this job in shard {place} because of {why}: one job"
                " has one shard. Give concurrency_key and unique the same text, leave one out, or use shards=1.",
                there,
            )
    return place


def shard(id_: str, shards: int) -> int:
    """The shard that an id names, if there is such a one."""
    try:
        found = shard_of(id_)
    except ValueError:
        found = -1
    if not 0 <= found < shards:
        raise ConfigError(f"{id_!r} is not the id of a job or chain here; there are {shards} shards")
    return found
