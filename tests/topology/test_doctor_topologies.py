"""`backstay doctor` checks every node of a Cluster, every Sentinel, and every server that Sentinels monitor."""

from __future__ import annotations

import pytest
from node_names import slot

from backstay.doctor import finding
from backstay.doctor.examine import examine
from backstay.testing.servers import RedisCluster, RedisSentinel, say
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import eventually
from support.doctor_report import findings_about, only_finding
from support.servers import running

pytestmark = [pytest.mark.redis, pytest.mark.chaos]


@pytest.fixture(autouse=True)
def ignore_slow_round_trips(monkeypatch):
    """Round trips of a busy test machine do not count as slow."""
    monkeypatch.setattr(finding, "SLOW_TRIP", 60.0)


def replica_in(cluster):
    return next(node for node in cluster.nodes if node not in cluster.masters())


def short_timeouts(url):
    return url + ("&" if "?" in url else "?") + "connect_timeout=0.5&timeout=0.5"


# ── Cluster ──


def test_doctor_checks_every_node_of_a_cluster(quiet_cluster):
    sizes = [say(node, "DBSIZE") for node in quiet_cluster.masters()]
    report = examine(quiet_cluster.url)
    assert report.engine == quiet_cluster.url
    assert only_finding(report, "reach", "ok").what == "all 6 nodes answer"
    assert "all slots are served, by 3 masters" in only_finding(report, "slots", "ok").what
    assert {found.what for found in findings_about(report, "replicas")} == {
        "3 replicas follow their masters",
        "each of 3 masters has 1 replica",
    }
    for topic in ("version", "protocol", "eviction", "state"):
        assert "(all 6 nodes)" in only_finding(report, topic, "ok").what
    for topic in ("scripts", "hints"):
        assert "(all 3 masters)" in only_finding(report, topic, "ok").what
    assert {found.topic for found in report.findings if found.level != "ok"} == {"persistence", "min-replicas"}
    assert [say(node, "DBSIZE") for node in quiet_cluster.masters()] == sizes  # it leaves no keys


