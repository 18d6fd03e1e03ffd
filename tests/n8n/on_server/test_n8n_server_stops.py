"""Stops and timeouts on a full n8n server: they end the caller, while its body continues under the lock."""

from __future__ import annotations

import pytest
from deployed_workflow import (
    CLEAN_UP,
    LOCKED_BODY,
    WITHIN,
    is_free,
)
from server_bodies import slow
from server_checks import (
    check_manual_release_on_http,
    check_ttl_releases_the_lock_on_redis,
    count_runs,
    held_on_http,
    held_on_redis,
    is_held_after_the_timeout,
    start_until_in_body,
    stop,
)

pytestmark = [pytest.mark.n8n_server, pytest.mark.redis]
on_error = pytest.mark.parametrize("error_workflow", [CLEAN_UP, ""])


@on_error
def test_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy, redis, stay, error_workflow):
    """n8n starts no error workflow for a stop, so `--lock-on-error` changes nothing."""
    check_ttl_releases_the_lock_on_redis(deploy(*slow(5), error_workflow=error_workflow), redis, stay)


@on_error
def test_on_http_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(
    deploy_http, call_locks, error_workflow
):
    check_manual_release_on_http(deploy_http(*slow(5), error_workflow=error_workflow), call_locks)


def test_a_lock_is_held_while_the_body_of_a_timed_out_execution_runs(deploy, redis, stay):
    """In one process, n8n starts no error workflow for a timeout either."""
    work = deploy(*slow(9), error_workflow=CLEAN_UP)
    held = held_on_redis(work, redis)
    assert is_held_after_the_timeout(work, held)
    assert held()
    assert work.executions(of=CLEAN_UP) == []
    assert stay.locks.force_release(work.scope, wire="n8n").holders


def test_on_http_a_lock_is_held_while_the_body_of_a_timed_out_execution_runs(deploy_http, call_locks):
    work = deploy_http(*slow(9), error_workflow=CLEAN_UP)
    held = held_on_http(work, call_locks)
    assert is_held_after_the_timeout(work, held)
    assert held()
    assert work.executions(of=CLEAN_UP) == []


def test_a_body_that_is_stopped_itself_runs_no_further_node(deploy, redis, stay):
    work = deploy(*slow(5), error_workflow=CLEAN_UP)
    stopped, caller = start_until_in_body(work)
    stop(work, stopped)
    caller.join(WITHIN)
    _, (body, _) = work.shown(LOCKED_BODY)  # the call of the body, and the body
    stop(work, body)
    assert not is_free(redis, work.scope)
    assert stay.locks.force_release(work.scope, wire="n8n").holders
    assert work.hit()[0] == 200  # a new execution, longer than the rest of the first body
    assert count_runs(work) == 3
    assert is_free(redis, work.scope)
