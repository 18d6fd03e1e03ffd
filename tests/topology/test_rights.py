"""Users with exactly the documented rights can use Backstay on every kind of deployment."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from node_names import one_on_each

import backstay.sync
from backstay import EngineRefused
from backstay.testing.servers import RedisCluster, RedisSentinel, RedisServer, say
from backstay.testing.waiting import WITHIN, eventually
from support.servers import running

pytestmark = pytest.mark.redis

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "engines.md"
RIGHTS = re.search(r"ACL SETUSER app on >password (.+?)```", PAGE.read_text("utf-8"), re.DOTALL)[1].split()
SENTINEL, CLUSTER = ["+role"], ["+cluster|slots", "+asking"]
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "redis-in-production.md"
AT_SENTINELS = ["+sentinel|get-master-addr-by-name", "+sentinel|master", "+subscribe", "+ping", "allchannels"]


def words(page):
    """Return the text of a page without its line breaks."""
    return " ".join(page.read_text("utf-8").split())


def allow(nodes, *rights):
    for node in nodes:
        say(node, "ACL", "SETUSER", "app", "on", ">pass/word", *rights)


def use_everything(url, names):
    with backstay.sync.Backstay(url) as stay:
        for name in names:
            stay.lock(name).acquire(wait=0, execution_id="run-1")
            api = stay.limit("api", "10000/hour")
            for _ in range(30):  # enough that the log of hits is no longer read as a whole
                api.hit(name)
                time.sleep(0.001)
            api.refund(name)
            api.reset(name)
            assert stay.idempotency.run(name, lambda: 1) == stay.idempotency.run(name, lambda: 2) == 1
            assert stay.idempotency.forget(name)
        with stay.hub.listen("news") as news:
            stay.hub.publish("news", "hello")
            assert news.next(WITHIN).payload == "hello"
        assert {found.name for found in stay.locks.list()} == set(names)
        assert stay.locks.cleanup("run-1").cleaned_count == len(names)


def test_the_docs_name_these_rights():
    text = words(PAGE)
    assert f"Sentinel also needs `{' '.join(SENTINEL)}`, a Cluster `{' '.join(CLUSTER)}`" in text


def test_an_acl_user_on_a_single_server_over_tls(certificates):
    with running(RedisServer(tls=certificates)) as server:
        allow([server], *RIGHTS)
        url = server.url.replace("://", "://app:pass%2Fword@")
        use_everything(url, ["x"])
        with (
            pytest.raises(EngineRefused, match="username or password"),
            backstay.sync.Backstay(url.replace("pass%2Fword", "wrong")),
        ):
            pass


def test_an_acl_user_behind_sentinels():
    with running(RedisSentinel(replicas=1)) as group:
        url = group.url.replace("://", "://app:pass%2Fword@")
        allow(group.servers, *RIGHTS)
        with pytest.raises(EngineRefused, match="role"), backstay.sync.Backstay(url):
            pass
        allow(group.servers, *SENTINEL)
        use_everything(url, ["x"])


def test_an_acl_user_on_a_cluster():
    with running(RedisCluster(replicas=0)) as group:
        url = group.url.replace("://", "://app:pass%2Fword@")
        allow(group.nodes, *RIGHTS)
        with pytest.raises(EngineRefused, match="cluster"), backstay.sync.Backstay(url):
            pass
        allow(group.nodes, *CLUSTER)
        use_everything(url, list(one_on_each(group).values()))


def test_an_acl_user_at_the_sentinels_receives_failover_events():
    assert f"`{' '.join(AT_SENTINELS[:-1])}`, and `{AT_SENTINELS[-1]}`" in words(GUIDE)
    with running(RedisSentinel(replicas=1)) as group:
        for sentinel in group.sentinels:
            say(sentinel, "ACL", "SETUSER", "watcher", "on", ">pw", "-@all", *AT_SENTINELS)
        with backstay.sync.Backstay(f"{group.url}?sentinel_username=watcher&sentinel_password=pw") as stay:
            stay.lock("x", wait=0).acquire().release()
            link = stay.engine._thread_link()
            assert eventually(lambda: set(stay.engine._watch._hub.states().values()) == {"running"})
            say(group.sentinels[0], "SENTINEL", "FAILOVER", group.service)
            assert eventually(lambda: not link.ready)
            assert stay.engine._epoch >= 1
