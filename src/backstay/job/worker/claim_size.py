"""How many jobs a claim asks for.

A worker may have several worker channels to a shard, each of which sends its own claims. A claim asks for at most as
many jobs as the worker has free slots, plus those that may be prefetched. It also never asks for more than its
channel's share of the slots. So with two channels, the claim of one does not fill all slots: its jobs run while the
other channel claims.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.job.worker.shard_state import MANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backstay.job.store import Store
    from backstay.job.worker.prefetch import Prefetcher
    from backstay.job.worker.shard_state import ShardState
    from backstay.job.worker.slots import Slots


class ClaimSizer:
    """Computes the size of a worker's claims. Used on the event loop only."""

    def __init__(self, store: Store, slots: Slots, prefetcher: Prefetcher) -> None:
        self._slots = slots
        self._prefetcher = prefetcher
        self._channels = store.channels_per_shard
        #: From this many finished attempts on, one channel acknowledges while the other claims; 0: never.
        self.split_from = max(2, slots.size // 4) if store.splits_claim_and_ack and store.channels_per_shard > 1 else 0
        #: How many jobs a poll asks for: the worker's slots, divided among the worker channels of all shards.
        self.poll_size = max(1, -(-slots.size // (store.channels_per_shard * store.shards)))

    def size(self, shard: ShardState, share: int) -> int:
        """Return how many jobs the next claim from this shard asks for. `share`: the most that its worker channel may
        claim.
        """
        free = min(self._slots.free, share)
        if free <= 0:
            return 0
        if shard.expected:
            return int(min(free, shard.expected))
        return free if shard.finished else 0  # the exchange is sent anyway, to acknowledge; its claim costs nothing

    def share(self, shards: Sequence[ShardState]) -> int:
        """Return how many of the worker's slots one worker channel may fill. The slots are divided among the channels
        of all shards that may have pending jobs.
        """
        claimable = sum(1 for shard in shards if shard.expected) or 1
        return -(-self._slots.size // (self._channels * claimable))

    def split_share(self) -> int:
        """Return how many jobs one channel may claim while the other channel acknowledges: half of the worker's slots,
        plus half of the jobs that may be prefetched. The jobs in the other half of the slots run at the same time.
        """
        return max(1, (self._slots.size + self._slots.prefetch) // 2)

    def splits_traffic(self, shard: ShardState) -> bool:
        """Whether one channel to this shard claims while another one acknowledges, instead of both in one exchange.
        True if the shard has a backlog, and many attempts have finished or a claim for many jobs is under way. Always
        False while the jobs belong to workflow runs: exchanges that run at the same time contend for the row of the
        run, so fewer and larger exchanges cost less.
        """
        return (
            self.split_from > 0
            and shard.expected == MANY
            and not shard.serves_runs
            and (
                len(shard.finished) >= self.split_from
                or any(channel.busy and channel.want >= self.split_from for channel in shard.channels)
            )
        )

    def set_prefetch_limit(self, shard: ShardState) -> None:
        """Update how many jobs may be prefetched; none while claims return jobs at their last attempt. A claim counts
        as an attempt: if this process died, a prefetched job would have used up its last attempt without ever starting.
        """
        if shard.has_last_attempts:
            self._slots.prefetch = 0
        else:
            self._prefetcher.update_limit()
