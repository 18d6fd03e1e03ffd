"""Jobs that wait for chains of other shards (remote chains).

Registration: the script that creates the job stores it as blocked. For each remote blocker it adds an entry to the
hash `unregistered` of the job's shard. Further scripts register the job with the blocker's shard, then delete the
entry. If the process dies in between, the entry remains and the next exchange or reap of any worker finishes the
registration.
Delivery: when a chain ends, the script writes the outcome to the outbox, a hash of the chain's shard. The process that
ended the chain then delivers the outcome to the shards of the waiting jobs. If that process dies, workers deliver the
outcome. Delivering twice is safe.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from struct import Struct
from typing import Any

from backstay.engine.redis.encoder import KeyedRequest
from backstay.errors import ConfigError
from backstay.job.exchange import Delivery
from backstay.job.ids import hash_shard, shard_of
from backstay.job.model import NewJob, UniformBatch
from backstay.job.stores.redis import record
from backstay.job.stores.redis.calls import ShardCalls, group_pairs

_CHAIN = Struct(">H")
_RESULT = Struct(">I")


class CrossShard(ShardCalls):
    """Script calls that register jobs with remote blockers and deliver the ends of chains."""

    def _shard_of(self, id_: str) -> int:
        """Return the number of the shard that the id of a job or run contains; -1 if this store has no such shard."""
        try:
            number = shard_of(id_)
        except ValueError:
            return -1
        return number if 0 <= number < self.shards else -1

    def _peek_outcomes(
        self, clock: bytes, shard: int, jobs: Iterable[NewJob], *, strict: bool
    ) -> Generator[KeyedRequest, Any, dict[str, bytes]]:
        """Read the outcomes of the chains in other shards that new jobs wait for, in the form that `peek.lua` returns.
        An unknown chain raises ConfigError or, without `strict`, counts as failed.
        """
        unread: defaultdict[int, list[str]] = defaultdict(list)
        found: dict[str, bytes] = {}
        for job in jobs:
            for chain in job.after:
                where = self._shard_of(chain)
                if where != shard and chain not in found:
                    found[chain] = b""
                    if where >= 0:
                        unread[where].append(chain)
        for where, chains in unread.items():
            replies = yield from self._call("peek", where, clock, *(chain.encode() for chain in chains))
            found.update(zip(chains, replies, strict=True))
        for chain, outcome in found.items():
            if not outcome:
                if strict:
                    raise unknown_chain(chain)
                found[chain] = b"-"
        return found

    def _encode_jobs(self, shard: int, jobs: Sequence[NewJob], outcomes: dict[str, bytes]) -> tuple[list[bytes], bool]:
        """Encode new jobs as script arguments. These are for each job: its id, its record, its doc (arguments, metadata
        and blockers), and its blockers with their outcomes (`_encode_after`). Returns the script arguments, and whether
        all jobs are plain (without run, chain, blockers and keys). Raises ConfigError for a job that does not belong to
        this shard.
        """
        parts: list[bytes] = []
        all_plain, uniform, raw = True, isinstance(jobs, UniformBatch), b""
        for job in jobs:
            if not (raw and uniform):
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
        """Raise ConfigError unless a job's unique key, concurrency key, run and chain belong to its shard."""
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
        """Encode the blockers of a job as `_create.lua` reads them. `outcomes`: what `_peek_outcomes` returned. A
        blocker that is missing in it is a chain of the job's own shard.
        """
        parts: list[bytes] = []
        for chain in job.after:
            outcome = outcomes.get(chain, b"l")
            name = chain.encode()
            parts += [_CHAIN.pack(len(name)), name, outcome[:1], _RESULT.pack(len(outcome) - 1), outcome[1:]]
        return b"".join(parts)

    def _register_waits(self, clock: bytes, shard: int, waits: Sequence[bytes]) -> Generator[KeyedRequest, Any, None]:
        """Register jobs of this shard as dependents of remote chains; each wait is `<job> <chain>`. A wait for a
        chain that has ended is resolved at once.
        """
        by_shard: defaultdict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
        ended: list[bytes] = []
        for wait in waits:
            job, _, chain = wait.partition(b" ")
            where = self._shard_of(chain.decode())
            if where >= 0:
                by_shard[where].append((job, chain))
            else:
                ended += [job, chain, b"-"]
        for where, waiting in by_shard.items():
            arguments = [part for pair in waiting for part in pair]
            outcomes = yield from self._call("register_dependents", where, clock, *arguments)
            for (job, chain), outcome in zip(waiting, outcomes, strict=True):
                if outcome != b"w":
                    ended += [job, chain, outcome]
        if ended:
            _, outbox = yield from self._call("deliver", shard, clock, self._prefix, *ended)
            yield from self._deliver_outbox(clock, shard, outbox)
        if waits:
            yield from self._call("ack_registrations", shard, clock, *waits)

    def _deliver_outbox(self, clock: bytes, shard: int, outbox: Sequence[bytes]) -> Generator[KeyedRequest, Any, None]:
        """Deliver entries of a shard's outbox, then the entries that these deliveries write to other outboxes, until
        none is left. `outbox`: three values for each entry: the waiting job, the ended chain, its outcome.
        """
        left = [(shard, outbox)]
        while left:
            origin, entries = left.pop()
            by_shard: defaultdict[int, list[bytes]] = defaultdict(list)
            for i in range(0, len(entries), 3):
                by_shard[self._shard_of(entries[i].decode())] += entries[i : i + 3]
            for where, deliveries in by_shard.items():
                if where >= 0:
                    _, more = yield from self._call("deliver", where, clock, self._prefix, *deliveries)
                    left.append((where, more))
            done = [entries[i] + b" " + entries[i + 1] for i in range(0, len(entries), 3)]
            if done:
                yield from self._call("ack_deliveries", origin, clock, *done)

    def _reopen_waits(self, clock: bytes, remote: Sequence[bytes]) -> Generator[KeyedRequest, Any, None]:
        """Make dependents in other shards wait again for chains that restart. A dependent that was skipped because of
        a chain is blocked again, unless another blocker keeps it skipped; then its own dependents in other shards
        follow. `remote`: a flat list of pairs: the dependent's id, the chain's id. Each pair is sent once, however many
        paths of the graph lead to it.
        """
        left: list[bytes] = list(remote)
        seen: set[tuple[bytes, bytes]] = set()
        while left:
            by_shard: defaultdict[int, list[bytes]] = defaultdict(list)
            for job, chain in group_pairs(left):
                if (job, chain) not in seen:
                    seen.add((job, chain))
                    by_shard[self._shard_of(job.decode())] += [job, chain]
            left = []
            for where, waits in by_shard.items():
                if where >= 0:
                    left += yield from self._call("reopen_waits", where, clock, self._prefix, *waits)


