"""Processes that meet at the same moment on one job store: what must happen once happens once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from backstay.engine.base import Ping
from backstay.job.ids import Ids
from backstay.job.model import Claim, ExchangeCommand, NewJob
from backstay.job.store import JOB_STORE
from backstay.runtime.flows import run

pytestmark = [pytest.mark.race, pytest.mark.slow]


def short_or_soak(short, long):
    soak = pytest.param(long, id="soak", marks=[pytest.mark.soak, pytest.mark.timeout(1800)])
    return pytest.mark.parametrize("rounds", [pytest.param(short, id="ci"), soak])


class Store:
    """The store of a Backstay, asked from this process."""

    def __init__(self, stay):
        core = stay._core
        self._port, self._engine = core.port, core.engine
        self._store = core.services.get(JOB_STORE)
        self._seq = 0

    def ask(self, verb, *args, **named):
        return run(self._port.apply(getattr(self._store, verb)(*args, **named)))

    def ask_engine(self, op):
        return run(self._port.apply(op))

    def claim(self, want, labels=()):
        """Up to so many."""
        self._engine.correct_clock(self.ask_engine(Ping()))
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
        reply = self.ask("exchange", command)
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
    """Run the given number of racers in one role and return what each printed at its end."""

    def start(role, racers, rounds):
        (tmp_path / "line").write_bytes(bytes(8 * racers))
        program = [sys.executable, str(Path(__file__).with_name("job_racer.py"))]
        crowd = [
            subprocess.Popen(
                [*program, role, shared_url, namespace, str(tmp_path), str(place), str(racers), str(rounds)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for place in range(racers)
        ]
        try:
            return [json.loads(racer.communicate(timeout=60 + rounds)[0]) for racer in crowd]
        finally:
            for racer in crowd:
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
        store.ask("enqueue", 0, jobs)
        told = race("finish_blockers", 2, batch)
        assert [racer["finished"] for racer in told] == [batch, batch]
        assert sum(racer["ready"] for racer in told) == batch
        taken = store.claim_all()
        assert {job.id: job.upstream for job in taken} == expected
        assert len(taken) == batch
        started += batch


@short_or_soak(20, 500)
def test_fifty_concurrent_enqueues_of_a_unique_job_create_one(store, race, rounds):
    told = race("ask_for_one", 5, rounds)
    assert sum(racer["made"] for racer in told) == rounds
    taken = [job.id for job in store.claim_all()]
    assert len(taken) == rounds
    for turn in range(rounds):
        assert len({id_ for racer in told for id_ in racer["answers"][turn]}) == 1
    assert {id_ for racer in told for answer in racer["answers"] for id_ in answer} == set(taken)


@short_or_soak(50, 2000)
def test_five_schedulers_make_one_job_for_each_tick(store, race, rounds):
    told = race("tick", 5, rounds)
    assert sum(racer["made"] for racer in told) == rounds
    assert len(store.claim_all()) == rounds


@short_or_soak(20, 500)
def test_a_thousand_unclaimable_jobs_hide_no_claimable_job(store, race, rounds):
    store.ask("enqueue", 0, [NewJob(id=id_, type="gpu", labels=("gpu",), priority=9) for id_ in new_ids(1000)])
    told = race("take_one", 3, rounds)
    taken = [id_ for racer in told for id_ in racer["taken"]]
    assert len(taken) == len(set(taken)) == rounds
    assert len(store.claim_all(labels=("gpu",))) == 1000
