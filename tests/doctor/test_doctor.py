"""`backstay doctor` against real servers and files, healthy and not."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from backstay.cli.commands import doctor as command
from backstay.doctor import finding
from backstay.doctor import sqlite as sqlite_doctor
from backstay.doctor.examine import examine
from backstay.engine.redis.address import parse
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.sync import Backstay
from backstay.testing.plugin import started_or_skip
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import lasting_port
from backstay.testing.waiting import eventually
from support.command_line import Cli

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/cli.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def ignore_slow_round_trips(monkeypatch):
    """Round trips of a busy test machine do not count as slow."""
    monkeypatch.setattr(finding, "SLOW_TRIP", 60.0)


def findings_about(report, topic):
    """Return the findings of one topic."""
    return [found for found in report.findings if found.topic == topic]


def level(report, topic):
    (found,) = findings_about(report, topic)
    return found.level


@pytest.fixture
def start():
    """Start Redis servers that only this test uses."""
    servers = []

    def start(*options, **kinds):
        server = RedisServer(options=options, **kinds)
        servers.append(server)
        return started_or_skip(server)

    yield start
    for server in servers:
        server.stop()


def send(server, *command):
    link = BlockingLink(parse(server.url), "test", None)
    try:
        return link.call_many([pack(*command)])[0]
    finally:
        link.close()


# ── Redis ──


@pytest.mark.redis
def test_a_durable_server_is_reported_as_fit(start, tmp_path):
    server = start(aof=True)
    done = Cli(server.url, "doctor", tmp_path).call("doctor", "--strict")
    assert done.exit_code == 0, done.output
    assert "Fit to keep locks." in done.stdout
    assert "appendfsync always" in done.stdout
    assert re.search(r"p50", done.stdout)


@pytest.mark.redis
def test_doctor_leaves_no_keys_on_the_server(start):
    server = start()
    examine(server.url)
    assert send(server, "DBSIZE") == 0


@pytest.mark.redis
def test_no_persistence_is_a_warning_and_fails_only_when_strict(start, tmp_path):
    cli = Cli(start().url, "doctor", tmp_path)
    assert cli.call("doctor").exit_code == 0
    done = cli.call("doctor", "--strict")
    assert done.exit_code == 1
    assert "appendonly yes" in done.stdout
    assert "1 warning." in done.stdout


@pytest.mark.redis
@pytest.mark.parametrize(
    ("settings", "expected", "text"),
    [
        ({"appendonly": "yes", "appendfsync": "everysec"}, "ok", "everysec"),
        ({"appendonly": "yes", "appendfsync": "no"}, "warning", "appendfsync no"),
        ({"save": "60 1"}, "warning", "RDB snapshots only"),
    ],
)
def test_each_kind_of_persistence_has_its_own_finding(start, settings, expected, text):
    server = start()
    for name, value in settings.items():
        send(server, "CONFIG", "SET", name, value)
    (found,) = findings_about(examine(server.url), "persistence")
    assert found.level == expected
    assert text in found.what


@pytest.mark.redis
def test_a_server_that_evicts_is_a_problem(start, tmp_path):
    server = start("--maxmemory-policy", "allkeys-lru", aof=True)
    done = Cli(server.url, "doctor", tmp_path).call("doctor")
    assert done.exit_code == 2
    assert "allkeys-lru" in done.stdout
    assert "noeviction" in done.stdout


@pytest.mark.redis
@pytest.mark.parametrize("shape", [(), ("--json",)])
def test_a_wrong_password_is_a_problem_and_is_not_shown(start, tmp_path, shape):
    server = start("--requirepass", "right")
    url = f"redis://:hunter2@127.0.0.1:{server.port}/0"
    done = Cli("memory://", "doctor", tmp_path).call("doctor", url, *shape)
    assert done.exit_code == 2
    assert "refused the username or password" in done.output
    assert "hunter2" not in done.output


def test_an_unreachable_server_is_a_problem(tmp_path):
    url = f"redis://user:hunter2@127.0.0.1:{lasting_port()}/0"
    done = Cli(url, "doctor", tmp_path).call("doctor", "--json")
    assert done.exit_code == 2
    assert "hunter2" not in done.output
    found = json.loads(done.stdout)
    assert found["verdict"] == "problem"
    assert [item["topic"] for item in found["findings"]] == ["reach"]


@pytest.mark.redis
def test_an_unresponsive_server_is_a_problem(start):
    server = start()
    server.pause()
    try:
        report = examine(f"{server.url}?connect_timeout=0.3")
    finally:
        server.resume()
    assert level(report, "reach") == "problem"


@pytest.mark.redis
@pytest.mark.parametrize(
    ("shift", "expected"), [(0, "ok"), (0.6, "warning"), (-0.6, "warning"), (60, "problem"), (-60, "problem")]
)
def test_clock_skew_is_reported_by_its_size(backstay_redis, shift, expected):
    """Skew is relative: to a host whose clock is a minute fast, the server is a minute behind."""
    report = examine(backstay_redis.url, clock=lambda: time.time() + shift)
    assert level(report, "clock") == expected
    (found,) = findings_about(report, "clock")
    assert ("behind" in found.what) == (shift > 0) or not shift


@pytest.mark.redis
def test_replicas_and_their_clocks_are_checked(start):
    master = start(aof=True)
    assert level(examine(master.url), "replicas") == "ok"
    replica = start("--replicaof", "127.0.0.1", str(master.port))
    assert eventually(lambda: b"state=online" in send(master, "INFO", "replication"))
    report = examine(master.url)
    (found,) = findings_about(report, "replicas")
    assert found.level == "ok"
    assert str(replica.port) in found.what
    assert len(findings_about(report, "clock")) == 2
    assert level(report, "min-replicas") == "warning"
    assert level(examine(replica.url), "role") == "problem"
    send(master, "CONFIG", "SET", "min-replicas-to-write", "1")
    assert level(examine(master.url), "min-replicas") == "ok"
    replica.stop()
    assert eventually(lambda: b"connected_slaves:0" in send(master, "INFO", "replication"))
    report = examine(master.url)
    assert level(report, "min-replicas") == "problem"
    assert level(report, "scripts") == "problem"  # every write, also of a lock, fails with NOREPLICAS


@pytest.mark.redis
def test_a_stalled_replica_is_a_warning(start):
    master = start(aof=True)
    replica = start("--replicaof", "127.0.0.1", str(master.port))
    assert eventually(lambda: b"state=online" in send(master, "INFO", "replication"))
    replica.pause()
    try:
        report = examine(f"{master.url}?connect_timeout=0.3")
    finally:
        replica.resume()
    assert sorted(found.level for found in findings_about(report, "clock")) == ["ok", "warning"]


@pytest.mark.redis
def test_a_user_without_the_right_to_run_scripts_is_a_problem(start):
    server = start(aof=True)
    send(server, "ACL", "SETUSER", "clerk", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
    (found,) = findings_about(examine(f"redis://clerk:pw@127.0.0.1:{server.port}/0"), "scripts")
    assert found.level == "problem"
    assert "EVAL" in found.advice


@pytest.mark.redis
def test_a_user_without_the_right_to_write_in_scripts_is_a_problem(start):
    server = start(aof=True)
    send(server, "ACL", "SETUSER", "clerk", "on", ">pw", "~other:*", "&*", "+@all")
    assert level(examine(f"redis://clerk:pw@127.0.0.1:{server.port}/0"), "scripts") == "problem"


@pytest.mark.redis
def test_a_user_without_the_right_to_subscribe_is_a_warning(start):
    server = start(aof=True)
    send(server, "ACL", "SETUSER", "clerk", "on", ">pw", "~*", "&*", "+@all", "-subscribe")
    report = examine(f"redis://clerk:pw@127.0.0.1:{server.port}/0")
    assert (level(report, "scripts"), level(report, "hints")) == ("ok", "warning")


@pytest.mark.redis
def test_settings_that_the_user_cannot_read_are_warnings_without_a_guess(start):
    server = start(aof=True)
    send(server, "ACL", "SETUSER", "clerk", "on", ">pw", "~*", "&*", "+@all", "-info", "-config")
    report = examine(f"redis://clerk:pw@127.0.0.1:{server.port}/0")
    assert (level(report, "info"), level(report, "eviction")) == ("warning", "warning")
    assert findings_about(report, "persistence") == findings_about(report, "replicas") == []
    assert report.verdict == "warning"


@pytest.mark.redis
def test_an_old_protocol_is_a_warning(start):
    server = start("--rename-command", "HELLO", "", aof=True)
    assert level(examine(server.url), "protocol") == "warning"


@pytest.mark.redis
def test_a_server_near_its_connection_limit_is_a_warning(start):
    server = start(aof=True)
    send(server, "CONFIG", "SET", "maxclients", "10")
    links = [BlockingLink(parse(server.url), "crowd", None) for _ in range(8)]
    try:
        assert level(examine(server.url), "connections") == "warning"
    finally:
        for link in links:
            link.close()


# ── SQLite ──


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "backstay.db"
    with Backstay(f"sqlite:///{path}") as stay, stay.lock("x"):
        pass
    return path


def test_a_sound_database_file_is_reported_as_fit(file, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_doctor, "mounted_as", lambda _: "ext4")
    done = Cli(f"sqlite:///{file}", "doctor", tmp_path).call("doctor", "--strict")
    assert done.exit_code == 0, done.output
    assert {f.topic for f in examine(f"sqlite:///{file}").findings} == {
        "version",
        "file system",
        "disk space",
        "durability",
        "file",
        "schema",
        "journal",
        "clock",
        "round trip",
    }


def test_doctor_does_not_create_a_missing_file(tmp_path):
    report = examine(f"sqlite:///{tmp_path}/new.db")
    assert level(report, "file") == "warning"
    assert list(tmp_path.iterdir()) == []


def test_doctor_does_not_change_a_foreign_database(tmp_path):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE invoice (id INTEGER)")
    db.close()
    before = path.read_bytes()
    report = examine(f"sqlite:///{path}")
    assert level(report, "schema") == "ok"
    assert level(report, "journal") == "warning"
    assert path.read_bytes() == before


def test_a_missing_folder_is_a_problem(tmp_path):
    assert level(examine(f"sqlite:///{tmp_path}/missing/a.db"), "file") == "problem"


def test_a_file_that_is_no_database_is_a_problem(tmp_path):
    (tmp_path / "a.db").write_text("hello" * 1000)
    assert level(examine(f"sqlite:///{tmp_path}/a.db"), "file") == "problem"


@pytest.mark.parametrize(
    ("synchronous", "expected"), [("extra", "ok"), ("full", "ok"), ("normal", "warning"), ("off", "problem")]
)
def test_each_synchronous_level_has_its_own_finding(file, synchronous, expected):
    assert level(examine(f"sqlite:///{file}?synchronous={synchronous}"), "durability") == expected


def test_a_newer_schema_is_a_problem(file):
    with sqlite3.connect(file) as db:
        db.execute("UPDATE backstay_meta SET value = 99 WHERE key = 'schema'")
    db.close()
    assert level(examine(f"sqlite:///{file}"), "schema") == "problem"


def test_a_file_locked_by_another_connection_is_a_problem(file):
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    try:
        (found,) = findings_about(examine(f"sqlite:///{file}?timeout=0.1"), "file")
    finally:
        db.close()
    assert found.level == "problem"
    assert "locked" in found.what


def test_a_clock_that_was_set_back_is_a_problem(file):
    assert level(examine(f"sqlite:///{file}", clock=lambda: time.time() - 60), "clock") == "problem"
    assert level(examine(f"sqlite:///{file}", clock=lambda: time.time() + 60), "clock") == "ok"


@pytest.fixture
def read_only_file(file):
    """The database file, made read-only: by permission bits, or for root (who ignores them) by a read-only mount."""
    folder = file.parent
    if os.geteuid():
        folder.chmod(0o555)
        file.chmod(0o444)
        yield file
        folder.chmod(0o755)
        return
    bind = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False)
    if bind.returncode:
        pytest.skip("root without the right to mount: nothing here can be made read-only")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield file
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def test_a_file_that_cannot_be_written_is_a_problem(read_only_file, tmp_path):
    done = Cli(f"sqlite:///{read_only_file}", "doctor", tmp_path).call("doctor")
    assert done.exit_code == 2, done.output
    assert "read-only" in done.stdout


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("ext4 /", "ok"),
        ("ext4 /|nfs4 {0}", "problem"),
        ("nfs4 /|ext4 {0}", "ok"),
        ("ext4 /|tmpfs {0}", "warning"),
        ("ext4 /|fuse.sshfs {0}", "problem"),
    ],
)
def test_a_network_file_system_is_a_problem(file, tmp_path, monkeypatch, mounts, expected):
    table = tmp_path / "mountinfo"
    pairs = [mount.split() for mount in mounts.format(file.parent).split("|")]
    table.write_text("".join(f"1 1 0:1 / {point} rw - {kind} src rw\n" for kind, point in pairs))
    monkeypatch.setattr(sqlite_doctor, "MOUNTS", table)
    assert level(examine(f"sqlite:///{file}"), "file system") == expected


@pytest.mark.parametrize(("free", "expected"), [(2**40, "ok"), (50 * 2**20, "warning"), (2**20, "problem")])
def test_low_disk_space_is_reported_by_its_amount(file, monkeypatch, free, expected):
    monkeypatch.setattr(sqlite_doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    assert level(examine(f"sqlite:///{file}"), "disk space") == expected


def test_a_slow_round_trip_is_a_warning(file, monkeypatch):
    assert level(examine(f"sqlite:///{file}"), "round trip") == "ok"
    monkeypatch.setattr(finding, "SLOW_TRIP", 0.0)
    assert level(examine(f"sqlite:///{file}"), "round trip") == "warning"


def test_the_memory_engine_is_a_warning():
    assert examine("memory://").verdict == "warning"


# ── the command ──


def test_the_url_argument_overrides_the_url_option(file, tmp_path):
    done = Cli("redis://127.0.0.1:1/0", "doctor", tmp_path).call("doctor", f"sqlite:///{file}", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["engine"] == f"sqlite:///{file}"


def test_an_invalid_url_is_wrong_usage(tmp_path):
    done = Cli("memory://", "doctor", tmp_path).call("doctor", "gopher://:hunter2@x")
    assert done.exit_code == 2
    assert "hunter2" not in done.output
    assert not done.stdout


def test_doctor_json_has_the_fields_of_the_reference(file):
    report = examine(f"sqlite:///{file}")
    printed = command.as_dict(report)
    section = PAGE[PAGE.index("## `backstay doctor") :]
    shown = json.loads(re.search(r"```json\n(.*?)```", section, re.DOTALL)[1])
    assert list(shown) == list(printed)
    assert list(shown["findings"][0]) == list(printed["findings"][0])