def list_waits_to_register(jobs: Sequence[NewJob], outcomes: dict[str, bytes]) -> list[bytes]:
    """Return which waits of new jobs for chains in other shards must be registered with those shards, each as `<job>
    <chain>`. `outcomes`: the outcomes of these chains, as `peek.lua` returns them.
    """
    if not outcomes:
        return []
    # A chain that ended without success must know its dependents too: if it is retried, they wait again.
    return [f"{job.id} {chain}".encode() for job in jobs for chain in job.after if outcomes.get(chain) in (b"w", b"-")]


def unknown_chain(chain: str) -> ConfigError:
    return ConfigError(f"after={chain!r}: no such job is stored, or its record is deleted; pass handles of live jobs")


def parse_delivery(pair: bytes, value: bytes) -> Delivery:
    job, _, chain = pair.partition(b" ")
    return Delivery(job.decode(), chain.decode(), parse_outcome(value))


def parse_outcome(value: bytes) -> bytes | None:
    """Decode the outcome of a chain: its result, or None if it did not complete."""
    return value[1:] if value[:1] == b"+" else None


def encode_delivery(delivery: Delivery) -> tuple[bytes, bytes, bytes]:
    value = b"-" if delivery.result is None else b"+" + delivery.result
    return delivery.job.encode(), delivery.chain.encode(), value
