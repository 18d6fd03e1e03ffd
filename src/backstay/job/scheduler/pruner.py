"""Delete finished jobs past their retention and check workflow runs. Any number of processes may do so at once."""

from __future__ import annotations

import logging

from backstay.job.flows import send
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core

log = logging.getLogger("backstay")

#: PRUNE: seconds between prunings. PRUNE_STEP: the most jobs that one store call deletes.
PRUNE, PRUNE_STEP = 60.0, 1000
#: Seconds between checks of workflow runs: a run past its deadline is cancelled at most this much later.
CHECK = 5.0
#: Default limit on completed jobs kept in each shard.
KEEP = 1_000_000


async def prune(core: Core, keep: int = KEEP) -> int:
    """Delete finished jobs past their retention and, in each shard, the oldest completed jobs beyond the newest `keep`.
    Returns how many.
    """
    store, count = core.services.get(JOB_STORE), 0
    for shard in range(store.shards):
        while True:
            gone = await send(core, store.prune(shard, keep, PRUNE_STEP))
            count += gone
            if gone < PRUNE_STEP:
                break
    return count


async def check_runs(core: Core) -> int:
    """Cancel runs past their deadline and repair runs whose stored job counts are wrong. Returns how many it repaired:
    more than 0 indicates a bug in a store.
    """
    store, count = core.services.get(JOB_STORE), 0
    for shard in range(store.shards):
        repaired = await send(core, store.check_runs(shard))
        for run_id in repaired:
            log.error("the job counts of run %s were wrong and have been repaired: please report this bug", run_id)
            core.telemetry.emit("run.repaired", id=run_id)
        count += len(repaired)
    return count
