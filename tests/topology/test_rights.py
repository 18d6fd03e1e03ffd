"""Users with the rights that the docs name, and no others, on every kind of set-up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from placing import one_on_each

import holdfast.sync
from holdfast import EngineRefused
from holdfast.testing.plugin import started_or_skip
from holdfast.testing.servers import RedisCluster, RedisSentinel, RedisServer, say

pytestmark = pytest.mark.redis

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "engines.md"
RIGHTS = re.search(r"ACL SETUSER app on >password (.+?)```", PAGE.read_text("utf-8"), re.DOTALL)[1].split()
SENTINEL, CLUSTER = ["+role"], ["+cluster|slots", "+asking"]


def allow(nodes, *rights):
    for node in nodes:
        say(node, "ACL", "SETUSER", "app", "on", ">pass/word", *rights)


def use_everything(url, names):
    with holdfast.sync.Holdfast(url) as hf:
        for name in names:
            hf.lock(name).acquire(wait=0, execution_id="run-1")
            assert hf.idempotency.run(name, lambda: 1) == hf.idempotency.run(name, lambda: 2) == 1
            assert hf.idempotency.forget(name)
        with hf.hub.listen("news") as news:
            hf.hub.publish("news", "hello")
            assert news.next(5).payload == "hello"
        assert {found.name for found in hf.locks.list()} == set(names)
        assert hf.locks.cleanup("run-1").cleaned_count == len(names)


def test_the_docs_name_these_rights():
    text = PAGE.read_text("utf-8")
    assert f"Sentinel also needs `{' '.join(SENTINEL)}`, a Cluster `{' '.join(CLUSTER)}`" in text


def test_an_acl_user_on_a_single_server_over_tls(certificates):
    server = RedisServer(tls=certificates)
    try:
        started_or_skip(server)
        allow([server], *RIGHTS)
        url = server.url.replace("://", "://app:pass%2Fword@")
        use_everything(url, ["x"])
        with (
            pytest.raises(EngineRefused, match="username or password"),
            holdfast.sync.Holdfast(url.replace("pass%2Fword", "wrong")),
        ):
            pass
    finally:
        server.stop()


def test_an_acl_user_behind_sentinels():
    group = RedisSentinel(replicas=1)
    try:
        started_or_skip(group)
        url = group.url.replace("://", "://app:pass%2Fword@")
        allow(group.servers, *RIGHTS)
        with pytest.raises(EngineRefused, match="role"), holdfast.sync.Holdfast(url):
            pass
        allow(group.servers, *SENTINEL)
        use_everything(url, ["x"])
    finally:
        group.stop()


def test_an_acl_user_on_a_cluster():
    group = RedisCluster(replicas=0)
    try:
        started_or_skip(group)
        url = group.url.replace("://", "://app:pass%2Fword@")
        allow(group.nodes, *RIGHTS)
        with pytest.raises(EngineRefused, match="cluster"), holdfast.sync.Holdfast(url):
            pass
        allow(group.nodes, *CLUSTER)
        use_everything(url, list(one_on_each(group).values()))
    finally:
        group.stop()
