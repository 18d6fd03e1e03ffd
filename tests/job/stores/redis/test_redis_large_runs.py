"""Large runs on Redis: ten thousand jobs, limits of size, and the number of commands per job."""

from __future__ import annotations

import re

import pytest
from redis_store_client import keys_of

from backstay.errors import ConfigError
from backstay.job.model import Concurrency
from backstay.job.run_model import NewRun
from backstay.testing.servers.redis import say
from support.store_client import finish

pytestmark = pytest.mark.redis


@pytest.fixture
def client(clients, backstay_redis):
    """A client with a long timeout: an exchange with ten thousand jobs takes seconds on a busy machine."""
    return clients(f"{backstay_redis.url}?timeout=60")


def calls(server):
    """Return how often each command was executed, by scripts or directly."""
    stats = say(server, "INFO", "commandstats").decode()
    return {name: int(number) for name, number in re.findall(r"cmdstat_([^:]+):calls=(\d+)", stats)}


def count_commands(server, work):
    """Return the number of commands that scripts execute during `work()`."""
    before = calls(server)
    work()
    after = calls(server)
    return sum(after[name] - before.get(name, 0) for name in after if name not in ("evalsha", "eval", "info"))


def test_a_run_of_ten_thousand_jobs_starts_in_one_command_and_finishes(client):
    run, ids = client.start_fan(9_998)
    assert client.apply("get_run", run).counts == {"pending": 1, "blocked": 9_999}
    done = client.drain(at_once=1000)
    assert [job.id for job in done] == list(ids.values())
    assert all(job.upstream == {ids["first"]: b"r"} for job in done[1:-1])
    assert done[-1].upstream == dict.fromkeys(list(ids.values())[1:-1], b"r")
    found = client.apply("get_run", run)
    assert (found.status, found.counts) == ("success", {"completed": 10_000})
    events = [event for after in range(0, found.events, 7000) for event in client.apply("run_events", run, after, 7000)]
    assert [event.seq for event in events] == list(range(1, 30_003))


def test_ten_thousand_jobs_are_cancelled_and_retried_in_one_command(client):
    run, ids = client.start_fan(9_998)
    client.finish(client.claim()[0])
    found = client.apply("cancel_run", run, "enough")
    assert (found.status, found.counts) == ("cancelled", {"completed": 1, "cancelled": 9_999})
    assert client.claim(10) == ()
    found = client.apply("rerun_failed", run)
    assert (found.status, found.counts) == ("running", {"completed": 1, "pending": 9_998, "blocked": 1})
    assert len(client.drain(at_once=1000)) == 9_999
    assert client.apply("get_run", run).status == "success"
    assert len(client.apply("get", ids["last"]).after) == 9_998


def test_a_run_that_is_too_large_is_refused(client):
    run = client.ids.new(0)
    with pytest.raises(ConfigError, match="at most 20000 are allowed"):
        client.apply("start_run", NewRun(id=run, workflow="w", jobs=tuple(client.job(run=run) for _ in range(20_001))))
    assert client.apply("get_run", run) is None


def test_names_too_long_for_a_record_are_refused(client):
    run, long = client.ids.new(0), "0-" + "1" * 300
    for new in (
        NewRun(id=run, workflow="w", jobs=(client.job(id=long, run=run),)),
        NewRun(id=run, workflow="w" * 70_000),
        NewRun(id=long, workflow="w", jobs=(client.job(run=long),)),
    ):
        with pytest.raises(ConfigError, match="at most"):
            client.apply("start_run", new)
    client.start_run({"a": ([],)})
    (job,) = client.claim()
    with pytest.raises(ConfigError, match="at most"):
        client.finish(job, adds=(client.job(id=long),))
    assert client.apply("get", job.id).state == "running"


@pytest.mark.parametrize(("work", "most"), [("plain", 0.26), ("fan", 0.45)])
def test_the_lifecycle_of_a_job_takes_few_redis_commands(client, backstay_redis, work, most):
    """Jobs are claimed and completed a hundred at a time; `most` is the allowed number of commands per job."""
    if work == "plain":
        client.apply("enqueue", 0, [client.job() for _ in range(2000)])
    else:
        client.start_fan(2000)
    assert count_commands(backstay_redis, client.drain) / 2000 <= most


def test_the_cost_of_a_finish_does_not_grow_with_the_run(client, backstay_redis):
    costs = []
    for width in (20, 2000):
        client.start_fan(width)
        client.finish(client.claim()[0])
        first, *_ = client.claim(width)
        costs.append(count_commands(backstay_redis, lambda first=first: client.finish(first)))
        client.claim(width)
    assert costs[0] == costs[1]


def test_a_result_is_not_copied_to_its_dependents(client, backstay_redis, namespace):
    _, ids = client.start_fan(100)
    client.finish(client.claim()[0], result=b"x" * 100_000)
    jobs = client.claim(100)
    assert {len(job.upstream[ids["first"]]) for job in jobs} == {100_000}
    found = keys_of(backstay_redis, namespace)
    sizes = [int(say(backstay_redis, "MEMORY", "USAGE", key, "SAMPLES", "0")) for key in found]
    assert sum(sizes) < 500_000


def test_the_end_of_a_run_whose_jobs_share_a_key_costs_a_few_commands_for_each(client, backstay_redis):
    """The cost per job must not grow with their number: the server runs nothing else during the script."""
    width = 1000
    run, _ = client.start_run({f"m{nth}": ([], {"concurrency": Concurrency("few", 1)}) for nth in range(width)})
    client.claim(width)  # starts one job and parks the others
    assert count_commands(backstay_redis, lambda: client.apply("cancel_run", run, "no more")) < 20 * width


def test_many_ends_of_one_key_cost_a_few_commands_for_each(client, backstay_redis):
    width, key = 200, Concurrency("few", 200)
    client.apply("enqueue", 0, [client.job(concurrency=key) for _ in range(3 * width)])
    jobs = client.claim(3 * width)
    assert len(jobs) == width
    finishes = [finish(job) for job in jobs]
    assert count_commands(backstay_redis, lambda: client.exchange(finishes)) < 20 * width
