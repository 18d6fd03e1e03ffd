"""Servers whose engine is killed and restarted, and servers that share an engine."""

from __future__ import annotations

import pytest

from backstay.server.settings import ServerSettings
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import eventually
from support.server.calls import command, create, finish, listening, start
from support.server.site import serving
from support.servers import running

pytestmark = [pytest.mark.redis, pytest.mark.chaos, pytest.mark.slow]


@pytest.fixture
def redis():
    """A Redis for this test alone that keeps its data over a restart."""
    with running(RedisServer(port=reserve_port(), aof=True)) as server:
        yield server


def test_a_killed_engine_is_503_and_loses_nothing(redis):
    settings = ServerSettings(access_log=False, engine_timeout=2.0)
    with serving(redis.url, settings=settings) as site:
        create(site)
        run = start(site).json()["run_id"]
        build = command(site)
        with listening(site, f"/api/runs/{run}/events/stream") as stream:
            seen = [next(stream)[1]]
            redis.kill()
            assert eventually(lambda: site.get("/readyz").status_code == 503, 30)
            assert site.get("/healthz").status_code == 200
            away = site.get("/api/queues")
            assert away.status_code == 503
            assert away.headers["retry-after"] == "1"
            assert str(redis.port) not in away.text
            assert site.post("/api/jobs/claim", {"worker_id": "w"}).status_code == 503
            redis.start()
            assert eventually(lambda: site.get("/readyz").status_code == 200, 60)
            # The open stream survives the restart and delivers each event once.
            assert finish(site, build, file="a").status_code == 200
            finish(site, command(site, labels=["linux"]))
            finish(site, command(site))
            seen += [id_ for kind, id_, _ in stream if kind not in {"end", ":"}]
        assert seen == [str(n + 1) for n in range(len(seen))]
        assert site.get(f"/api/runs/{run}").json()["status"] == "success"


def test_servers_on_one_engine_accept_each_others_leases_and_locks(redis):
    with serving(redis.url) as one, serving(redis.url) as two:
        create(one)
        run = start(two).json()["run_id"]
        build = command(one)
        lease = build["lease"]["lease_id"]
        assert two.post(f"/api/jobs/{lease}/heartbeat").json() == {"cancelled": False}
        two.post(f"/api/jobs/{lease}/logs", {"chunks": [{"sequence": 0, "data": "a", "timestamp_ms": 1}]})
        one.post(f"/api/jobs/{lease}/logs", {"chunks": [{"sequence": 1, "data": "b", "timestamp_ms": 2}]})
        two.post(f"/api/jobs/{lease}/logs", {"chunks": [{"sequence": 2, "data": "c", "timestamp_ms": 3}]})
        with listening(one, f"/api/runs/{run}/events/stream") as stream:
            assert finish(two, build, file="a").json() == finish(one, build, file="a").json()
            kinds = []
            while ("completed", "build") not in kinds:
                kind, _, data = next(stream)
                kinds.append((kind, data["job_id"]))
        chunks = one.get("/api/workflows/ci/jobs/build/logs").json()
        assert [chunk["data"] for chunk in chunks] == ["a", "b", "c"]
        assert command(two, labels=["linux"])["job"]["upstream_outputs"] == {"build": {"file": "a", "wheel": "a.whl"}}
        first = one.post("/api/locks/x/acquire", {"request_id": "a"}).json()
        waiting = one.post("/api/locks/x/acquire", {"request_id": "b", "poll_seconds": 0.1})
        assert waiting.status_code == 202
        two.post("/api/locks/x/release", {"lock_id": first["lock_id"]})
        assert two.post("/api/locks/x/acquire", {"request_id": "b", "poll_seconds": 10}).json()["acquired"]
