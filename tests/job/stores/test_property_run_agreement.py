"""Every job store agrees with the model on runs: equal commands at equal times give equal replies, runs, jobs and
events.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from lockstep import scripts
from run_histories import RunLockstep

from support.agreement import store_agreement
from support.agreement.store_agreement import FOR_LONG, ON_A_SERVER

#: Shrinking a failure takes longer than finding it.
pytestmark = pytest.mark.timeout(600)
THOROUGH = settings(store_agreement.THOROUGH, max_examples=200)


@THOROUGH
@given(script=scripts)
def test_the_sqlite_store_agrees_with_the_run_model(on_sqlite, script):
    on_sqlite.play(RunLockstep, script)


@pytest.mark.redis
@ON_A_SERVER
@given(script=scripts)
def test_the_redis_store_agrees_with_the_run_model(on_redis, script):
    on_redis.play(RunLockstep, script)


@pytest.mark.postgres
@ON_A_SERVER
@given(script=scripts)
def test_the_postgres_store_agrees_with_the_run_model(on_postgres, script):
    on_postgres.play(RunLockstep, script)


@pytest.mark.soak
@FOR_LONG
@given(script=scripts)
def test_thousands_of_histories_of_runs_on_sqlite(on_sqlite, script):
    on_sqlite.play(RunLockstep, script)


@pytest.mark.soak
@pytest.mark.redis
@FOR_LONG
@given(script=scripts)
def test_thousands_of_histories_of_runs_on_redis(on_redis, script):
    on_redis.play(RunLockstep, script)


@pytest.mark.soak
@pytest.mark.postgres
@FOR_LONG
@given(script=scripts)
def test_thousands_of_histories_of_runs_on_postgres(on_postgres, script):
    on_postgres.play(RunLockstep, script)
