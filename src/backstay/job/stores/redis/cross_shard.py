"""Jobs that wait for chains of other shards.

The first script stores the job as blocked and adds an entry to `unregistered`. The next ones register the job with its
remote blockers, then delete the entry. If the process dies in between, the entry remains and the exchange or reap of
any worker finishes the registration. When a chain ends, its shard writes to its outbox; the process that ended the
chain delivers it, and the reaper delivers what is left. Delivery is idempotent: it removes a blocker from a set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from struct import Struct
from typing import Any

from backstay.engine.redis.encoder import KeyedRequest
from backstay.errors import ConfigError
from backstay.job.ids import hash_shard, shard_of
from backstay.job.model import Delivery, NewJob, UniformBatch
from backstay.job.stores.redis import record
from backstay.job.stores.redis.calls import ShardCalls, pairs

_CHAIN = Struct(">H")
_RESULT = Struct(">I")


class CrossShard(ShardCalls):
    """Script calls to shards other than the one an operation addresses."""

    def _shard_of(self, id_: str) -> int:
        """Return the shard of a job; -1 if the id is invalid in this store."""
        try:
            number = shard_of(id_)
        except ValueError:
            return -1
        return number if 0 <= number < self.shards else -1

    def _peek_outcomes(
        self, clock: bytes, shard: int, jobs: Iterable[NewJob], *, strict: bool
    ) -> Generator[KeyedRequest, Any, dict[str, bytes]]:
        """Read the state of the remote chains that new jobs wait for. An unknown chain raises ConfigError or, without
        `strict`, counts as failed.
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
                    raise unknown_chain(chain)
                found[chain] = b"-"
        return found

    def _encode_jobs(self, shard: int, jobs: Sequence[NewJob], outcomes: dict[str, bytes]) -> tuple[list[bytes], bool]:
        """Encode new jobs as script arguments. Returns them and whether all jobs are plain."""
        parts: list[bytes] = []
        all_plain, alike, raw = True, isinstance(jobs, UniformBatch), b""
        for job in jobs:
            if not (raw and alike):
                raw, plain = record.encode_new(job)
                if not plain:
                    all_plain = False
                    self._check_keys_shard(shard, job)
            if self.shards > 1 and self._shard_of(job.id) != shard:
                raise ConfigError(f"job {job.id} does not belong to shard {shard}: create its id with Ids.new({shard})")
            parts += (
                record.encode_id(job),
                raw,
                record.encode_doc(job),
                self._encode_after(job, outcomes) if job.after else b"",
            )
        return parts, all_plain

    def _check_keys_shard(self, shard: int, job: NewJob) -> None:
        for what, key in (
            ("unique", job.unique.key if job.unique else ""),
            ("concurrency_key", job.concurrency.key if job.concurrency else ""),
        ):
            if key and hash_shard(key, self.shards) != shard:
                raise ConfigError(
                    f"{what} {key!r} belongs to shard {hash_shard(key, self.shards)}, but job {job.id} to shard"
                    f" {shard}: a job, its unique key and its concurrency_key must share a shard; omit one of them"
                )
        if "-" in job.run and self._shard_of(job.run) not in (-1, shard):
            raise ConfigError(f"job {job.id} belongs to run {job.run}, which is in another shard")
        if job.chain and self._shard_of(job.chain) != shard:
            raise ConfigError(f"job {job.id} continues chain {job.chain}, which is in another shard")

    @staticmethod
    def _encode_after(job: NewJob, outcomes: dict[str, bytes]) -> bytes:
        """Encode the blockers of a job as a script argument."""
        parts: list[bytes] = []
        for chain in job.after:
            outcome = outcomes.get(chain, b"l")
            name = chain.encode()
            parts += [_CHAIN.pack(len(name)), name, outcome[:1], _RESULT.pack(len(outcome) - 1), outcome[1:]]
        return b"".join(parts)

    def _register_waits(self, clock: bytes, shard: int, pairs: Sequence[bytes]) -> Generator[KeyedRequest, Any, None]:
        """Register jobs of this shard as waiters of remote chains; each pair is `<job> <chain>`."""
        homes: defaultdict[int, list[tuple[bytes, bytes, bytes]]] = defaultdict(list)
        ended: list[bytes] = []
        for pair in pairs:
            job, _, chain = pair.partition(b" ")
            where = self._shard_of(chain.decode())
            if where >= 0:
                homes[where].append((pair, job, chain))
            else:
                ended += [job, chain, b"-"]
        for where, waiting in homes.items():
            words = [part for _, job, chain in waiting for part in (job, chain)]
            outcomes = yield from self._call("register", where, clock, *words)
            for (_, job, chain), outcome in zip(waiting, outcomes, strict=True):
                if outcome != b"w":
                    ended += [job, chain, outcome]
        if ended:
            _, outbox = yield from self._call("deliver", shard, clock, self._prefix, *ended)
            yield from self._deliver_outbox(clock, shard, outbox)
        if pairs:
            yield from self._call("registered", shard, clock, *pairs)

    def _deliver_outbox(self, clock: bytes, shard: int, outbox: Sequence[bytes]) -> Generator[KeyedRequest, Any, None]:
        """Deliver an outbox (job, chain, value, …), then the outboxes that this fills, until all are empty."""
        left = [(shard, outbox)]
        while left:
            origin, words = left.pop()
            homes: defaultdict[int, list[bytes]] = defaultdict(list)
            for i in range(0, len(words), 3):
                homes[self._shard_of(words[i].decode())] += words[i : i + 3]
            for where, deliveries in homes.items():
                if where >= 0:
                    _, more = yield from self._call("deliver", where, clock, self._prefix, *deliveries)
                    left.append((where, more))
            done = [words[i] + b" " + words[i + 1] for i in range(0, len(words), 3)]
            if done:
                yield from self._call("delivered", origin, clock, *done)

    def _reopen_waits(self, clock: bytes, remote: Sequence[bytes]) -> Generator[KeyedRequest, Any, None]:
        """Make remote jobs that were skipped because of a chain (job, chain, …) wait for it again, and then their own
        dependents. Each pair is sent once, however many paths lead to it.
        """
        left: list[bytes] = list(remote)
        seen: set[tuple[bytes, bytes]] = set()
        while left:
            homes: defaultdict[int, list[bytes]] = defaultdict(list)
            for job, chain in pairs(left):
                if (job, chain) not in seen:
                    seen.add((job, chain))
                    homes[self._shard_of(job.decode())] += [job, chain]
            left = []
            for where, words in homes.items():
                if where >= 0:
                    left += yield from self._call("rewait", where, clock, self._prefix, *words)


def waits_to_register(jobs: Sequence[NewJob], outcomes: dict[str, bytes]) -> list[bytes]:
    """Who is to be registered with whom, remote."""
    if not outcomes:
        return []
    # A chain that ended without success may be retried, so it has to know its waiters too.
    return [f"{job.id} {chain}".encode() for job in jobs for chain in job.after if outcomes.get(chain) in (b"w", b"-")]


def unknown_chain(chain: str) -> ConfigError:
    return ConfigError(f"after={chain!r}: no such job is stored, or its record is deleted; pass handles of live jobs")


def parse_delivery(pair: bytes, value: bytes) -> Delivery:
    job, _, chain = pair.partition(b" ")
    return Delivery(job.decode(), chain.decode(), parse_outcome(value))


def parse_outcome(value: bytes) -> bytes | None:
    """Decode the result of a chain; None unless it completed."""
    return value[1:] if value[:1] == b"+" else None


def encode_delivery(delivery: Delivery) -> tuple[bytes, bytes, bytes]:
    value = b"-" if delivery.result is None else b"+" + delivery.result
    return delivery.job.encode(), delivery.chain.encode(), value
