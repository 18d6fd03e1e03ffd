"""`backstay doctor` against Redis servers, healthy and not."""

from __future__ import annotations

import json
import re
import time

import pytest

from backstay.doctor.examine import examine
from backstay.engine.redis.address import parse
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import eventually
from support.command_line import Cli
from support.doctor_report import findings_about, only_finding


def send(server, *command):
    link = BlockingLink(parse(server.url), "test", None)
    try:
        return link.call_many([pack(*command)])[0]
    finally:
        link.close()


@pytest.mark.redis
def test_a_durable_server_is_reported_as_fit(start, tmp_path):
    server = start(aof=True)
    done = Cli(server.url, "doctor", tmp_path).call("doctor", "--strict")
    assert done.exit_code == 0, done.output
    assert "Fit for locks." in done.stdout
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
def test_a_full_server_is_reported_as_full_and_not_as_missing_rights(start, tmp_path):
    server = start(aof=True)
    send(server, "CONFIG", "SET", "maxmemory", "1")
    report = examine(server.url)
    assert "the server is full" in only_finding(report, "memory", "problem").what
    scripts = only_finding(report, "scripts", "problem")
    assert "OOM" in scripts.what
    assert "ACL" not in scripts.advice
    done = Cli(server.url, "doctor", tmp_path).call("doctor")
    assert done.exit_code == 2
    assert "full" in done.stdout


@pytest.mark.redis
@pytest.mark.parametrize(("share", "level"), [(0.95, "warning"), (0.5, "ok")])
def test_a_nearly_full_server_is_a_warning(start, share, level):
    server = start(aof=True)
    used = int(
        dict(line.split(":") for line in send(server, "INFO", "memory").decode().split() if ":" in line)["used_memory"]
    )
    send(server, "CONFIG", "SET", "maxmemory", str(int(used / share)))
    assert only_finding(examine(server.url), "memory").level == level


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
    url = f"redis://user:hunter2@127.0.0.1:{reserve_port()}/0"
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
    assert only_finding(report, "reach").level == "problem"


@pytest.mark.redis
@pytest.mark.parametrize(
    ("shift", "expected"), [(0, "ok"), (0.6, "warning"), (-0.6, "warning"), (60, "problem"), (-60, "problem")]
)
def test_clock_skew_is_reported_by_its_size(backstay_redis, shift, expected):
    """Skew is relative: to a host whose clock is a minute fast, the server is a minute behind."""
    report = examine(backstay_redis.url, clock=lambda: time.time() + shift)
    assert only_finding(report, "clock").level == expected
    (found,) = findings_about(report, "clock")
    assert ("behind" in found.what) == (shift > 0) or not shift


@pytest.mark.redis
def test_a_server_clock_that_was_set_back_is_a_problem(start):
    """Jobs of any shard show it: the last fence is at least the time at which it was given."""
    server = start()
    assert not findings_about(examine(server.url, namespace="doctor"), "time")
    for shard, ahead, level in (("s0", -1, "ok"), ("s3", 300, "problem")):
        fence = int((time.time() + ahead) * 1_000_000)
        send(server, "HSET", f"{{doctor:{shard}}}:meta", "fence", str(fence))
        assert only_finding(examine(server.url, namespace="doctor"), "time").level == level


@pytest.mark.redis
def test_replicas_and_their_clocks_are_checked(start):
    master = start(aof=True)
    assert only_finding(examine(master.url), "replicas").level == "ok"
    replica = start("--replicaof", "127.0.0.1", str(master.port))
    assert eventually(lambda: b"state=online" in send(master, "INFO", "replication"))
    report = examine(master.url)
    (found,) = findings_about(report, "replicas")
    assert found.level == "ok"
    assert str(replica.port) in found.what
    assert len(findings_about(report, "clock")) == 2
    assert only_finding(report, "min-replicas").level == "warning"
    assert only_finding(examine(replica.url), "role").level == "problem"
    send(master, "CONFIG", "SET", "min-replicas-to-write", "1")
    assert only_finding(examine(master.url), "min-replicas").level == "ok"
    replica.stop()
    assert eventually(lambda: b"connected_slaves:0" in send(master, "INFO", "replication"))
    report = examine(master.url)
    assert only_finding(report, "min-replicas").level == "problem"
    assert only_finding(report, "scripts").level == "problem"  # every write, also of a lock, fails with NOREPLICAS


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
    send(server, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
    (found,) = findings_about(examine(f"redis://app:pw@127.0.0.1:{server.port}/0"), "scripts")
    assert found.level == "problem"
    assert "EVAL" in found.advice


@pytest.mark.redis
def test_a_user_without_the_right_to_write_in_scripts_is_a_problem(start):
    server = start(aof=True)
    send(server, "ACL", "SETUSER", "app", "on", ">pw", "~other:*", "&*", "+@all")
    assert only_finding(examine(f"redis://app:pw@127.0.0.1:{server.port}/0"), "scripts").level == "problem"


@pytest.mark.redis
def test_a_user_without_the_right_to_subscribe_is_a_warning(start):
    server = start(aof=True)
    send(server, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-subscribe")
    report = examine(f"redis://app:pw@127.0.0.1:{server.port}/0")
    assert (only_finding(report, "scripts").level, only_finding(report, "hints").level) == ("ok", "warning")


@pytest.mark.redis
def test_settings_that_the_user_cannot_read_are_warnings_without_a_guess(start):
    server = start(aof=True)
    send(server, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-info", "-config")
    report = examine(f"redis://app:pw@127.0.0.1:{server.port}/0")
    assert (only_finding(report, "info").level, only_finding(report, "eviction").level) == ("warning", "warning")
    assert findings_about(report, "persistence") == findings_about(report, "replicas") == []
    assert report.verdict == "warning"


@pytest.mark.redis
def test_an_old_protocol_is_a_warning(start):
    server = start("--rename-command", "HELLO", "", aof=True)
    assert only_finding(examine(server.url), "protocol").level == "warning"


@pytest.mark.redis
def test_a_server_near_its_connection_limit_is_a_warning(start):
    server = start(aof=True)
    send(server, "CONFIG", "SET", "maxclients", "10")
    links = [BlockingLink(parse(server.url), "crowd", None) for _ in range(8)]
    try:
        assert only_finding(examine(server.url), "connections").level == "warning"
    finally:
        for link in links:
            link.close()
