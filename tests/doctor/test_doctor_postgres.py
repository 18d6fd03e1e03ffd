"""`backstay doctor` against PostgreSQL servers, healthy and not."""

from __future__ import annotations

import secrets
import time

import psycopg
import pytest

from backstay import sync
from backstay.doctor.examine import examine

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(backstay_postgres):
    """A new database and a role without any rights in it."""
    name = f"doctor_{secrets.token_hex(4)}"
    with psycopg.connect(backstay_postgres.admin_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        admin.execute(f"CREATE ROLE {name} LOGIN")
        yield name, f"127.0.0.1:{backstay_postgres.port}/{name}", admin
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.execute(f"DROP ROLE {name}")


def found(report):
    return {finding.topic: finding for finding in report.findings}


def test_every_topic_of_a_healthy_server_is_checked(database):
    _, place, _ = database
    url = f"postgresql://backstay@{place}"
    with sync.Backstay(url) as stay, stay.lock("x"):
        findings = found(examine(url))
    assert {"version", "role", "persistence", "schema", "clock", "replicas", "connections"} <= findings.keys()
    assert all(findings[topic].level == "ok" for topic in ("version", "role", "schema", "clock", "connections"))
    assert findings["round trip"]


def test_missing_rights_are_reported_with_the_statement_to_run(database):
    name, place, _ = database
    report = examine(f"postgresql://{name}@{place}")
    assert report.verdict == "problem"
    assert "backstay migrate" in found(report)["schema"].advice
    with sync.Backstay(f"postgresql://backstay@{place}") as stay, stay.lock("x"):
        pass
    report = examine(f"postgresql://{name}@{place}")
    assert "GRANT SELECT, INSERT, UPDATE, DELETE" in found(report)["rights"].advice


def test_settings_that_can_lose_lock_grants_are_reported(database):
    name, place, admin = database
    admin.execute(f"ALTER ROLE {name} SET synchronous_commit = off")
    admin.execute(f"ALTER ROLE {name} SET default_transaction_read_only = on")
    findings = found(examine(f"postgresql://{name}@{place}"))
    assert findings["persistence"].level == "warning"
    assert (findings["role"].level, "read-only" in findings["role"].what) == ("problem", True)


def test_clock_skew_to_the_server_is_reported_by_its_size(database):
    _, place, _ = database
    url = f"postgresql://backstay@{place}"
    assert found(examine(url, clock=lambda: time.time() + 5))["clock"].level == "problem"
    assert found(examine(url, clock=lambda: time.time() + 0.5))["clock"].level == "warning"


def test_an_unreachable_server_is_reported_without_its_password():
    report = examine("postgresql://backstay:geheim@127.0.0.1:1/x")
    assert report.verdict == "problem"
    assert "geheim" not in str(report)


def test_a_server_clock_that_was_set_back_is_a_problem(database):
    _, place, _ = database
    url = f"postgresql://backstay@{place}"
    with sync.Backstay(url) as stay, stay.lock("x"):
        pass
    assert "time" not in found(examine(url)), "without jobs, no stored time can be compared"
    with psycopg.connect(url, autocommit=True) as admin:
        for ahead, level in ((-1, "ok"), (300, "problem")):
            admin.execute(
                "INSERT INTO backstay_job_turn (space, worker, incarnation, lane, seq, fence, keep_until)"
                " VALUES ('a', 'w', 'i', 0, 1, (extract(epoch FROM clock_timestamp()) + %s) * 1000000, 0)"
                " ON CONFLICT (space, worker, incarnation, lane) DO UPDATE SET fence = excluded.fence",
                [ahead],
            )
            assert found(examine(url))["time"].level == level
    assert found(examine(url))["time"].advice
