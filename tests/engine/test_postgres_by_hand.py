"""The SQL that is printed for whoever migrates by hand: for the version that is there, and for no other."""

from __future__ import annotations

import re

import psycopg
import pytest
from typer.testing import CliRunner

from backstay import EngineRefused, SchemaTooNew, sync
from backstay.cli import exit_codes
from backstay.cli.root import app
from backstay.doctor.examine import examine
from backstay.engine import migrations
from backstay.engine.postgres import schema
from backstay.engine.postgres.rights import grants

pytestmark = pytest.mark.postgres

OLDER = range(1, schema.latest())
COMMAND = re.compile(r"`(backstay migrate --sql[^`]*)`")


@pytest.fixture
def owner(database):
    with psycopg.connect(database.url, autocommit=True) as owner:
        yield owner


def version(db):
    ((found,),) = db.execute("SELECT value FROM backstay_meta WHERE key = 'schema'").fetchall()
    return found


def make(owner, version):
    """A database as an older Backstay left it."""
    owner.execute(schema.META)
    for script in migrations.scripts("postgres")[:version]:
        owner.execute(script)
    owner.execute(schema.DONE, (version,))


def printed(command):
    done = CliRunner().invoke(app, command.split()[1:], prog_name="backstay")
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("old", [0, *OLDER])
def test_the_command_that_is_advised_brings_the_database_up_to_date(database, owner, old):
    if old:
        make(owner, old)
        owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {database.name}")
    with pytest.raises(EngineRefused) as refused, sync.Backstay(database.humble):
        pass
    (told,) = COMMAND.findall(str(refused.value))
    (advised,) = COMMAND.findall("".join(f.advice for f in examine(database.humble).findings if f.topic == "schema"))
    assert told == advised
    owner.execute(printed(advised))
    owner.execute("".join(grants(database.name)))
    assert version(owner) == schema.latest()
    with sync.Backstay(database.humble) as stay, stay.lock("x", wait=0):
        pass


@pytest.mark.parametrize("since", [0, *OLDER])
def test_a_script_for_another_version_fails_and_changes_nothing(owner, since):
    make(owner, schema.latest())
    with pytest.raises(psycopg.errors.RaiseException, match=f"for schema {since}, .* has schema {schema.latest()}"):
        owner.execute(schema.as_sql(since))
    owner.execute("ROLLBACK")
    assert version(owner) == schema.latest()


@pytest.mark.parametrize("since", OLDER)
def test_a_script_for_an_older_version_fails_on_an_empty_database(owner, since):
    with pytest.raises(psycopg.errors.RaiseException, match=f"for schema {since}, .* has schema 0"):
        owner.execute(schema.as_sql(since))
    owner.execute("ROLLBACK")
    assert owner.execute("SELECT to_regclass('backstay_meta')").fetchone() == (None,)


def test_a_script_waits_for_whoever_migrates(database, owner):
    with psycopg.connect(database.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (schema.LOCK,))
        owner.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            owner.execute(schema.as_sql())
        owner.execute("ROLLBACK")
    owner.execute(schema.as_sql())
    assert version(owner) == schema.latest()


def test_a_script_sees_what_was_done_while_it_waited(database, owner):
    """Also where transactions see the moment at which they began."""
    head = schema.as_sql().splitlines()
    assert head.pop() == "COMMIT;"
    with psycopg.connect(database.url, autocommit=True) as other:
        owner.execute("SET default_transaction_isolation = 'serializable'")
        owner.execute("\n".join(head[:2]))
        make(other, schema.latest())
        with pytest.raises(psycopg.errors.RaiseException, match=f"has schema {schema.latest()}"):
            owner.execute("\n".join(head[2:]))
        owner.execute("ROLLBACK")


def test_nothing_to_do_is_a_comment():
    lines = printed(f"backstay migrate --sql --since {schema.latest()}").splitlines()
    assert lines
    assert all(line.startswith("--") for line in lines)


def test_a_version_that_is_not_known_yet_is_refused():
    with pytest.raises(SchemaTooNew):
        schema.as_sql(schema.latest() + 1)
    done = CliRunner().invoke(app, ["migrate", "--sql", "--since", "99"], prog_name="backstay")
    assert (done.exit_code, done.stdout) == (exit_codes.ENGINE, "")


def test_since_goes_with_sql(database):
    done = CliRunner().invoke(app, ["migrate", "--since", "1", database.url], prog_name="backstay")
    assert done.exit_code == exit_codes.USAGE
