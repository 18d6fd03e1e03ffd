"""Claim pending jobs: merge the lanes that a worker may take from, smallest rank first.

A lane holds the pending jobs of one queue, label set and rate in the order of ranks. So jobs that the worker may not
take cannot cause head-of-line blocking: they are in other lanes. The cost grows with the number of lanes, not with the
backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any

from backstay.engine.base import Micros
from backstay.job.exchange import Claim, Claimed
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    HAS_BLOCKERS,
    HAS_BODY,
    OUTCOME_OK_SHARED,
    PARKED,
    PENDING,
    RUNNING,
    SPECIAL,
    json_text,
    parse_label_set,
    parse_labels,
)
from backstay.job.stores.sqlite.finish_effects import free_unique
from backstay.job.stores.sqlite.lanes import (
    ATTEMPT,
    CKEY,
    CLAIM,
    CLIMIT,
    FLAGS,
    ID,
    KIND,
    NUM,
    RANK,
    RUN,
    UNIQ,
    Budget,
    Lane,
)

#: If a claim merges several lanes, its first read of each lane fetches CHUNK jobs and a share of the wanted jobs, but
#: never more than the wanted jobs.
CHUNK = 4
#: The largest number of jobs that one claim parks because their concurrency key already has as many running jobs as it
#: allows. The next claim parks further ones.
MAX_PARKED = 2000
#: The upstream results of jobs without blockers: one shared dict, since most jobs have none.
NO_UPSTREAM: dict[str, bytes | None] = {}


class Claimer:
    """Carries out one claim. After `run`, `next_in` says when the next claim may find more jobs: the µs until a rate
    limit lets another pending job start; 0 if the claim stopped early because MAX_PARKED jobs could not start (their
    concurrency key is at its limit); None if neither applies.
    """

    def __init__(self, changes: Changes, claim: Claim, worker: str) -> None:
        self._changes = changes
        self._claim = claim
        self._worker = worker
        self._buckets: dict[str, Budget] = {}
        self._queues: dict[str, Budget] = {}
        self._keys: dict[str, int] = {}
        self._parked: list[tuple[Any, ...]] = []
        self.next_in: Micros | None = None

    def run(self) -> tuple[list[Claimed], list[tuple[int, int]]]:
        """Claim jobs. Returns the claimed jobs, and a list with the row number and the fence of each of them, in the
        same order.
        """
        taken: list[tuple[Any, ...]] = []
        if self._claim.want > 0:
            for lanes in self._open_lanes():
                self._merge_lanes(lanes, taken)
                if len(taken) >= self._claim.want:
                    break
        self._write_parked()
        if not taken:
            return [], []
        self._write_budgets()
        return self._lease(taken)

    def _open_lanes(self) -> list[list[Lane]]:
        """Return the lanes with pending jobs that this worker may take from now: one list for each group of queues in
        the claim. A claim searches these groups one after another, and the queues of one group together.
        """
        changes = self._changes
        wanted = [queue for group in self._claim.queues for queue in group]
        limits = {row[0]: row for row in changes.db.execute(CLAIM["queues"], (changes.space,))}
        mine = frozenset(self._claim.labels)
        found: dict[str, list[Lane]] = {}
        one = len(wanted) == 1
        rows = changes.db.execute(
            CLAIM["lanes_of_queue" if one else "lanes"], (changes.space, wanted[0] if one else json_text(wanted))
        ).fetchall()
        for num, queue, labels, bucket, period, burst in rows:
            if labels != "[]" and not parse_label_set(labels) <= mine:
                continue
            budgets: list[Budget] = []
            if queue in limits:
                _, paused, queue_period, queue_burst, tat = limits[queue]
                if paused:
                    continue
                if queue_burst:
                    budget = self._queues.get(queue)
                    if budget is None:
                        budget = self._queues[queue] = Budget(queue_period, queue_burst, tat, changes.now)
                    budgets.append(budget)
            if burst:
                budgets.append(self._rate_budget(bucket, period, burst))
            if all(budget.left > 0 for budget in budgets):
                found.setdefault(queue, []).append(Lane(changes, num, budgets))
            else:
                self._note_rate_wait(budgets)
        return [[lane for queue in group for lane in found.pop(queue, [])] for group in self._claim.queues]

    def _rate_budget(self, bucket: str, period: Micros, burst: int) -> Budget:
        budget = self._buckets.get(bucket)
        if budget is None:
            changes = self._changes
            row = changes.db.execute(CLAIM["rate_tat"], (changes.space, bucket)).fetchone()
            budget = self._buckets[bucket] = Budget(period, burst, row[0] if row else 0, changes.now)
        return budget

    def _note_rate_wait(self, budgets: Sequence[Budget]) -> None:
        """Update `next_in` for a lane with pending jobs that a rate limit does not let start now. `budgets`: how
        many starts each rate limit of the lane still allows; at least one of them allows none.
        """
        wait = max(budget.next_in() for budget in budgets if budget.left <= 0)
        self.next_in = wait if self.next_in is None else min(self.next_in, wait)

    def _merge_lanes(self, lanes: list[Lane], taken: list[tuple[Any, ...]]) -> None:
        """Add the jobs that may start to `taken`, smallest rank over all lanes first."""
        want = self._claim.want
        if not lanes:
            return
        left = want - len(taken)
        if len(lanes) == 1 and not lanes[0].budgets:
            # The usual case: one lane without a rate, whose jobs have no concurrency keys.
            rows = lanes[0].read(left)
            if all(row[CKEY] is None for row in rows):
                taken += rows
                return
        chunk = left if len(lanes) == 1 else min(left, CHUNK + 2 * left // len(lanes))
        heap: list[tuple[int, str, tuple[Any, ...], Lane]] = []
        for lane in lanes:
            row = lane.open(chunk)
            if row is not None:
                heap.append((row[RANK], row[ID], row, lane))
        heapify(heap)
        while heap and len(taken) < want:
            _, _, row, lane = heap[0]
            if len(self._parked) >= MAX_PARKED:
                self.next_in = 0
                return
            if lane.budgets and any(budget.left <= 0 for budget in lane.budgets):
                self._note_rate_wait(lane.budgets)
                heappop(heap)
                continue
            if row[CKEY] is None or self._key_is_free(row):
                for budget in lane.budgets:
                    budget.charge()
                taken.append(row)
                if len(taken) >= want:
                    return
            following = lane.next()
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, (following[RANK], following[ID], following, lane))

    def _key_is_free(self, row: tuple[Any, ...]) -> bool:
        """Whether one more job of this concurrency key may run. If not, park the job until a job of the key ends."""
        changes = self._changes
        key, limit = row[CKEY], row[CLIMIT]
        running = self._keys.get(key)
        if running is None:
            (running,) = changes.db.execute(CLAIM["running_with_key"], (changes.space, key, limit)).fetchone()
        if running >= limit:
            self._parked.append(row)
            return False
        self._keys[key] = running + 1
        return True

    def _write_parked(self) -> None:
        changes = self._changes
        if self._parked:
            changes.db.executemany(CLAIM["park"], [(row[NUM],) for row in self._parked])
            for row in self._parked:
                changes.count_transition(row[KIND], PENDING, PARKED)
                changes.ready.pop(row[NUM], None)

    def _write_budgets(self) -> None:
        changes = self._changes
        for queue, budget in self._queues.items():
            if budget.charged:
                changes.db.execute(CLAIM["charge_queue"], (budget.tat, changes.space, queue))
        for bucket, budget in self._buckets.items():
            if budget.charged:
                changes.db.execute(CLAIM["charge_rate"], (changes.space, bucket, budget.tat))

    def _lease(self, rows: list[tuple[Any, ...]]) -> tuple[list[Claimed], list[tuple[int, int]]]:
        changes = self._changes
        db, now = changes.db, changes.now
        first = changes.allocate_fences(len(rows))
        until = now + self._claim.lease
        nums = [row[NUM] for row in rows]
        if nums == list(range(nums[0], nums[0] + len(nums))):
            db.execute(CLAIM["take_range"], (first - nums[0], until, self._worker, now, nums[0], nums[-1]))
        else:
            db.execute(CLAIM["take"], (first, until, self._worker, now, json_text(nums)))
        for kind, times in Counter([row[KIND] for row in rows]).items():
            changes.count_transition(kind, PENDING, RUNNING, times)
        for row in rows:
            if row[FLAGS] & SPECIAL:
                if row[RUN]:
                    changes.record_start(row[RUN], row[ID], row[ATTEMPT] + 1, self._worker)
                if row[UNIQ] is not None:
                    free_unique(changes, row[UNIQ], row[ID], started=True)
        if changes.ready:
            for num in nums:
                changes.ready.pop(num, None)
        jobs = to_claimed(changes, rows, range(first, first + len(rows)), until, 1)
        return jobs, list(zip(nums, range(first, first + len(rows)), strict=True))


def to_claimed(
    changes: Changes, rows: Sequence[tuple[Any, ...]], fences: Iterable[int], until: Micros, begun: int
) -> list[Claimed]:
    """Convert rows to claimed jobs. The rows have the columns of the statement `first` in claim.sql; `fences` has one
    fence per row. `begun` is added to the stored number of attempts: 1 if the rows were read before the claim counted
    the new attempt, else 0.
    """
    wanted = sorted({row[KIND] for row in rows})
    found = (
        changes.db.execute(CLAIM["kind"], (wanted[0],))
        if len(wanted) == 1
        else changes.db.execute(CLAIM["kinds"], (json_text(wanted),))
    )
    kinds = {num: (type_, queue, parse_labels(labels)) for num, type_, queue, labels in found}
    waited = [row[NUM] for row in rows if row[FLAGS] & HAS_BLOCKERS]
    upstream = _upstream_results(changes, waited) if waited else {}
    jobs: list[Claimed] = []
    for row, fence in zip(rows, fences, strict=True):
        (
            _,
            num,
            id_,
            kind,
            attempt,
            args,
            meta,
            retries,
            snoozes,
            priority,
            chain,
            run,
            enqueued,
            due,
            flags,
            _,
            _,
            _,
        ) = row
        type_, queue, labels = kinds[kind]
        if flags & HAS_BODY:
            args, meta = changes.db.execute(CLAIM["body"], (num,)).fetchone()
        jobs.append(
            Claimed(
                id=id_,
                fence=fence,
                type=type_,
                queue=queue,
                args=args,
                meta=meta,
                attempt=attempt + begun,
                retries=retries,
                snoozes=snoozes,
                priority=priority,
                chain=chain or id_,
                run=run,
                labels=labels,
                enqueued=enqueued,
                due=due,
                until=until,
                upstream=upstream.get(num, NO_UPSTREAM) if upstream else NO_UPSTREAM,
            )
        )
    return jobs


def _upstream_results(changes: Changes, nums: list[int]) -> dict[int, dict[str, bytes | None]]:
    """Return the results of the blockers of these jobs, as {number of the job's row: {chain id: result}}. Usually the
    job has a copy of the result. If the outcome is OUTCOME_OK_SHARED, it has none: the result is read from the
    blocker's row, once for all dependents.
    """
    db = changes.db
    waits = db.execute(CLAIM["upstream"], (json_text(nums),)).fetchall()
    chains = {chain for _, chain, outcome, _ in waits if outcome == OUTCOME_OK_SHARED}
    shared = dict(db.execute(CLAIM["results"], (changes.space, json_text(list(chains))))) if chains else {}
    upstream: dict[int, dict[str, bytes | None]] = {}
    for num, chain, outcome, result in waits:
        upstream.setdefault(num, {})[chain] = shared[chain] if outcome == OUTCOME_OK_SHARED else result
    return upstream
