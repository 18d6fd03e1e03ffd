"""`backstay serve`, `scheduler`, `token` and `worker --server` as programs."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from backstay.cli.root import app
from backstay.testing.waiting import eventually
from support.programs import programs

pytestmark = [pytest.mark.slow]

FLOW = """\
name: flow
jobs:
  build:
    run: |
      echo building
      echo "wheel=a.whl" >> $BACKSTAY_OUTPUT
      echo report > $BACKSTAY_ARTIFACTS/report.txt
  test:
    needs: build
    if: needs.build.outputs.wheel == 'a.whl'
    run: |
      echo "testing ${{ needs.build.outputs.wheel }}"
      cat $BACKSTAY_NEEDS_DIR/BUILD/report.txt
  never:
    needs: build
    if: needs.build.outputs.wheel == 'b.whl'
    run: echo never
  broken:
    run: exit 3
    continue-on-error: true
"""


def backstay(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "backstay", *arguments], capture_output=True, text=True, timeout=200, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


@pytest.fixture
def start():
    with programs() as starter:
        yield starter


def url_of(program):
    return program.waits_for(r"listening on (http://\S+)")[1]


def ended(client, run):
    return eventually(lambda: client.get(f"/api/runs/{run}").json()["status"] not in ("queued", "running"), 120)


def test_a_remote_worker_with_a_token_executes_a_run(start, tmp_path):
    url = f"sqlite:///{tmp_path / 'backstay.db'}"
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "flow.yml").write_text(FLOW)
    (folder / "bad.yml").write_text("name: bad\njobs:\n  a: {run: x, nonsense: 1}\n")
    submit = backstay("--url", url, "token", "create", "--role", "submit")[1]
    worker = backstay("--url", url, "token", "create", "--role", "worker", "--name", "builders")[1]
    server = start("--url", url, "serve", "--port", "0", "--workflows", str(folder))
    at = url_of(server)
    remote = start(
        *("worker", "--server", at, "--allow-commands", "--concurrency", "2", "--name", "far"), BACKSTAY_TOKEN=worker
    )
    assert httpx.get(f"{at}/api/workflows").status_code == 401
    with httpx.Client(base_url=at, headers={"authorization": f"Bearer {submit}"}, timeout=30) as client:
        run = client.post("/api/workflows/flow/run", json={}).json()["run_id"]
        assert ended(client, run), remote.output
        shown = client.get(f"/api/runs/{run}").json()
        states = {job["id"]: job["status"] for job in shown["jobs"]}
        assert states == {"build": "success", "test": "success", "never": "skipped", "broken": "failure"}, remote.output
        assert shown["status"] == "success"
        logs = client.get("/api/workflows/flow/jobs/test/logs").json()
        assert "testing a.whl\nreport\n" in "".join(chunk["data"] for chunk in logs)
        assert [one["worker_id"] for one in client.get("/api/workers").json() if one["worker_id"] == "far"]
        # A changed definition becomes a new version; the invalid one was reported with its line.
        (folder / "flow.yml").write_text(FLOW.replace("echo building", "echo building anew"))
        assert eventually(lambda: client.get("/api/workflows/flow").json()["version"] == 2)
    assert "bad.yml:3:" in server.output
    assert "no job is defined" not in server.output
    assert worker not in server.output + remote.output
    assert submit not in server.output
    assert remote.stop() == 0
    assert server.stop() == 0


def test_tokens_are_listed_without_their_secrets_and_revoked(tmp_path):
    url = f"sqlite:///{tmp_path / 'backstay.db'}"

    def backstay(*arguments):
        done = CliRunner().invoke(app, arguments)
        return done.exit_code, done.stdout.strip(), done.stderr.strip()

    code, token, _ = backstay("--url", url, "token", "create", "--role", "admin", "--name", "ops", "--expires", "2h")
    assert code == 0
    assert token.startswith("bst_")
    _, listed, _ = backstay("--url", url, "token", "ls")
    id_ = token.split("_")[1]
    assert id_ in listed
    assert "ops" in listed
    assert token.split("_", 2)[2] not in listed
    assert backstay("--url", url, "token", "revoke", id_)[0] == 0
    assert backstay("--url", url, "token", "revoke", id_)[0] == 1
    assert id_ not in backstay("--url", url, "token", "ls")[1]
    assert backstay("--url", url, "token", "create", "--role", "root")[0] == 2


def test_a_public_address_without_tokens_is_refused_with_a_hint(tmp_path):
    url = f"sqlite:///{tmp_path / 'backstay.db'}"
    code, _, stderr = backstay("--url", url, "serve", "--host", "0.0.0.0", "--port", "0")  # noqa: S104 - a refused address
    assert code == 2
    assert "backstay token create --role admin" in stderr


def test_a_taken_server_port_is_reported(start, tmp_path):
    url = f"sqlite:///{tmp_path / 'backstay.db'}"
    port = url_of(start("--url", url, "serve", "--port", "0", "--no-access-log")).rpartition(":")[2]
    code, _, stderr = backstay("--url", url, "serve", "--port", port)
    assert code == 2
    assert "--port 0" in stderr


def test_a_server_on_memory_runs_workflows_with_its_own_worker(start):
    """All in one process, without a file or a server: for tests and demonstrations."""
    server = start("--url", "memory://", "serve", "--port", "0", "--worker", "--allow-commands", "--no-access-log")
    with httpx.Client(base_url=url_of(server), timeout=30) as client:
        text = {"content-type": "application/yaml"}
        assert client.post("/api/workflows", content=FLOW, headers=text).status_code == 201
        run = client.post("/api/workflows/flow/run", json={}).json()["run_id"]
        assert ended(client, run), server.output
        shown = client.get(f"/api/runs/{run}").json()
        states = {job["id"]: job["status"] for job in shown["jobs"]}
        assert states == {"build": "success", "test": "success", "never": "skipped", "broken": "failure"}
    assert server.stop() == 0


def test_a_server_on_memory_serves_workers_over_http(start):
    """Without --worker: commands run on a worker that connects over HTTP, decisions in the server."""
    server = start("--url", "memory://", "serve", "--port", "0", "--no-access-log")
    at = url_of(server)
    remote = start("worker", "--server", at, "--allow-commands")
    with httpx.Client(base_url=at, timeout=30) as client:
        client.post("/api/workflows", content=FLOW, headers={"content-type": "application/yaml"})
        run = client.post("/api/workflows/flow/run", json={}).json()["run_id"]
        assert ended(client, run), server.output + remote.output
        assert client.get(f"/api/runs/{run}").json()["status"] == "success"
    assert remote.stop() == 0
    assert server.stop() == 0


def test_a_server_on_memory_needs_its_own_scheduler():
    code, _, stderr = backstay("--url", "memory://", "serve", "--port", "0", "--api-only")
    assert code == 2
    assert "memory://" in stderr
