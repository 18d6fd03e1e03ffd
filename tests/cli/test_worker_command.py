"""`backstay worker`: finding the program, several processes, restarts, health reports."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from backstay.cli.commands.worker import parse_queues
from backstay.cli.supervision import supervisor as supervising
from backstay.cli.supervision.supervisor import Supervisor
from backstay.errors import ConfigError
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import eventually, soon
from support.programs import is_alive
from support.worker_pool import HERE, WorkerPool

PROGRAM = HERE / "worker_program.py"


@pytest.fixture
def pool(tmp_path, namespace):
    pool = WorkerPool(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal", namespace, tmp_path)
    yield pool
    pool.close()


def pids(pool):
    return {int(words[4]) for words in pool.lines("start")}


def test_a_burst_of_two_processes_runs_every_job_once(pool):
    pool.enqueue_records(60, seconds=0.05)
    supervisor = pool.worker("--processes", "2", "--burst", "--concurrency", "2")
    assert pool.wait_exit(supervisor, 60) == 0
    assert sorted(int(words[1]) for words in pool.lines("end")) == list(range(60))


@pytest.mark.slow
def test_a_crashed_process_is_replaced_and_one_signal_drains_all(pool):
    supervisor = pool.worker("--processes", "2", "--concurrency", "1", "--lease", "2")
    pool.enqueue_records(2, seconds=2)
    pool.wait_for_lines("start", 2)
    first = pids(pool)
    os.kill(min(first), signal.SIGKILL)
    assert eventually(lambda: "was ended by SIGKILL" in pool.log(), 20)
    pool.wait_for_lines("end", 2)
    pool.enqueue_records(6, seconds=1)
    assert eventually(lambda: len(pids(pool)) >= 3, 30), pool.log()
    supervisor.send_signal(signal.SIGTERM)
    assert pool.wait_exit(supervisor) == 0
    assert eventually(lambda: not any(is_alive(pid) for pid in pids(pool)))
    assert {words[2] for words in pool.lines("start")[3:]} <= {"1", "2"}


@pytest.mark.slow
def test_children_of_a_killed_supervisor_drain_by_themselves(pool):
    supervisor = pool.worker("--processes", "2", "--concurrency", "1")
    pool.enqueue_records(2, seconds=1)
    pool.wait_for_lines("start", 2)
    supervisor.kill()
    pool.wait_for_lines("end", 2)
    assert eventually(lambda: not any(is_alive(pid) for pid in pids(pool)), 20)


def test_processes_that_cannot_start_are_not_restarted_forever(pool):
    supervisor = pool.worker("--processes", "2", target="no_such_program:stay")
    assert pool.wait_exit(supervisor, 30) == 2
    assert "there is no module 'no_such_program'" in pool.log()
    assert "another starts in" not in pool.log()


def test_a_fixed_file_is_started_at_once(tmp_path, monkeypatch):
    """However long the restart delay has grown while it was broken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervising, "FIRST_PAUSE", 600.0)
    monkeypatch.setattr(supervising, "CHECK_SECONDS", 0.05)
    program = tmp_path / "program.py"
    program.write_text("def (")

    async def fix_the_file():
        supervisor = Supervisor(lambda _: [sys.executable, "program.py"], 1, burst=True, reload=True)
        running = asyncio.create_task(supervisor.run())
        assert await soon(lambda: _paused(supervisor), 30)
        program.write_text("print('fixed')")
        return await asyncio.wait_for(running, 30)

    async def _paused(supervisor):
        return supervisor._wake._waiters

    assert asyncio.run(fix_the_file()) == 0


@pytest.mark.slow
def test_a_changed_file_restarts_the_worker(pool):
    folder = pool.folder / "program"
    folder.mkdir()
    program = folder / "changing_program.py"
    text = PROGRAM.read_text()
    program.write_text(text)
    pool.worker("--reload", target="changing_program:stay", cwd=folder)
    one = pool.enqueue("version")
    assert pool.stay.jobs.get(pool.wait_for_state(one.id, "completed").id).result == "one"
    program.write_text(text.replace('return "one"', 'return "two"'))
    assert eventually(lambda: "changing_program.py changed" in pool.log(), 20)

    def newer():
        handle = pool.enqueue("version")
        return pool.wait_for_state(handle.id, "completed").result == "two"

    assert eventually(newer, 30), pool.log()


@pytest.mark.slow
def test_health_is_reported_in_a_file_and_on_a_port(pool):
    port, file = reserve_port(), pool.folder / "health"
    worker = pool.worker("--health-port", str(port), "--health-file", str(file))

    def answer():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as reply:
                return reply.status, json.load(reply)
        except (urllib.error.URLError, ConnectionError):
            return None

    assert eventually(answer, 20)
    status, report = answer()
    assert status == 200
    assert (report["ok"], report["queues"], report["draining"]) == (True, ["default"], False)
    assert eventually(file.exists)
    assert json.loads(file.read_text())["worker"] == report["worker"]
    worker.send_signal(signal.SIGTERM)
    assert pool.wait_exit(worker) == 0
    assert not file.exists()


def test_a_taken_health_port_is_one_line_and_an_exit_code(pool):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = pool.worker("--health-port", str(taken.getsockname()[1]))
        assert pool.wait_exit(worker) == 2
    assert "--health-port" in pool.log()
    assert "Traceback" not in pool.log()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:stay", "no module 'no_such_module'"),
        ("support.worker_program:nothing", "has no 'nothing'"),
        ("support.worker_program:write_line", "not a Backstay"),
        (":stay", "names no module"),
    ],
)
def test_a_missing_program_is_one_line_and_an_exit_code(pool, target, message):
    worker = pool.worker(target=target)
    assert pool.wait_exit(worker) == 2
    assert message in pool.log()
    assert "Traceback" not in pool.log()


def test_a_module_with_one_backstay_is_a_valid_target(pool):
    pool.enqueue_records(1)
    assert pool.wait_exit(pool.worker("--burst", target="support.worker_program")) == 0
    assert len(pool.lines("end")) == 1


def test_the_target_may_be_a_blocking_backstay(pool):
    (pool.folder / "plain_program.py").write_text(
        "from backstay.sync import Backstay\nstay = Backstay()\n"
        "@stay.job()\ndef plain(n: int) -> int:\n    return n + 1\n"
    )
    handle = pool.enqueue("plain", {"n": 1})
    assert pool.wait_exit(pool.worker("--burst", target="plain_program:stay")) == 0
    assert pool.stay.jobs.get(handle.id).result == 2


def test_queues_are_names_or_weights():
    assert parse_queues("a, b") == ["a", "b"]
    assert parse_queues("mail=3,default") == {"mail": 3, "default": 1}
    with pytest.raises(ConfigError, match="weight"):
        parse_queues("mail=three")


def test_the_help_of_worker_shows_options_and_examples():
    done = subprocess.run(
        [sys.executable, "-m", "backstay", "worker", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    for word in (
        "--queues",
        "--labels",
        "--processes",
        "--burst",
        "--reload",
        "drains",
        "backstay worker shop.jobs:stay",
    ):
        assert word in done.stdout
