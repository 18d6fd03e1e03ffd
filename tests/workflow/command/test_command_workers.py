"""Workers that allow commands, as separate processes on a shared engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from backstay import Backstay
from backstay.testing.waiting import eventually
from backstay.workflow import flows
from support.programs import is_alive

pytestmark = pytest.mark.slow

REDIS = pytest.param("redis", marks=pytest.mark.redis)
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)

FLOW = """
name: crashed
jobs:
  first:
    retries: 2
    backoff: 0.1
    labels: [special]
    run: |
      sleep 300 & other=$!
      echo "$$ $other $BACKSTAY_FENCE" >> pids
      if [ "$BACKSTAY_ATTEMPT" = 1 ]; then wait; fi
      kill "$other"
      wait "$other" || true
      echo "fence=$BACKSTAY_FENCE" >> "$BACKSTAY_OUTPUT"
      echo "token $DEPLOY_TOKEN"
      printf report > "$BACKSTAY_ARTIFACTS/report"
  second:
    needs: first
    if: needs.first.outputs.fence != ''
    run: |
      cat "$BACKSTAY_NEEDS_DIR/FIRST/report"
      echo " under $NEEDS_FIRST_FENCE"
"""


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'backstay.db'}?synchronous=normal"
    return request.getfixturevalue(f"backstay_{request.param}").url


@contextmanager
def worker(url: str, namespace: str, folder: Path, *args: str):
    process = subprocess.Popen(
        [sys.executable, "-m", "backstay", "worker", "--allow-commands", "--grace", "1s", "--lease", "1s", *args],
        cwd=folder,
        env=os.environ
        | {
            "BACKSTAY_URL": url,
            "BACKSTAY_NAMESPACE": namespace,
            "DEPLOY_TOKEN": "hunter22secret",
            "TMPDIR": str(folder),
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_killed_workers_command_ends_with_it_and_runs_again_on_another_worker(url, namespace, tmp_path):
    pids = tmp_path / "pids"

    async def begin() -> str:
        async with Backstay(url, namespace=namespace) as stay:
            await stay.workflows.put(FLOW)
            return (await stay.workflows.start("crashed", {})).id

    async def finish(run: str):
        async with Backstay(url, namespace=namespace) as stay:
            done = await flows.wait_finished(stay._core, run, 100)
            logs = {key: await flows.read_logs(stay._core, run, key, 0) for key in ("first", "second")}
            return done, {key: "".join(line.data for line in lines) for key, lines in logs.items()}

    run = asyncio.run(begin())
    with worker(url, namespace, tmp_path, "--labels", "special") as first:
        assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 3, 60)
        found = [int(pid) for pid in pids.read_text().split()[:2]]
        assert all(map(is_alive, found))
        first.send_signal(signal.SIGKILL)
        assert eventually(lambda: not any(map(is_alive, found)))
    with worker(url, namespace, tmp_path, "--labels", "special,more", "--secrets", "DEPLOY_TOKEN"):
        done, logs = asyncio.run(finish(run))
    assert done.status == "success", logs
    (_, _, early), (*_, late) = (line.split() for line in pids.read_text().splitlines())
    assert int(late) > int(early)
    assert logs["first"].endswith("token ***\n")
    assert logs["second"] == f"report under {late}\n"


def test_a_worker_without_a_program_must_allow_commands(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "backstay", "worker"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--allow-commands" in done.stderr
