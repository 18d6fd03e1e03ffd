"""`backstay worker`: finds its program, runs several processes, starts anew, tells how it is."""

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
from pathlib import Path

import pytest
from shop_processes import HERE, Shop

from backstay.cli.commands.worker import parse_queues
from backstay.cli.supervision import supervisor as supervising
from backstay.cli.supervision.supervisor import Supervisor
from backstay.errors import ConfigError
from backstay.testing.ports import lasting_port
from backstay.testing.waiting import eventually, soon

PROGRAM = HERE / "shop_program.py"


@pytest.fixture
def shop(tmp_path, namespace):
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal", namespace, tmp_path)
    yield shop
    shop.close()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(shop):
    return {int(words[4]) for words in shop.lines("start")}


def test_a_burst_of_two_processes_does_everything_once(shop):
    shop.record(60, seconds=0.05)
    supervisor = shop.worker("--processes", "2", "--burst", "--concurrency", "2")
    assert shop.ended(supervisor, 60) == 0
    assert sorted(int(words[1]) for words in shop.lines("end")) == list(range(60))


@pytest.mark.slow
def test_a_crashed_process_is_replaced_and_one_signal_drains_all(shop):
    supervisor = shop.worker("--processes", "2", "--concurrency", "1", "--lease", "2")
    shop.record(2, seconds=2)
    shop.written("start", 2)
    first = pids(shop)
    os.kill(min(first), signal.SIGKILL)
    assert eventually(lambda: "was ended by SIGKILL" in shop.log(), 20)
    shop.written("end", 2)
    shop.record(6, seconds=1)
    assert eventually(lambda: len(pids(shop)) >= 3, 30), shop.log()
    supervisor.send_signal(signal.SIGTERM)
    assert shop.ended(supervisor) == 0
    assert eventually(lambda: not any(is_alive(pid) for pid in pids(shop)))
    assert {words[2] for words in shop.lines("start")[3:]} <= {"1", "2"}


@pytest.mark.slow
def test_children_of_a_killed_supervisor_drain_by_themselves(shop):
    supervisor = shop.worker("--processes", "2", "--concurrency", "1")
    shop.record(2, seconds=1)
    shop.written("start", 2)
    supervisor.kill()
    shop.written("end", 2)
    assert eventually(lambda: not any(is_alive(pid) for pid in pids(shop)), 20)


def test_processes_that_cannot_work_are_not_started_for_ever(shop):
    supervisor = shop.worker("--processes", "2", target="no_such_program:stay")
    assert shop.ended(supervisor, 30) == 2
    assert "there is no module 'no_such_program'" in shop.log()
    assert "another starts in" not in shop.log()


def test_a_mended_file_is_started_at_once(tmp_path, monkeypatch):
    """However long the pause has grown while it was broken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervising, "FIRST_PAUSE", 600.0)
    monkeypatch.setattr(supervising, "LOOK", 0.05)
    program = tmp_path / "program.py"
    program.write_text("def (")

    async def mend():
        supervisor = Supervisor(lambda _: [sys.executable, "program.py"], 1, burst=True, reload=True)
        running = asyncio.create_task(supervisor.run())
        assert await soon(lambda: _paused(supervisor), 30)
        program.write_text("print('mended')")
        return await asyncio.wait_for(running, 30)

    async def _paused(supervisor):
        return supervisor._news._waiters

    assert asyncio.run(mend()) == 0


@pytest.mark.slow
def test_a_changed_file_starts_it_anew(shop):
    folder = shop.folder / "program"
    folder.mkdir()
    program = folder / "changing_program.py"
    text = PROGRAM.read_text()
    program.write_text(text)
    shop.worker("--reload", target="changing_program:stay", cwd=folder)
    one = shop.enqueue("version")
    assert shop.stay.jobs.get(shop.reaches(one.id, "completed").id).result == "one"
    program.write_text(text.replace('return "one"', 'return "two"'))
    assert eventually(lambda: "changing_program.py changed" in shop.log(), 20)

    def newer():
        handle = shop.enqueue("version")
        return shop.reaches(handle.id, "completed").result == "two"

    assert eventually(newer, 30), shop.log()


@pytest.mark.slow
def test_a_file_and_a_port_tell_how_it_is(shop):
    port, file = lasting_port(), shop.folder / "health"
    worker = shop.worker("--health-port", str(port), "--health-file", str(file))

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
    assert shop.ended(worker) == 0
    assert not file.exists()


def test_a_port_that_is_taken_is_a_line_and_an_exit_code(shop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = shop.worker("--health-port", str(taken.getsockname()[1]))
        assert shop.ended(worker) == 2
    assert "--health-port" in shop.log()
    assert "Traceback" not in shop.log()


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no_such_module:stay", "no module 'no_such_module'"),
        ("shop_program:nothing", "has no 'nothing'"),
        ("shop_program:note", "not a Backstay"),
        (":stay", "names no module"),
    ],
)
def test_a_program_that_cannot_be_found_is_a_line_and_an_exit_code(shop, target, says):
    worker = shop.worker(target=target)
    assert shop.ended(worker) == 2
    assert says in shop.log()
    assert "Traceback" not in shop.log()


def test_a_module_alone_is_enough_when_it_has_one_backstay(shop):
    shop.record(1)
    assert shop.ended(shop.worker("--burst", target="shop_program")) == 0
    assert len(shop.lines("end")) == 1


def test_a_blocking_backstay_works_as_well(shop):
    (shop.folder / "plain_program.py").write_text(
        "from backstay.sync import Backstay\nstay = Backstay()\n"
        "@stay.job()\ndef plain(n: int) -> int:\n    return n + 1\n"
    )
    handle = shop.enqueue("plain", {"n": 1})
    assert shop.ended(shop.worker("--burst", target="plain_program:stay")) == 0
    assert shop.stay.jobs.get(handle.id).result == 2


def test_queues_are_names_or_weights():
    assert parse_queues("a, b") == ["a", "b"]
    assert parse_queues("mail=3,default") == {"mail": 3, "default": 1}
    with pytest.raises(ConfigError, match="weight"):
        parse_queues("mail=three")


def test_the_help_teaches():
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
