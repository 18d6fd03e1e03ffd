"""The worker script in docs/how-to/worker-protocol.md runs workflows; the tests execute the code block of the page."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

from backstay.job.flows import send
from backstay.job.reserved import INTERNAL
from backstay.server.http.auth import LOCAL_ADMIN
from backstay.testing.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "examples" / "ci.yml"
PAGE = ROOT / "docs" / "how-to" / "worker-protocol.md"
DIAMOND = """\
name: diamond
jobs:
  top:
    run: |
      echo "::set-output word=hello"
  left:
    needs: top
    run: |
      echo "left heard $NEEDS_TOP_WORD"
  right:
    needs: top
    labels: [linux]
    run: exit 0
  bottom:
    needs: [left, right]
    run: echo done
"""


def source():
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return block


def test_the_documented_worker_is_forty_lines_without_a_library():
    lines = [line for line in source().splitlines() if line.strip()]
    assert len(lines) <= 40
    assert re.findall(r"^import (.+)$|^from", source(), re.MULTILINE) == [
        "contextlib, json, os, pathlib, subprocess, sys, tempfile, threading, time, urllib.error, urllib.request"
    ]


@contextlib.contextmanager
def working(site, tmp_path):
    """Run the documented worker; yield a list that receives its stderr when it has stopped."""
    script = tmp_path / "worker.py"
    script.write_text(source(), encoding="utf-8")
    errors = []
    worker = subprocess.Popen(
        [sys.executable, str(script), "linux"], env={**os.environ, "BACKSTAY_SERVER": site.url}, stderr=subprocess.PIPE
    )
    try:
        yield errors
    finally:
        worker.kill()
        errors.append(worker.communicate()[1].decode())


def wait_ended(site, run):
    def has_ended():
        site.do(site.stay.worker(queues=[INTERNAL]).run(burst=True))  # runs internal jobs, like a scheduler
        return site.get(f"/api/runs/{run}").json()["status"] not in ("queued", "running")

    assert eventually(has_ended, 100)
    return site.get(f"/api/runs/{run}").json()


def test_the_documented_worker_completes_a_dag(site, tmp_path):
    site.http.post("/api/workflows", content=DIAMOND, headers={"content-type": "application/yaml"})
    run = site.post("/api/workflows/diamond/run").json()["run_id"]
    with working(site, tmp_path) as errors:
        assert wait_ended(site, run)["status"] == "success"
    logs = site.get("/api/workflows/diamond/jobs/left/logs").json()
    assert [chunk["data"] for chunk in logs] == ["left heard hello\n"]
    assert errors == [""]


def test_the_documented_worker_completes_the_sample(site, tmp_path):
    """Outputs by file and by line, inputs, a matrix, steps and conditions work like on Backstay's own worker."""
    with working(site, tmp_path) as errors:
        site.http.post("/api/workflows", content=SAMPLE.read_bytes(), headers={"content-type": "application/yaml"})
        run = wait_ended(site, site.post("/api/workflows/ci/run").json()["run_id"])
    jobs = {job["id"]: job for job in run["jobs"]}
    assert run["status"] == "success", run
    assert jobs["build"]["outputs"]["wheel"] == "demo-1.0.whl"
    assert jobs["release-notes"]["status"] == "success"
    assert jobs["alarm"]["status"] == "skipped"
    assert errors == [""]


def test_the_documented_worker_handles_raw_bytes_empty_outputs_and_timeouts(site, tmp_path):
    """Output that is not UTF-8, an empty line in the output file, and children that outlive a timed-out shell."""
    jobs = {
        "bytes": {"run": "printf 'a\\377b\\n'"},
        "empty": {"run": 'echo >> "$BACKSTAY_OUTPUT"; echo k=v >> "$BACKSTAY_OUTPUT"'},
        "slow": {"run": "sleep 300; echo late", "timeout": 1},
        "last": {"needs": ["bytes", "empty"], "run": 'echo "heard $NEEDS_EMPTY_K"'},
    }
    site.post("/api/workflows", {"name": "odd", "jobs": jobs})
    with working(site, tmp_path) as errors:
        run = wait_ended(site, site.post("/api/workflows/odd/run").json()["run_id"])
    found = {job["id"]: job for job in run["jobs"]}
    assert {name: job["status"] for name, job in found.items()} == {
        **dict.fromkeys(("bytes", "empty", "last"), "success"),
        "slow": "failure",
    }
    assert found["slow"]["duration_ms"] < 20_000
    assert [chunk["data"] for chunk in site.get("/api/workflows/odd/jobs/bytes/logs").json()] == ["a\ufffdb\n"]
    assert [chunk["data"] for chunk in site.get("/api/workflows/odd/jobs/last/logs").json()] == ["heard v\n"]
    assert errors == [""]


def test_the_documented_worker_continues_after_losing_a_lease(site, tmp_path):
    nap = {"run": "echo here; while :; do echo on; sleep 0.2; done"}
    site.post("/api/workflows", {"name": "nap", "jobs": {"nap": nap}})
    site.http.post("/api/workflows", content=DIAMOND, headers={"content-type": "application/yaml"})
    with working(site, tmp_path) as errors:
        run = site.post("/api/workflows/nap/run").json()["run_id"]
        assert eventually(lambda: site.get("/api/workflows/nap/jobs/nap/logs").json(), 60)
        uid = site.get(f"/api/runs/{run}").json()["jobs"][0]["uid"]

        fence = site.do(send(site.server.core, site.server.store.get(uid))).fence
        lease = site.server.claims.names.make(LOCAL_ADMIN, uid, fence, 30_000_000)
        assert site.post(f"/api/jobs/{lease}/fail", {"retryable": False}).status_code == 200
        run = site.post("/api/workflows/diamond/run").json()["run_id"]
        assert wait_ended(site, run)["status"] == "success"
    assert errors[0].count("409") == 1
