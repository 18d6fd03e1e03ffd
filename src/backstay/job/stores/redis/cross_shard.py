"""Jobs that wait for chains of other shards.

A job is stored first, blocked, with a note that its blockers elsewhere do not know of it; then it is registered with
them, then the note goes. Whoever dies in between leaves the note, and any worker's step or reap does the rest. When a
chain ends, its shard writes an outbox; whoever ended it delivers, and the reaper what was left. Telling a job twice is
telling it once: a blocker leaves a set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from struct import Struct
from typing import Any

from backstay.engine.redis.encoder import To
from backstay.errors import ConfigError
from backstay.job.ids import home, shard_of
from backstay.job.model import Alike, Delivery, NewJob
from backstay.job.stores.redis import record
from backstay.job.stores.redis.calls import Calls, flat

_CHAIN = Struct(">H")
_RESULT = Struct(">I")


class Elsewhere(Calls):
    """What a store says to other shards than a verb's own."""

    def _shard_of(self, id_: str) -> int:
        """The shard of a job; -1: nobody could have made this id."""
        try:
            number = shard_of(id_)
        except ValueError:
            return -1
        return number if 0 <= number < self.shards else -1

    def _outcomes(
        self, clock: bytes, shard: int, jobs: Iterable[NewJob], *, strict: bool
    ) -> Generator[To, Any, dict[str, bytes]]:
        """What chains of other shards have come to, for those who want to wait for them. Unknown ones are a
        ConfigError, or (not `strict`) count as ended badly.
        """
        asked: defaultdict[int, list[str]] = defaultdict(list)
        found: dict[str, bytes] = {}
        for job in jobs:
            for chain in job.after:
                where = self._shard_of(chain)
                if where != shard and chain not in found:
                    found[chain] = b""
                    if where >= 0:
                        asked[where].append(chain)
        for where, chains in asked.items():
            replies = yield from self._call("peek", where, clock, *(chain.encode() for chain in chains))
            found.update(zip(chains, replies, strict=True))
        for chain, outcome in found.items():
            if not outcome:
                if strict:
                    raise unknown(chain)
                found[chain] = b"-"
        return found

    def _new(self, shard: int, jobs: Sequence[NewJob], outcomes: dict[str, bytes]) -> tuple[list[bytes], bool]:
        """Jobs to be, as scripts take them, and whether all of them are plain."""
        parts: list[bytes] = []
        all_plain, alike, raw = True, isinstance(jobs, Alike), b""
        for job in jobs:
            if not (raw and alike):
                raw, plain = record.new(job)
                if not plain:
                    all_plain = False
                    self._check_home(shard, job)
            if self.shards > 1 and self._shard_of(job.id) != shard:
                raise ConfigError(f"job {job.id} does not live in shard {shard}: make its id with Ids.new({shard})")
            parts += (record.name_of(job), raw, record.doc_of(job), self._after(job, outcomes) if job.after else b"")
        return parts, all_plain

    def _check_home(self, shard: int, job: NewJob) -> None:
        for what, key in (
            ("unique", job.unique.key if job.unique else ""),
            ("concurrency_key", job.concurrency.key if job.concurrency else ""),
        ):
            if key and home(key, self.shards) != shard:
                raise ConfigError(
                    f"{what} {key!r} lives in shard {home(key, self.shards)} and job {job.id} in shard {shard}:"
                    " a job, its unique key and its concurrency_key share one; leave one of them out"
                )
        if "-" in job.run and self._shard_of(job.run) not in (-1, shard):
            raise ConfigError(f"job {job.id} is of run {job.run}, which lives in another shard")
        if job.chain and self._shard_of(job.chain) != shard:
            raise ConfigError(f"job {job.id} continues chain {job.chain}, which lives in another shard")

    @staticmethod
    def _after(job: NewJob, outcomes: dict[str, bytes]) -> bytes:
        """What a job waits for, as scripts take it."""
        parts: list[bytes] = []
        for chain in job.after:
            outcome = outcomes.get(chain, b"l")
            name = chain.encode()
            parts += [_CHAIN.pack(len(name)), name, outcome[:1], _RESULT.pack(len(outcome) - 1), outcome[1:]]
        return b"".join(parts)

    def _register(self, clock: bytes, shard: int, pairs: Sequence[bytes]) -> Generator[To, Any, None]:
        """Make blockers elsewhere know of jobs here: `<job> <chain>` each."""
        homes: defaultdict[int, list[tuple[bytes, bytes, bytes]]] = defaultdict(list)
        told: list[bytes] = []
        for pair in pairs:
            job, _, chain = pair.partition(b" ")
            where = self._shard_of(chain.decode())
            if where >= 0:
                homes[where].append((pair, job, chain))
            else:
                told += [job, chain, b"-"]
        for where, waiting in homes.items():
            words = [part for _, job, chain in waiting for part in (job, chain)]
            outcomes = yield from self._call("register", where, clock, *words)
            for (_, job, chain), outcome in zip(waiting, outcomes, strict=True):
                if outcome != b"w":
                    told += [job, chain, outcome]
        if told:
            _, outbox = yield from self._call("deliver", shard, clock, self._prefix, *told)
            yield from self._tell(clock, shard, outbox)
        if pairs:
            yield from self._call("registered", shard, clock, *pairs)

    def _tell(self, clock: bytes, shard: int, outbox: Sequence[bytes]) -> Generator[To, Any, None]:
        """Deliver an outbox (job, chain, value, …), and what that sets off, until all have been told."""
        left = [(shard, outbox)]
        while left:
            origin, words = left.pop()
            homes: defaultdict[int, list[bytes]] = defaultdict(list)
            for i in range(0, len(words), 3):
                homes[self._shard_of(words[i].decode())] += words[i : i + 3]
            for where, told in homes.items():
                if where >= 0:
                    _, more = yield from self._call("deliver", where, clock, self._prefix, *told)
                    left.append((where, more))
            done = [words[i] + b" " + words[i + 1] for i in range(0, len(words), 3)]
            if done:
                yield from self._call("delivered", origin, clock, *done)

    def _wait_again(self, clock: bytes, elsewhere: Sequence[bytes]) -> Generator[To, Any, None]:
        """Jobs elsewhere that were skipped because of a chain (job, chain, …) wait for it again, and theirs. Each is
        told once of each, however many ways lead there.
        """
        left: list[bytes] = list(elsewhere)
        seen: set[tuple[bytes, bytes]] = set()
        while left:
            homes: defaultdict[int, list[bytes]] = defaultdict(list)
            for job, chain in flat(left):
                if (job, chain) not in seen:
                    seen.add((job, chain))
                    homes[self._shard_of(job.decode())] += [job, chain]
            left = []
            for where, words in homes.items():
                if where >= 0:
                    left += yield from self._call("rewait", where, clock, self._prefix, *words)


def unknown(chain: str) -> ConfigError:
    return ConfigError(f"after={chain!r}: there is no such job, or its record is gone; pass handles of live jobs")


def delivery(pair: bytes, value: bytes) -> Delivery:
    job, _, chain = pair.partition(b" ")
    return Delivery(job.decode(), chain.decode(), outcome(value))


def outcome(value: bytes) -> bytes | None:
    """A chain's result as scripts write it; None unless it completed."""
    return value[1:] if value[:1] == b"+" else None


def wire(delivery: Delivery) -> tuple[bytes, bytes, bytes]:
    value = b"-" if delivery.result is None else b"+" + delivery.result
    return delivery.job.encode(), delivery.chain.encode(), value
