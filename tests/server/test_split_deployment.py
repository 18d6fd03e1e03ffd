"""Servers, schedulers and workers run as separate processes on one engine; runs finish when one of each is killed."""

from __future__ import annotations

import signal

import httpx
import pytest

from backstay.testing.waiting import eventually
from support.programs import programs

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
ALL_SUCCESS = dict.fromkeys(("build", "left", "right", "join"), "success")


@pytest.fixture(params=[pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("redis", "postgres")])
def engine_of_servers(request):
    return request.getfixturevalue(f"backstay_{request.param}").url


def test_a_split_deployment_survives_a_kill_of_one_process_of_each_kind(engine_of_servers, namespace, tmp_path):
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
        assert eventually(lambda: shown(whole, 1)["status"] == "success", 120), workers[0].output + workers[1].output
        assert statuses(whole, 1) == ALL_SUCCESS

        go.unlink()
        run = begin(0)
        assert eventually(lambda: build(run, 0)["status"] == "running", 60)
        killed = int(build(run, 0)["worker_id"].removeprefix("far-"))
        for victim in (workers[killed], servers[killed], schedulers[0]):
            victim.stop(signal.SIGKILL)
        go.touch()
        survivor = 1 - killed
        assert eventually(lambda: shown(run, survivor)["status"] not in ("queued", "running"), 120), workers[
            survivor
        ].output
        assert statuses(run, survivor) == ALL_SUCCESS
        assert build(run, survivor)["attempt"] == 2
        assert build(run, survivor)["worker_id"] == f"far-{survivor}"
        kinds = [event["event"] for event in client.get(f"{at[survivor]}/api/runs/{run}/events").json()]
        assert kinds.count("lease_expired") == 1
        assert kinds.count("completed") >= len(ALL_SUCCESS)
        assert kinds[-1] == "run_finished"
        another = begin(survivor)
        assert eventually(lambda: shown(another, survivor)["status"] == "success", 120), workers[survivor].output
