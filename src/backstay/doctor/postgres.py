"""Check a PostgreSQL server, with the user and the permissions that Backstay has. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg

from backstay.doctor.finding import (
    OK,
    PROBLEM,
    SKEW_PROBLEM,
    SKEW_WARNING,
    WARNING,
    Finding,
    check_round_trip,
    rate_excess,
    rate_set_back,
)
from backstay.engine.postgres.connection.session import Session
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.rights import RIGHTS, grants
from backstay.engine.postgres.schema import command, latest, version
from backstay.errors import EngineError

#: Connections per process: two for batches and one for the hub.
CONNECTIONS = 3
#: If fewer than this share of the connections are free, the next deployment may find none.
FEW = 0.2

Clock = Callable[[], float]


def where(engine: PostgresEngine) -> str:
    return str(engine)


def diagnose(engine: PostgresEngine, clock: Clock) -> Iterator[Finding]:
    """Run all checks."""
    try:
        session = engine.connect("doctor")
    except EngineError as error:
        yield Finding(PROBLEM, "reach", str(error), "correct the URL, or allow this host and user in pg_hba.conf")
        return
    try:
        for check in (check_role, check_durability, check_schema, check_replicas, check_connections):
            yield from check(session)
        yield check_clock(session, clock)
        yield from check_set_back(session)
        yield check_round_trip(lambda: session.execute(b"SELECT 1"))
    except psycopg.Error as error:
        yield Finding(
            PROBLEM, "reach", f"the server stopped responding: {' '.join(str(error).split())}", "check the server's log"
        )
    finally:
        session.close()


def fetch_value(session: Session, query: str, *values: Any) -> Any:
    """Run a query and return the first column of its first row; None if there is no row."""
    row = session.execute(query.encode(), values).fetchone()
    return row[0] if row else None


def setting(session: Session, name: str) -> str:
    return str(fetch_value(session, "SELECT current_setting(%s)", name))


def check_role(session: Session) -> Iterator[Finding]:
    number = session.info.server_version
    yield Finding(OK, "version", f"PostgreSQL {number // 10000}.{number % 10000}")
    if fetch_value(session, "SELECT pg_is_in_recovery()"):
        advice = "point the URL at the primary; several hosts and target_session_attrs=read-write find it"
        yield Finding(PROBLEM, "role", "this server is a standby and accepts no writes", advice)
    elif setting(session, "default_transaction_read_only") == "on":
        advice = "ALTER ROLE … SET default_transaction_read_only = off"
        yield Finding(PROBLEM, "role", "this user's transactions are read-only", advice)
    else:
        yield Finding(OK, "role", "primary, accepts writes")


def check_durability(session: Session) -> Iterator[Finding]:
    if setting(session, "fsync") == "off":
        yield Finding(PROBLEM, "persistence", "fsync is off: a crash of the host may lose everything", "fsync = on")
    commit = setting(session, "synchronous_commit")
    if commit == "off":
        advice = "ALTER ROLE … SET synchronous_commit = on"
        yield Finding(
            WARNING,
            "persistence",
            "synchronous_commit is off: a crash loses the last grants, so a lock may get two holders",
            advice,
        )
    else:
        yield Finding(OK, "persistence", f"synchronous_commit is {commit}: confirmed commits are on disk")


def check_schema(session: Session) -> Iterator[Finding]:
    """Check this user's privileges on the tables, and the schema's version."""
    existing = [table for table in RIGHTS if fetch_value(session, "SELECT to_regclass(%s)", table)]
    lacking = [table for table in existing if not has_privileges(session, table, RIGHTS[table])]
    if lacking:
        advice = " ".join(grants(fetch_value(session, "SELECT quote_ident(current_user)"), lacking))
        yield Finding(PROBLEM, "rights", f"this user may not use {', '.join(lacking)}", advice)
        return
    have = version(session)
    if have > latest():
        advice = "upgrade the package before using this database"
        yield Finding(PROBLEM, "schema", f"schema {have} is newer than this Backstay supports ({latest()})", advice)
        return
    if have < latest():
        what = f"schema {have} of {latest()}"
        if may_migrate(session):
            yield Finding(OK, "schema", f"{what}: the first use upgrades it")
        else:
            by_hand = f"run the output of `{command(have)}` in psql"
            advice = f"run `backstay migrate` as a user who may create tables, or {by_hand}"
            yield Finding(PROBLEM, "schema", f"{what}, and this user may not create tables", advice)
        return
    yield Finding(OK, "schema", f"schema {have}, up to date; this user may read and write it")


def has_privileges(session: Session, table: str, needed: Iterable[str]) -> bool:
    return all(fetch_value(session, "SELECT has_table_privilege(%s, %s)", table, right) for right in needed)


def may_migrate(session: Session) -> bool:
    """Return whether this user may upgrade the schema: create tables, and write the schema's version to
    `backstay_meta`.
    """
    if not fetch_value(session, "SELECT has_schema_privilege(current_schema(), 'CREATE')"):
        return False
    first = fetch_value(session, "SELECT to_regclass('backstay_meta')") is None
    return first or has_privileges(session, "backstay_meta", ("INSERT", "UPDATE"))


def check_clock(session: Session, clock: Clock) -> Finding:
    before = clock()
    theirs = float(fetch_value(session, "SELECT extract(epoch FROM clock_timestamp())"))
    skew = abs(theirs - (before + clock()) / 2)
    level = rate_excess(skew, SKEW_WARNING, SKEW_PROBLEM)
    advice = (
        "" if level == OK else "run NTP (chrony) on this host and on the server: after a failover, fences depend on it"
    )
    return Finding(level, "clock", f"the server's clock differs from this host's by {skew:.3f} s", advice)


def check_set_back(session: Session) -> Iterator[Finding]:
    """Compare the server's clock with the last fence of a job: a fence is at least the server's time at that moment."""
    if not fetch_value(session, "SELECT to_regclass('backstay_job_turn')"):
        return
    if not has_privileges(session, "backstay_job_turn", ("SELECT",)):
        return  # `check_schema` reports it
    ahead = fetch_value(
        session,
        "SELECT max(fence) / 1000000.0 - extract(epoch FROM clock_timestamp()) FROM backstay_job_turn WHERE fence > 0",
    )
    if ahead is not None:
        yield rate_set_back(float(ahead))


def check_replicas(session: Session) -> Iterator[Finding]:
    count = int(fetch_value(session, "SELECT count(*) FROM pg_stat_replication"))
    waits = setting(session, "synchronous_standby_names")
    if not count:
        yield Finding(OK, "replicas", "none: locks are as durable as this server's disk")
    elif waits:
        yield Finding(OK, "replicas", f"{count}, and commits wait for {waits}")
    else:
        advice = "set synchronous_standby_names where a failover must not lose a grant"
        yield Finding(WARNING, "replicas", f"{count}, all asynchronous: a failover may lose grants", advice)


def check_connections(session: Session) -> Iterator[Finding]:
    most = int(setting(session, "max_connections"))
    used = int(fetch_value(session, "SELECT count(*) FROM pg_stat_activity"))
    what = f"{used} of {most} connections are in use; each process of Backstay uses {CONNECTIONS}"
    if used > most * (1 - FEW):
        yield Finding(WARNING, "connections", what, "raise max_connections, or close unused connections")
    else:
        yield Finding(OK, "connections", what)