def test_only_the_differing_node_is_named(quiet_cluster):
    odd = replica_in(quiet_cluster)
    say(odd, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        report = examine(quiet_cluster.url)
    finally:
        say(odd, "CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert only_finding(report, "eviction", "problem").what == f"127.0.0.1:{odd.port}: maxmemory-policy is allkeys-lru"
    assert "(5 of 6 nodes)" in only_finding(report, "eviction", "ok").what
    assert report.verdict == "problem"


def test_a_node_with_better_settings_is_no_finding(quiet_cluster):
    good = quiet_cluster.nodes[0]
    say(good, "CONFIG", "SET", "appendonly", "yes")
    try:
        report = examine(quiet_cluster.url)
    finally:
        say(good, "CONFIG", "SET", "appendonly", "no")
    assert str(good.port) in only_finding(report, "persistence", "ok").what
    assert "(5 of 6 nodes)" in only_finding(report, "persistence", "warning").what


@pytest.mark.parametrize(("kind", "level"), [("replica", "warning"), ("master", "problem")])
def test_a_paused_node_is_a_finding_and_the_others_are_checked(quiet_cluster, kind, level):
    node = replica_in(quiet_cluster) if kind == "replica" else quiet_cluster.masters()[0]
    node.pause()
    try:
        report = examine(short_timeouts(quiet_cluster.url))
    finally:
        node.resume()
    assert only_finding(report, "reach", level).what.startswith(f"{kind} 127.0.0.1:{node.port}: ")
    assert "(all 5 nodes)" in only_finding(report, "version", "ok").what
    assert findings_about(report, "clocks", "ok")


def test_a_master_that_died_and_was_replaced_is_a_warning_and_so_is_the_missing_replica(cluster):
    dead = cluster.masters()[0]
    successor = next(
        node for node in cluster.nodes if node is not dead and str(dead.port).encode() in b"%r" % say(node, "ROLE")
    )
    dead.kill()
    cluster.await_failover(dead)
    report = examine(cluster.url)
    assert str(dead.port) in only_finding(report, "reach", "warning").what
    assert (
        only_finding(report, "replicas", "warning").what
        == f"master 127.0.0.1:{successor.port} has no replica that follows it"
    )
    assert findings_about(report, "slots", "ok")
    assert report.verdict == "warning"


def test_unserved_slots_are_named():
    with running(RedisCluster(replicas=0)) as group:
        dead = group.master_of(0)
        dead.kill()
        assert eventually(
            lambda: all(
                b"cluster_state:fail" in say(node, "CLUSTER", "INFO") for node in group.masters() if node.running
            )
        )
        report = examine(group.url)
    assert only_finding(report, "slots", "problem").what == "slots 0-5460 are not served"
    assert "(all 2 nodes)" in only_finding(report, "state", "problem").what
    assert len(findings_about(report, "replicas", "warning")) == 2
    assert str(dead.port) in only_finding(report, "reach", "problem").what


def test_nodes_whose_clocks_differ_are_named(clocks_apart):
    report = examine(clocks_apart.url)
    spread, *named = findings_about(report, "clocks", "problem")
    assert "the clocks of 3 nodes differ by at most 200." in spread.what
    past, _, future = (node.port for node in clocks_apart.nodes)
    texts = {found.what for found in named}
    assert any(f":{past}: " in what and "behind most" in what for what in texts)
    assert any(f":{future}: " in what and "ahead of most" in what for what in texts)
    assert len(texts) == 2


def test_a_replica_that_lost_its_master_is_named(quiet_cluster):
    replica = replica_in(quiet_cluster)
    master = next(node for node in quiet_cluster.nodes if node.port == say(replica, "ROLE")[2])
    say(replica, "CONFIG", "SET", "masteruser", "nobody", "masterauth", "wrong")
    say(master, "CLIENT", "KILL", "TYPE", "replica")
    try:
        assert eventually(lambda: say(replica, "ROLE")[3] != b"connected")
        report = examine(quiet_cluster.url)
    finally:
        say(replica, "CONFIG", "SET", "masteruser", "", "masterauth", "")
        quiet_cluster.await_whole()
    lost = f"127.0.0.1:{replica.port} has lost its master 127.0.0.1:{master.port}"
    alone = f"master 127.0.0.1:{master.port} has no replica that follows it"
    assert {found.what for found in findings_about(report, "replicas", "warning")} == {lost, alone}


def test_a_slot_whose_migration_was_not_completed_is_named(quiet_cluster):
    number = slot("half")
    source = quiet_cluster.master_of(number)
    target = next(node for node in quiet_cluster.masters() if node is not source)
    say(source, "CLUSTER", "SETSLOT", number, "MIGRATING", say(target, "CLUSTER", "MYID"))
    try:
        report = examine(quiet_cluster.url)
    finally:
        say(source, "CLUSTER", "SETSLOT", number, "STABLE")
    assert only_finding(report, "slots", "warning").what == f"127.0.0.1:{source.port}: slot {number} is being migrated"


def test_a_user_without_rights_to_list_nodes_gets_a_finding_and_the_serving_nodes(quiet_cluster):
    for node in quiet_cluster.nodes:
        say(node, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-cluster", "+cluster|slots")
    try:
        report = examine(quiet_cluster.url.replace("://", "://app:pw@"))
    finally:
        for node in quiet_cluster.nodes:
            say(node, "ACL", "DELUSER", "app")
    assert "+cluster|nodes" in only_finding(report, "nodes", "warning").advice
    assert only_finding(report, "reach", "ok").what == "all 6 nodes answer"
    assert only_finding(report, "slots", "ok")


def test_a_url_address_without_a_server_is_a_warning(quiet_cluster):
    gone = reserve_port()
    report = examine(quiet_cluster.url.replace("://", f"://127.0.0.1:{gone},"))
    assert str(gone) in only_finding(report, "reach", "warning").what
    assert findings_about(report, "slots", "ok")


def test_an_unreachable_cluster_is_a_problem_that_hides_the_password():
    ports = reserve_port(), reserve_port()
    report = examine(f"redis+cluster://user:hunter2@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
    assert [found.level for found in findings_about(report, "reach")] == ["problem", "problem"]
    assert "hunter2" not in str(report)


def test_a_single_server_is_not_taken_for_a_cluster(backstay_redis):
    report = examine(f"redis+cluster://127.0.0.1:{backstay_redis.port}")
    assert "cluster support disabled" in only_finding(report, "reach", "problem").what


# ── Sentinel ──


def test_doctor_checks_the_sentinels_and_every_server_they_monitor(quiet_sentinel):
    report = examine(quiet_sentinel.url)
    assert only_finding(report, "sentinels", "ok").what == "3 of 3 Sentinels answer"
    assert "2 Sentinels must agree" in only_finding(report, "quorum", "ok").what
    assert only_finding(report, "reach", "ok").what == "all 3 nodes answer"
    assert only_finding(report, "replicas", "ok").what == "2 replicas follow their masters"
    assert "(all 3 nodes)" in only_finding(report, "version", "ok").what
    assert only_finding(report, "scripts", "ok")
    assert {found.topic for found in report.findings if found.level != "ok"} == {"persistence", "min-replicas"}


def test_one_named_sentinel_leads_to_the_others_and_is_a_warning(quiet_sentinel):
    port = quiet_sentinel.sentinels[0].port
    report = examine(f"redis+sentinel://127.0.0.1:{port}/{quiet_sentinel.service}")
    assert only_finding(report, "sentinels", "ok").what == "3 of 3 Sentinels answer"
    assert only_finding(report, "sentinels", "warning").what == "the URL names one Sentinel of 3"


def test_a_quorum_that_sentinels_disagree_on_is_a_warning(quiet_sentinel):
    service, odd = quiet_sentinel.service, quiet_sentinel.sentinels[1]
    say(odd, "SENTINEL", "SET", service, "quorum", 3)
    try:
        report = examine(quiet_sentinel.url)
    finally:
        say(odd, "SENTINEL", "SET", service, "quorum", 2)
    assert f"127.0.0.1:{odd.port} wants 3" in only_finding(report, "quorum", "warning").what


def test_a_paused_replica_behind_sentinels_is_a_warning(quiet_sentinel):
    replica = next(server for server in quiet_sentinel.servers if server is not quiet_sentinel.master())
    replica.pause()
    try:
        report = examine(short_timeouts(quiet_sentinel.url))
    finally:
        replica.resume()
    assert only_finding(report, "reach", "warning").what.startswith(f"replica 127.0.0.1:{replica.port}: ")
    assert only_finding(report, "replicas", "ok").what == "1 replica follows its master"


def test_an_unknown_service_is_a_problem(quiet_sentinel):
    report = examine(quiet_sentinel.url.replace("/backstay/", "/elsewhere/"))
    assert len(findings_about(report, "sentinels", "problem")) == 3
    assert "knows no master 'elsewhere'" in report.findings[0].what


def test_each_dead_sentinel_and_server_is_reported():
    with running(RedisSentinel(replicas=1)) as group:
        master, replica = group.servers
        first, second, _ = group.sentinels
        first.kill()
        report = examine(group.url)
        assert str(first.port) in only_finding(report, "sentinels", "warning").what
        assert only_finding(report, "sentinels", "ok").what == "2 of 3 Sentinels answer"
        second.kill()
        assert eventually(lambda: findings_about(examine(group.url), "quorum", "problem"))
        report = examine(group.url)
        assert only_finding(report, "sentinels", "problem").what == "1 of 3 Sentinels answer"
        assert "NOQUORUM" in only_finding(report, "quorum", "problem").what
        replica.kill()
        report = examine(group.url)
        assert "has no replica that follows it" in only_finding(report, "replicas", "warning").what
        master.kill()
        assert eventually(lambda: findings_about(examine(group.url), "master", "problem"))
        report = examine(group.url)
        assert {found.level for found in findings_about(report, "reach")} == {"problem", "warning"}
