"""A look at a PostgreSQL server with the eyes of the user that Backstay would be. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg

from backstay.doctor.finding import OK, PROBLEM, SKEW_PROBLEM, SKEW_WARNING, WARNING, Finding, above, round_trip
from backstay.engine.postgres.connection.session import Session
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.rights import RIGHTS, grants
from backstay.engine.postgres.schema import command, latest, version
from backstay.errors import EngineError

#: Two for the groups and one for the hub.
CONNECTIONS = 3
#: Below this share of free connections, the next deployment may find none.
FEW = 0.2

Clock = Callable[[], float]


def where(engine: PostgresEngine) -> str:
    return str(engine)


def diagnose(engine: PostgresEngine, clock: Clock) -> Iterator[Finding]:
    """Everything worth knowing, in the order in which one would ask."""
    try:
        session = engine.connect("doctor")
    except EngineError as error:
        yield Finding(PROBLEM, "reach", str(error), "mend the URL, or let this host and user in (pg_hba.conf)")
        return
    try:
        for look in (reach, durability, rights, replicas, room):
            yield from look(session)
        yield clock_skew(session, clock)
        yield round_trip(lambda: session.execute(b"SELECT 1"))
    except psycopg.Error as error:
        yield Finding(PROBLEM, "reach", f"it stopped answering: {' '.join(str(error).split())}", "look at its log")
    finally:
        session.close()


def ask(session: Session, question: str, *values: Any) -> Any:
    """One value."""
    row = session.execute(question.encode(), values).fetchone()
    return row[0] if row else None


def setting(session: Session, name: str) -> str:
    return str(ask(session, "SELECT current_setting(%s)", name))


def reach(session: Session) -> Iterator[Finding]:
    number = session.info.server_version
    yield Finding(OK, "version", f"PostgreSQL {number // 10000}.{number % 10000}")
    if ask(session, "SELECT pg_is_in_recovery()"):
        advice = "point the URL at the primary; several hosts and target_session_attrs=read-write find it"
        yield Finding(PROBLEM, "role", "this is a standby: it takes no writes", advice)
    elif setting(session, "default_transaction_read_only") == "on":
        advice = "ALTER ROLE … SET default_transaction_read_only = off"
        yield Finding(PROBLEM, "role", "this user's transactions are read-only", advice)
    else:
        yield Finding(OK, "role", "a primary that takes writes")


def durability(session: Session) -> Iterator[Finding]:
    if setting(session, "fsync") == "off":
        yield Finding(PROBLEM, "persistence", "fsync is off: a crash of the host may lose everything", "fsync = on")
    commit = setting(session, "synchronous_commit")
    if commit == "off":
        advice = "ALTER ROLE … SET synchronous_commit = on"
        yield Finding(
            WARNING,
            "persistence",
            "synchronous_commit is off: a crash forgets the last grants, so two may hold",
            advice,
        )
    else:
        yield Finding(OK, "persistence", f"synchronous_commit is {commit}: what was answered is on disk")


def rights(session: Session) -> Iterator[Finding]:
    there = [table for table in RIGHTS if ask(session, "SELECT to_regclass(%s)", table)]
    lacking = [table for table in there if not may(session, table, RIGHTS[table])]
    if lacking:
        advice = " ".join(grants(ask(session, "SELECT quote_ident(current_user)"), lacking))
        yield Finding(PROBLEM, "rights", f"this user may not use {', '.join(lacking)}", advice)
        return
    have = version(session)
    if have > latest():
        advice = "upgrade the package before using this database"
        yield Finding(PROBLEM, "schema", f"schema {have} is newer than this Backstay knows ({latest()})", advice)
        return
    if have < latest():
        what = f"schema {have} of {latest()}"
        if may_migrate(session):
            yield Finding(OK, "schema", f"{what}: the first lock brings it up to date")
        else:
            by_hand = f"feed what `{command(have)}` prints to psql"
            advice = f"run `backstay migrate` as a user who may create tables, or {by_hand}"
            yield Finding(PROBLEM, "schema", f"{what}, and this user may not create tables", advice)
        return
    yield Finding(OK, "schema", f"schema {have}, up to date; this user may read and write it")


def may(session: Session, table: str, needed: Iterable[str]) -> bool:
    return all(ask(session, "SELECT has_table_privilege(%s, %s)", table, right) for right in needed)


def may_migrate(session: Session) -> bool:
    """Whether this user may create tables and write down that it did."""
    if not ask(session, "SELECT has_schema_privilege(current_schema(), 'CREATE')"):
        return False
    first = ask(session, "SELECT to_regclass('backstay_meta')") is None
    return first or may(session, "backstay_meta", ("INSERT", "UPDATE"))


def clock_skew(session: Session, clock: Clock) -> Finding:
    before = clock()
    theirs = float(ask(session, "SELECT extract(epoch FROM clock_timestamp())"))
    skew = abs(theirs - (before + clock()) / 2)
    level = above(skew, SKEW_WARNING, SKEW_PROBLEM)
    advice = (
        "" if level == OK else "run NTP (chrony) on this host and on the server: after a failover, fences follow it"
    )
    return Finding(level, "clock", f"the server's clock is {skew:.3f} s from this host's", advice)


def replicas(session: Session) -> Iterator[Finding]:
    count = int(ask(session, "SELECT count(*) FROM pg_stat_replication"))
    waits = setting(session, "synchronous_standby_names")
    if not count:
        yield Finding(OK, "replicas", "none: as durable as this server's disk")
    elif waits:
        yield Finding(OK, "replicas", f"{count}, and commits wait for {waits}")
    else:
        advice = "set synchronous_standby_names where a failover must not forget a grant"
        yield Finding(WARNING, "replicas", f"{count}, for which no commit waits: a failover may forget grants", advice)


def room(session: Session) -> Iterator[Finding]:
    most = int(setting(session, "max_connections"))
    used = int(ask(session, "SELECT count(*) FROM pg_stat_activity"))
    what = f"{used} of {most} connections are in use; a process of Backstay takes {CONNECTIONS}"
    if used > most * (1 - FEW):
        yield Finding(WARNING, "connections", what, "raise max_connections, or end what is not needed")
    else:
        yield Finding(OK, "connections", what)
