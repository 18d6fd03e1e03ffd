"""How jobs get into the PostgreSQL store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from backstay.engine.base import Micros, PublishHint, Wake, steady
from backstay.engine.postgres.batches.hint_counters import announce
from backstay.engine.postgres.connection.wire import Statement
from backstay.errors import ConfigError, EngineUnavailable
from backstay.hub.base import LIFE_MICROS
from backstay.hub.protocol import SCHEDULED, channel, hint_key, new_hint_id, write_scheduled
from backstay.job.model import AGEING, Enqueued, NewJob, State
from backstay.job.stores.postgres.ending import UNKNOWN, Ends, Outcome, cancelled, heard, outcome_of, told
from backstay.job.stores.postgres.rows import (
    AWAITED,
    IN_RUN,
    SEPARATOR,
    WAITS,
    Part,
    ask,
    flags_of,
    inside,
    lane_of_job,
    whole,
)
from backstay.job.stores.postgres.statements import Bytes, Numbers, Texts, readable, storable

#: Seconds for which a process believes that a lane is known. Nobody forgets one that was used within a day.
LANES_KNOWN = 1800.0
#: A chain that goes on while one looks is looked for again, so often.
LOOKS = 20

Named = tuple[str, dict[str, Any]]


class Doom(NamedTuple):
    """Why a run is being cancelled, and what time it is: whatever is put into it ends at once."""

    reason: str
    now: Micros


#: No runs.
NONE: Mapping[str, Doom | None] = MappingProxyType({})


class Enqueueing:
    """Makes the statements, and remembers which lanes are known."""

    def __init__(self, space: str, prefix: str) -> None:
        self.space = space
        self._prefix = prefix
        self._lanes: dict[int, float] = {}

    def enqueue(
        self,
        jobs: Sequence[NewJob],
        now: Micros | None,
        wakes: list[Wake],
        *,
        lasts: bool = False,
        announce: bool = False,
    ) -> Part:
        """The whole verb. `lasts`: the transaction goes on afterwards. `announce`: announcements leave right behind the
        commit, in the same write.
        """
        behind = self._announcement(jobs, now) if announce else []
        if any(job.after or job.run or job.when == "any_failure" for job in jobs):
            ends = Ends(self.space, self._prefix, now, wakes)
            runs = yield from self.runs({job.run for job in jobs if job.run}, now)
            answers = yield from self.store(jobs, now, ends, runs=runs, lasts=lasts)
            yield whole(*(yield from ends.settle()))._replace(behind=behind)
            ends.publish_wakes()
            return answers
        states: dict[str, State] = {}
        known: dict[str, tuple[str, State]] = {}
        left = list(jobs)
        for _ in range(LOOKS):
            *_, made, undone = yield whole(*self.statements(left, now, lowers=not lasts))._replace(behind=behind)
            behind = []
            self.known(left)
            states |= _states(made, undone)
            left = [job for job in left if job.id not in states]
            if not left:
                break
            (rows,) = yield whole(("enqueue_known", _known(self.space, left)))
            known |= {asked: (id_, state) for asked, id_, state in rows if id_ is not None}
            left = [job for job in left if job.id not in known]  # whoever had its key has just ended
            if not left:
                break
        return [_enqueued(job, states, known) for job in jobs]

    def _announcement(self, jobs: Sequence[NewJob], now: Micros | None) -> list[Statement]:
        """Of those that start at once: for each type a counter, how many may come, and the message that calls them."""
        said: list[PublishHint] = []
        for kind, count in Counter(job.type for job in jobs if job.starts_at_once).items():
            hint = new_hint_id()
            place, payload = channel(self._prefix, SCHEDULED), write_scheduled(hint, kind)
            said.append(PublishHint(hint_key(self._prefix, hint), count, LIFE_MICROS, place, payload))
        return [announce(said, now)] if said else []

    def store(
        self,
        jobs: Sequence[NewJob],
        now: Micros | None,
        ends: Ends,
        *,
        flags: int = 0,
        chain: str = "",
        follows: bool = False,
        runs: Mapping[str, Doom | None] = NONE,
        lasts: bool = False,
    ) -> Part:
        """The same inside a transaction: also jobs that wait for others, jobs of `runs` (as `runs()` answers), and jobs
        that another makes with its end (`follows`; `chain`: the next of its chain).

        Whoever ends a job must not be refused because of these: a unique key gives way if another has it, and an
        unknown blocker counts as one that failed.
        """
        *_, made, undone = yield inside(
            *self.statements(jobs, now, flags=flags, chain=chain, follows=follows, runs=runs, lowers=not lasts)
        )
        states = _states(made, undone)
        new = {id_ for id_, _, _ in made} - {id_ for id_, _ in undone}
        self.count_in(jobs, {id_: state for id_, state, _ in made if id_ in new}, ends, runs)
        keyed = [job.id for job in jobs if follows and job.unique is not None and job.id in new]
        if keyed:
            yield inside(("enqueue_keyless", {"space": self.space, "ids": Texts(keyed)}))
        ends.ready.update((id_, type_) for id_, state, type_ in made if state == "pending" and id_ in new)
        waiting = [job for job in jobs if job.id in new and flags_of(job) & WAITS]
        doomed = {job.id: doom for job in jobs if job.id in new and (doom := runs.get(job.run))}
        if waiting:
            yield from self._wait(waiting, ends, follows=follows, lasts=lasts, doomed=doomed)
        if doomed:
            yield from ends.end([cancelled(id_, doom.reason, 0, doom.now) for id_, doom in sorted(doomed.items())])
            ends.transitions.forget(doomed)
        if waiting or doomed:
            rows = yield from ask("enqueue_known", _known(self.space, [job for job in jobs if job.id in new]))
            states.update((asked, state) for asked, _, state in rows)
        others = [job for job in jobs if job.id not in states]
        known = {}
        if others:
            rows = yield from ask("enqueue_known", _known(self.space, others))
            known = {asked: (id_, state) for asked, id_, state in rows if id_ is not None}
        return [_enqueued(job, states, known) for job in jobs]

    def count_in(self, jobs: Sequence[NewJob], states: dict[str, State], ends: Ends, runs: Collection[str]) -> None:
        """Jobs of runs that are new."""
        for job in jobs:
            if job.run in runs and job.id in states:
                ends.moved(IN_RUN | flags_of(job), job.run, job.id, "", states[job.id])

    def runs(self, ids: Iterable[str], now: Micros | None) -> Part:
        """Those of these runs that there are; with why they are being cancelled, or None."""
        wanted = sorted(ids)
        if not wanted:
            return {}
        rows = yield from ask("run_known", {"space": self.space, "ids": Texts(wanted)})
        return {id_: Doom(readable(why), now or time) if ends else None for id_, ends, why, time in rows}

    def _wait(
        self, jobs: Sequence[NewJob], ends: Ends, *, follows: bool, lasts: bool, doomed: Collection[str] = ()
    ) -> Part:
        yield inside(("after_store", after_columns(self.space, jobs)))
        over = yield from self.over({chain for job in jobs for chain in job.after}, follows=follows, lasts=lasts)
        rows: list[Any] = []
        if over:
            rows = yield from ask("after_end", told(self.space, over))
        stay = {job.id for job in jobs} - set(doomed)
        skipped = yield from ends.start([pair for pair in heard(rows) if pair[0] in stay], over, stay)
        yield from ends.end(skipped)

    def over(self, chains: Iterable[str], *, follows: bool, lasts: bool = False) -> Part:
        """Those of these chains that have ended, and what they came to; the others cannot end until this transaction
        does, and whoever ends them then looks for those who wait.
        """
        unsettled = sorted(set(chains))
        over: dict[str, Outcome] = {}
        for _ in range(LOOKS):
            if not unsettled:
                return over
            values: dict[str, Any] = {"space": self.space, "chains": Texts(unsettled)}
            if lasts:
                rows, ended = yield inside(("after_share", values), ("after_ended", values))
                live = {chain for chain, _ in rows}
                own = Texts(sorted(chain for chain, flags in rows if not flags & AWAITED))
                if own.items:
                    yield inside(*self._marking(own))
            else:
                _, rows, ended = yield inside(*self._marking(values["chains"]), ("after_ended", values))
                live = {chain for (chain,) in rows}
            known = {chain for chain, *_ in ended}
            for chain, state, result, flags, blamed, followed_by in ended:
                if chain not in live and not followed_by:
                    over[chain] = outcome_of(state, flags, blamed, result)
            unknown = [chain for chain in unsettled if chain not in live and chain not in known]
            if follows:
                over.update((chain, UNKNOWN) for chain in unknown)
            elif unknown:
                raise ConfigError(
                    f"after= names {unknown[0]!r}, and there is no such job (any more): enqueue what is waited for"
                    " first, and let it be kept for long enough"
                )
            unsettled = [chain for chain in unsettled if chain not in live and chain not in over]
        raise EngineUnavailable(f"the chain {unsettled[0]!r} went on faster than one could look; try again")

    def _marking(self, chains: Texts) -> list[Named]:
        """Hold the jobs at the ends of these chains, and mark that they are waited for."""
        values = {"space": self.space, "chains": chains}
        return [("after_grip", {**values, "flag": 0}), ("after_mark", {**values, "flag": AWAITED})]

    def statements(
        self,
        jobs: Sequence[NewJob],
        now: Micros | None,
        *,
        flags: int = 0,
        chain: str = "",
        follows: bool = False,
        runs: Collection[str] = (),
        own: bool = False,
        lowers: bool = True,
    ) -> list[Named]:
        """What stores jobs, in order; the last two answer what is new, and what of it had ended before. `own`: they
        wait for chains of their own run alone. `lowers`: floors give way, and are held until the transaction ends.
        """
        made: list[Named] = []
        lanes = [lane_of_job(self.space, job, in_run=job.run in runs) for job in jobs]
        new = self._lanes_of(dict(zip(lanes, jobs, strict=True)), runs)
        if new:
            made.append(("enqueue_lanes", {"space": self.space, "now": now, **new}))
        unique = [(job.id, job.unique) for job in jobs if job.unique is not None]
        if unique:
            values = {
                "keys": Texts([wanted.key for _, wanted in unique]),
                "ids": Texts([id_ for id_, _ in unique]),
                "windows": Numbers([wanted.window if wanted.scope == "window" else 0 for _, wanted in unique]),
            }
            made.append(("enqueue_unique", {"space": self.space, "now": now, **values}))
        columns = self._columns(jobs, lanes, flags, chain, runs, own)
        if lowers and any(job.priority > 0 or job.due for job in jobs):
            names = "space", "ageing", "queues", "lanes", "dues", "delays", "priorities"
            made.append(("enqueue_floor", {"now": now, **{name: columns[name] for name in names}}))
        made.append(("enqueue", {**columns, "now": now, "follows": follows}))
        made.append(("enqueue_undo", {"space": self.space, "ids": Texts([job.id for job in jobs])}))
        return made

    def known(self, jobs: Sequence[NewJob]) -> None:
        """Their lanes were stored."""
        until = steady() + LANES_KNOWN
        for job in jobs:
            self._lanes.setdefault(lane_of_job(self.space, job), until)
        if len(self._lanes) > LOOKS * 1000:
            self._lanes.clear()

    def _lanes_of(self, used: dict[int, NewJob], runs: Collection[str]) -> dict[str, Any] | None:
        """Of these lanes, each with a job in it, those that may not be stored."""
        time = steady()
        lanes: dict[int, NewJob] = {}
        for lane, job in used.items():
            if self._lanes.get(lane, 0.0) < time:
                self._lanes.pop(lane, None)
                lanes[lane] = job
        if not lanes:
            return None
        new = lanes.values()
        return {
            "lanes": Numbers(list(lanes)),
            "queues": Texts([job.queue for job in new]),
            "labels": Texts([SEPARATOR.join(job.labels) for job in new]),
            "buckets": Texts([job.rate.bucket if job.rate is not None else "" for job in new]),
            "runs": Numbers([int(job.run in runs) for job in new]),
            "specials": Numbers([int(job.rate is not None or job.concurrency is not None) for job in new]),
        }

    def _columns(
        self, jobs: Sequence[NewJob], lanes: list[int], flags: int, chain: str, runs: Collection[str], own: bool
    ) -> dict[str, Any]:
        for job in jobs:
            if job.labels and any(SEPARATOR in label for label in job.labels):
                raise ConfigError(f"a label has no control characters; job {job.id!r} has one")
        space = self.space
        return {
            "space": space,
            "ageing": AGEING,
            "ids": Texts([j.id for j in jobs]),
            "types": Texts([storable(j.type) for j in jobs]),
            "queues": Texts([j.queue for j in jobs]),
            "labels": Texts([SEPARATOR.join(j.labels) for j in jobs]),
            "lanes": Numbers(lanes),
            "args": Bytes([j.args for j in jobs]),
            "metas": Bytes([j.meta for j in jobs]),
            "priorities": Numbers([j.priority for j in jobs]),
            "dues": Numbers([j.due for j in jobs]),
            "delays": Numbers([j.delay for j in jobs]),
            "retries": Numbers([j.retries for j in jobs]),
            "chains": Texts([chain or j.chain or j.id for j in jobs]),
            "runs": Texts([j.run for j in jobs]),
            "keeps": Numbers([j.keep for j in jobs]),
            "keeps_failed": Numbers([j.keep_failed for j in jobs]),
            "flags": Numbers([flags | flags_of(j) | (IN_RUN if j.run in runs else 0) for j in jobs]),
            "unique_keys": Texts([j.unique.key if j.unique is not None else "" for j in jobs]),
            "unique_scopes": Texts([j.unique.scope if j.unique is not None else "" for j in jobs]),
            "unique_windows": Numbers([j.unique.window if j.unique is not None else 0 for j in jobs]),
            "keys": Texts([j.concurrency.key if j.concurrency is not None else "" for j in jobs]),
            "key_limits": Numbers([j.concurrency.limit if j.concurrency is not None else 0 for j in jobs]),
            "buckets": Texts([j.rate.bucket if j.rate is not None else "" for j in jobs]),
            "rate_intervals": Numbers([j.rate.interval if j.rate is not None else 0 for j in jobs]),
            "rate_bursts": Numbers([j.rate.burst if j.rate is not None else 0 for j in jobs]),
            "conditions": Texts([j.when for j in jobs]),
            "upstreams": Texts([SEPARATOR.join(dict.fromkeys(j.after)) if own else "" for j in jobs]),
        }


def after_columns(space: str, waiting: Sequence[NewJob], *, own: bool = False) -> dict[str, Any]:
    """What after_store.sql wants. `own`: the chains are of the jobs' own run."""
    pairs = [(job.id, chain) for job in waiting for chain in dict.fromkeys(job.after)]
    doubters = [job.id for job in waiting if job.when == "any_failure"]
    jobs, chains = zip(*pairs, strict=True) if pairs else ((), ())
    return {"space": space, "own": own, "jobs": Texts(jobs), "chains": Texts(chains), "doubters": Texts(doubters)}


def _states(made: list[Any], undone: list[Any]) -> dict[str, State]:
    states: dict[str, State] = {id_: state for id_, state, _ in made}
    states.update(undone)
    return states


def _known(space: str, jobs: Sequence[NewJob]) -> dict[str, Any]:
    keys = [job.unique.key if job.unique is not None else "" for job in jobs]
    return {"space": space, "ids": Texts([job.id for job in jobs]), "keys": Texts(keys)}


def _enqueued(job: NewJob, states: dict[str, State], known: dict[str, tuple[str, State]]) -> Enqueued:
    if job.id in states:
        return Enqueued(job.id, states[job.id])
    id_, state = known.get(job.id, (job.id, "completed"))
    return Enqueued(id_, state, deduplicated=id_ != job.id)
