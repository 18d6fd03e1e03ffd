"""Several processes send the same operation to one job store at the same moment: it takes effect once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from backstay.engine.base import Ping
from backstay.job.exchange import Claim, ExchangeCommand
from backstay.job.ids import Ids
from backstay.job.model import NewJob
from backstay.job.store import JOB_STORE
from backstay.runtime.flows import run

pytestmark = [pytest.mark.race, pytest.mark.slow]


def short_or_soak(short, long):
    """Parametrize a test with its number of rounds: `short` in CI, `long` as a soak test."""
    soak = pytest.param(long, id="soak", marks=[pytest.mark.soak, pytest.mark.timeout(1800)])
    return pytest.mark.parametrize("rounds", [pytest.param(short, id="ci"), soak])


class Store:
    """Sends operations to the job store of a Backstay from this process."""

    def __init__(self, stay):
        core = stay._core
        self._port, self._engine = core.port, core.engine
        self._store = core.services.get(JOB_STORE)
        self._seq = 0

    def apply(self, verb, *args, **named):
        return run(self._port.apply(getattr(self._store, verb)(*args, **named)))

    def claim(self, want, labels=()):
        """Claim up to `want` jobs."""
        self._engine.correct_clock(run(self._port.apply(Ping())))
        self._seq += 1
        command = ExchangeCommand(
            shard=0,
            worker="counter",
            incarnation="one",
            channel=0,
            seq=self._seq,
            claim=Claim(want=want, labels=labels, lease=600_000_000),
            not_after=self._engine.now() + 60_000_000,
        )
        reply = self.apply("exchange", command)
        assert not reply.expired
        return reply.jobs

    def claim_all(self, **options):
        jobs = []
        while more := self.claim(500, **options):
            jobs += more
        return jobs


@pytest.fixture
def store(connect, shared_url):
    return Store(connect(shared_url))


@pytest.fixture
def race(shared_url, namespace, tmp_path):
    """`race(role, racers, rounds)` runs racers and returns the counts that each prints at its end."""

    def start(role, racers, rounds):
        (tmp_path / "barrier").write_bytes(bytes(8 * racers))
        program = [sys.executable, str(Path(__file__).with_name("job_racer.py"))]
        processes = [
            subprocess.Popen(
                [*program, role, shared_url, namespace, str(tmp_path), str(place), str(racers), str(rounds)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for place in range(racers)
        ]
        try:
            return [json.loads(racer.communicate(timeout=60 + rounds)[0]) for racer in processes]
        finally:
            for racer in processes:
                racer.kill()
                racer.communicate()

    return start


def new_ids(count):
    ids = Ids()
    return [ids.new(0) for _ in range(count)]


@short_or_soak(300, 10_000)
def test_two_blockers_that_end_at_the_same_moment_start_their_dependent_once(store, race, rounds):
    started = 0
    while started < rounds:
        batch = min(500, rounds - started)
        ids = new_ids(3 * batch)
        jobs, expected = [], {}
        for nth in range(batch):
            left, right, after = ids[3 * nth : 3 * nth + 3]
            jobs += [
                NewJob(id=left, type="left", queue="queue-0"),
                NewJob(id=right, type="right", queue="queue-1"),
                NewJob(id=after, type="after", after=(left, right)),
            ]
            expected[after] = {left: b"0", right: b"1"}
        store.apply("enqueue", 0, jobs)
        counts = race("finish_blockers", 2, batch)
        assert [racer["finished"] for racer in counts] == [batch, batch]
        assert sum(racer["ready"] for racer in counts) == batch
        claimed = store.claim_all()
        assert {job.id: job.upstream for job in claimed} == expected
        assert len(claimed) == batch
        started += batch


@short_or_soak(20, 500)
def test_fifty_concurrent_enqueues_of_a_unique_job_create_one(store, race, rounds):
    counts = race("enqueue_unique", 5, rounds)
    assert sum(racer["made"] for racer in counts) == rounds
    claimed = [job.id for job in store.claim_all()]
    assert len(claimed) == rounds
    for turn in range(rounds):
        assert len({id_ for racer in counts for id_ in racer["ids"][turn]}) == 1
    assert {id_ for racer in counts for ids in racer["ids"] for id_ in ids} == set(claimed)


@short_or_soak(50, 2000)
def test_five_schedulers_make_one_job_for_each_tick(store, race, rounds):
    counts = race("tick", 5, rounds)
    assert sum(racer["made"] for racer in counts) == rounds
    assert len(store.claim_all()) == rounds


@short_or_soak(20, 500)
def test_a_thousand_unclaimable_jobs_hide_no_claimable_job(store, race, rounds):
    store.apply("enqueue", 0, [NewJob(id=id_, type="gpu", labels=("gpu",), priority=9) for id_ in new_ids(1000)])
    counts = race("claim_behind_labels", 3, rounds)
    claimed = [id_ for racer in counts for id_ in racer["claimed"]]
    assert len(claimed) == len(set(claimed)) == rounds
    assert len(store.claim_all(labels=("gpu",))) == 1000
