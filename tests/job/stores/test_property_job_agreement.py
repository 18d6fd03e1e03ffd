"""Every job store agrees with the model: equal commands at equal times give equal replies and equal jobs."""

from __future__ import annotations

import pytest
from hypothesis import given
from job_histories import JobLockstep, PlainJobLockstep
from lockstep import scripts

from support.agreement.store_agreement import FOR_LONG, ON_A_SERVER, THOROUGH

#: Shrinking a failure takes longer than finding it.
pytestmark = pytest.mark.timeout(600)


@THOROUGH
@given(script=scripts)
def test_the_sqlite_store_agrees_with_the_job_model(on_sqlite, script):
    on_sqlite.play(JobLockstep, script)


@pytest.mark.redis
@ON_A_SERVER
@given(script=scripts)
def test_the_redis_store_agrees_with_the_job_model(on_redis, script):
    on_redis.play(JobLockstep, script)


@pytest.mark.redis
@ON_A_SERVER
@given(script=scripts)
def test_the_redis_store_agrees_with_the_job_model_on_plain_jobs(on_redis, script):
    on_redis.play(PlainJobLockstep, script)


@pytest.mark.postgres
@ON_A_SERVER
@given(script=scripts)
def test_the_postgres_store_agrees_with_the_job_model(on_postgres, script):
    on_postgres.play(JobLockstep, script)


@pytest.mark.soak
@FOR_LONG
@given(script=scripts)
def test_thousands_of_histories_on_sqlite(on_sqlite, script):
    on_sqlite.play(JobLockstep, script)


@pytest.mark.soak
@pytest.mark.redis
@FOR_LONG
@given(script=scripts)
def test_thousands_of_histories_on_redis(on_redis, script):
    on_redis.play(JobLockstep, script)


@pytest.mark.soak
@pytest.mark.redis
@FOR_LONG
@given(script=scripts)
def test_thousands_of_histories_of_plain_jobs_on_redis(on_redis, script):
    on_redis.play(PlainJobLockstep, script)


@pytest.mark.soak
@pytest.mark.postgres
@FOR_LONG
@given(script=scripts)
def test_thousands_of_histories_on_postgres(on_postgres, script):
    on_postgres.play(JobLockstep, script)
