"""The Redis hub and the PostgreSQL hub emit the same connection events, and only documented ones."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
import redis

from backstay import sync
from backstay.testing.waiting import WITHIN, eventually

DOCUMENTED = set(re.findall(r"`(hub\.\w+)`", (Path(__file__).parents[2] / "docs/reference/hub.md").read_text()))
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"


def cut_redis(url, name):
    with redis.Redis.from_url(url) as admin:
        (connection,) = [client for client in admin.client_list() if client["name"] == name]
        admin.client_kill_filter(_id=connection["id"])


def cut_postgres(url, name):
    with psycopg.connect(url) as admin:
        assert admin.execute(TERMINATE, (name,)).fetchall() == [(True,)]


@pytest.mark.parametrize(
    ("server", "cut"),
    [
        pytest.param("redis", cut_redis, marks=pytest.mark.redis),
        pytest.param("postgres", cut_postgres, marks=pytest.mark.postgres),
    ],
)
def test_a_cut_connection_emits_the_same_events_on_every_hub(server, cut, request, namespace):
    url = request.getfixturevalue(f"backstay_{server}").url
    kinds = []
    with sync.Backstay(url, namespace=namespace) as stay:
        stay.telemetry.subscribe(lambda event: kinds.append(event.kind))
        with stay.hub.listen("news") as messages:
            cut(url, f"{stay._core.engine.client_name}:hub")
            assert messages.next(WITHIN).missed
            assert eventually(lambda: "hub.reconnected" in kinds)
            stay.hub.publish("news", "x")
            assert messages.next(WITHIN).payload == "x"
    hub_kinds = [kind for kind in kinds if kind.startswith("hub.")]
    assert [kind for kind in hub_kinds if "connected" in kind or "interrupted" in kind] == [
        "hub.connected",
        "hub.interrupted",
        "hub.reconnected",
    ], "closing is no break"
    assert set(hub_kinds) <= DOCUMENTED
