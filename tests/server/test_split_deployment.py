"""Servers, schedulers and workers as processes of their own on one engine: it goes on when one of each is killed."""

from __future__ import annotations

import signal

import httpx
import pytest

from backstay.testing.waiting import eventually
from programs import programs

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

SLOW = """\
name: slow
jobs:
  build:
    retries: 5
    run: |
      echo "by=$BACKSTAY_ATTEMPT" >> $BACKSTAY_OUTPUT
      while [ ! -e '{go}' ]; do sleep 0.05; done
  left: {needs: build, run: echo left}
  right: {needs: build, if: needs.build.outputs.by != '', run: echo right}
  join: {needs: [left, right], run: echo join}
"""
ALL_WELL = dict.fromkeys(("build", "left", "right", "join"), "success")


@pytest.fixture(params=[pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("redis", "postgres")])
def engine_of_servers(request):
    return request.getfixturevalue(f"backstay_{request.param}").url


def test_a_split_deployment_goes_on_when_one_of_each_is_killed(engine_of_servers, namespace, tmp_path):
    go = tmp_path / "go"
    go.touch()
    common = ("--url", engine_of_servers, "--namespace", namespace)
    with programs() as start, httpx.Client(timeout=30) as client:
        servers = [start(*common, "serve", "--port", "0", "--api-only", "--no-access-log") for _ in range(2)]
        schedulers = [start(*common, "scheduler", "--lease", "2s") for _ in range(2)]
        at = [server.waits_for(r"listening on (http://\S+)")[1] for server in servers]
        workers = [
            start("worker", "--server", url, "--allow-commands", "--lease", "2s", "--name", f"far-{nth}")
            for nth, url in enumerate(at)
        ]
        kind = {"content-type": "application/yaml"}
        assert (
            client.post(f"{at[0]}/api/workflows", content=SLOW.replace("{go}", str(go)), headers=kind).status_code
            == 201
        )

        def begin(server):
            return client.post(f"{at[server]}/api/workflows/slow/run", json={}).json()["run_id"]

        def shown(run, server):
            return client.get(f"{at[server]}/api/runs/{run}").json()

        def statuses(run, server):
            return {job["id"]: job["status"] for job in shown(run, server)["jobs"]}

        def build(run, server):
            return next(job for job in shown(run, server)["jobs"] if job["id"] == "build")

        whole = begin(0)
        assert eventually(lambda: shown(whole, 1)["status"] == "success", 120), workers[0].said + workers[1].said
        assert statuses(whole, 1) == ALL_WELL

        go.unlink()
        run = begin(0)
        assert eventually(lambda: build(run, 0)["status"] == "running", 60)
        dies = int(build(run, 0)["worker_id"].removeprefix("far-"))
        for victim in (workers[dies], servers[dies], schedulers[0]):
            victim.stop(signal.SIGKILL)
        go.touch()
        lives = 1 - dies
        assert eventually(lambda: shown(run, lives)["status"] not in ("queued", "running"), 120), workers[lives].said
        assert statuses(run, lives) == ALL_WELL
        assert build(run, lives)["attempt"] == 2
        assert build(run, lives)["worker_id"] == f"far-{lives}"
        told = [event["event"] for event in client.get(f"{at[lives]}/api/runs/{run}/events").json()]
        assert told.count("lease_expired") == 1
        assert told.count("completed") >= len(ALL_WELL)
        assert told[-1] == "run_finished"
        another = begin(lives)
        assert eventually(lambda: shown(another, lives)["status"] == "success", 120), workers[lives].said
