"""Workers with commands as processes of their own, on engines that they share."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.testing.waiting import eventually
from holdfast.workflow import flows

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
      echo "$$ $other $HOLDFAST_FENCE" >> pids
      if [ "$HOLDFAST_ATTEMPT" = 1 ]; then wait; fi
      kill "$other"
      wait "$other" || true
      echo "fence=$HOLDFAST_FENCE" >> "$HOLDFAST_OUTPUT"
      echo "token $DEPLOY_TOKEN"
      printf report > "$HOLDFAST_ARTIFACTS/report"
  second:
    needs: first
    if: needs.first.outputs.fence != ''
    run: |
      cat "$HOLDFAST_NEEDS_DIR/FIRST/report"
      echo " under $NEEDS_FIRST_FENCE"
"""


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'holdfast.db'}?synchronous=normal"
    return request.getfixturevalue(f"holdfast_{request.param}").url


@contextmanager
def worker(url: str, namespace: str, folder: Path, *args: str):
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "--allow-commands", "--grace", "1s", "--lease", "1s", *args],
        cwd=folder,
        env=os.environ
        | {
            "HOLDFAST_URL": url,
            "HOLDFAST_NAMESPACE": namespace,
            "DEPLOY_TOKEN": "hunter22secret",
            "TMPDIR": str(folder),
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
    return False


def test_a_killed_workers_command_ends_with_it_and_runs_again_elsewhere(url, namespace, tmp_path):
    pids = tmp_path / "pids"

    async def begin() -> str:
        async with Holdfast(url, namespace=namespace) as hf:
            await hf.workflows.put(FLOW)
            return (await hf.workflows.start("crashed", {})).id

    async def finish(run: str):
        async with Holdfast(url, namespace=namespace) as hf:
            done = await flows.ended(hf._core, run, 100)
            logs = {key: await flows.logs(hf._core, run, key, 0) for key in ("first", "second")}
            return done, {key: "".join(line.data for line in lines) for key, lines in logs.items()}

    run = asyncio.run(begin())
    with worker(url, namespace, tmp_path, "--labels", "special") as first:
        assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 3, 60)
        found = [int(pid) for pid in pids.read_text().split()[:2]]
        assert all(map(alive, found))
        first.send_signal(signal.SIGKILL)
        assert eventually(lambda: not any(map(alive, found)))
    with worker(url, namespace, tmp_path, "--labels", "special,more", "--secrets", "DEPLOY_TOKEN"):
        done, logs = asyncio.run(finish(run))
    assert done.status == "success", logs
    (_, _, early), (*_, late) = (line.split() for line in pids.read_text().splitlines())
    assert int(late) > int(early)
    assert logs["first"].endswith("token ***\n")
    assert logs["second"] == f"report under {late}\n"


def test_a_worker_without_a_program_needs_commands(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--allow-commands" in done.stderr
