"""After a server or engine failure in the middle of an operation, no run starts twice and no event is sent twice."""

from __future__ import annotations

import pytest

from backstay.errors import EngineUnavailable
from backstay.job.ids import shard_of
from backstay.server.events.sources import AllRunsSource, RunSource, parse_position
from backstay.workflow import flows
from support.server.calls import create, finish_ci, listening, start
from support.server.site import serving


@pytest.fixture
def two_shards(backstay_redis, namespace):
    with serving(backstay_redis.url, namespace=namespace, shards=2) as site:
        create(site)
        while len({shard_of(run["id"]) for run in site.get("/api/runs").json()}) < 2:
            start(site)
        yield site


@pytest.mark.redis
def test_the_event_stream_resumes_in_each_shard(two_shards):
    with listening(two_shards, "/api/events", params={"after": "0"}) as stream:
        count = sum(run["events"] for run in two_shards.get("/api/runs").json())
        whole = [next(stream) for _ in range(count)]
    positions = [(data["run_id"], data["sequence"]) for _, _, data in whole]
    assert len(set(positions)) == count
    seen, last = [], whole[0][1]
    seen.append(positions[0])
    while len(seen) < count:  # a client whose connection breaks after each event
        with listening(two_shards, "/api/events", last=last) as stream:
            _, last, data = next(stream)
            seen.append((data["run_id"], data["sequence"]))
    assert sorted(seen) == sorted(positions)


def fail_once(monkeypatch, store, verb, when=lambda *_: True):
    """Make the first matching call of a store method raise EngineUnavailable."""
    real = getattr(store, verb)
    left = [1]

    def fail_then_call(*args, **named):
        if left and when(*args):
            left.clear()
            raise EngineUnavailable("it is away")
        return real(*args, **named)

    monkeypatch.setattr(store, verb, fail_then_call)


@pytest.mark.redis
def test_an_engine_failure_between_shards_loses_no_event(two_shards, monkeypatch):
    server = two_shards.server
    count = sum(run["events"] for run in two_shards.get("/api/runs").json())
    source = AllRunsSource(server, server.event_renderer, parse_position("0", 2))
    fail_once(monkeypatch, server.store, "events", lambda shard, *_: shard == 1)
    with pytest.raises(EngineUnavailable):
        two_shards.do(source.poll())
    assert len(two_shards.do(source.poll()).events) == count


def test_an_event_names_its_workflow_after_an_engine_failure(any_site, monkeypatch):
    create(any_site)
    run = start(any_site).json()["run_id"]
    server = any_site.server
    for source in (
        RunSource(server, server.event_renderer, run, 0),
        AllRunsSource(server, server.event_renderer, parse_position("0", 1)),
    ):
        server.run_lookup._plans.clear()
        fail_once(monkeypatch, server.store, "get_run")
        with pytest.raises(EngineUnavailable):
            any_site.do(source.poll())
        page = any_site.do(source.poll())
        assert len(page.events) == any_site.get(f"/api/runs/{run}").json()["events"]
        assert all(b'"workflow_id":"ci"' in event for event in page.events)
    finish_ci(any_site)


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_start_interrupted_on_the_server_leaves_one_run(any_site, monkeypatch, dies):
    create(any_site)
    real = flows.start

    async def start_and_die(core, new):
        monkeypatch.setattr(flows, "start", real)
        if dies == "after":
            await real(core, new)
        raise EngineUnavailable("it is away")

    monkeypatch.setattr(flows, "start", start_and_die)
    assert start(any_site, request_id="r1").status_code == 503
    run = start(any_site, request_id="r1")
    assert run.status_code == 202
    assert start(any_site, request_id="r1").json()["run_id"] == run.json()["run_id"]
    assert [one["id"] for one in any_site.get("/api/runs").json()] == [run.json()["run_id"]]


def test_backoff_and_timeout_of_a_runs_job_reach_http_workers(tmp_path):
    async def prepare(server):
        @server.stay.job(retries=3, backoff=7, timeout=9)
        async def dig() -> None: ...

        @server.stay.workflow
        def hole(flow):
            flow.add(dig)
            flow.add(dig.options(backoff=8, timeout=None))

    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", prepare=prepare) as site:
        assert start(site, "hole").status_code == 202
        got = {job["job_id"]: job for job in (site.claim()["job"], site.claim()["job"])}
        assert (got["dig"]["timeout_secs"], got["dig"]["timeout_ms"]) == (9, 9000)
        fixed = {"Fixed": {"delay_secs": 7, "delay_ms": 7000}}
        assert got["dig"]["retry_policy"] == {"max_retries": 3, "backoff": fixed}
        assert (got["dig-2"]["timeout_secs"], got["dig-2"]["timeout_ms"]) == (0, 0)
        assert got["dig-2"]["retry_policy"]["backoff"]["Fixed"]["delay_secs"] == 8
