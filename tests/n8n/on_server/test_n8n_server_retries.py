"""Retries of failed and crashed executions on a full n8n server, with locks over HTTP."""

from __future__ import annotations

import threading

import pytest
from deployed_workflow import (
    WITHIN,
    WORK,
)
from server_bodies import done, fails_once, reply
from server_checks import (
    check_only_the_locked_workflow_can_be_retried,
    check_retry_acquires_the_lock_again,
    count_runs,
    run_and_fail_once,
    start_retry,
)

from backstay.testing.waiting import eventually

pytestmark = [pytest.mark.n8n_server, pytest.mark.redis]


def test_on_http_a_retry_waits_for_another_holder(deploy_http, call_locks):
    work = deploy_http(*fails_once())
    failed = run_and_fail_once(work)
    assert call_locks(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200

    def waiting():
        return call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[1]["count"] == 2

    caller = start_retry(work, failed)
    assert eventually(waiting, WITHIN)  # one holds it, one waits
    assert (count_runs(work), work.executions("success")) == (1, [])
    call_locks(work.scope, "release", lock_id="python")
    caller.join(WITHIN)
    assert (count_runs(work), len(work.executions("success"))) == (2, 1)


def test_on_http_two_retries_of_one_execution_run_one_after_the_other(deploy_http, call_locks):
    work = deploy_http(*fails_once(seconds=3))
    failed = run_and_fail_once(work)
    both = [start_retry(work, failed) for _ in range(2)]
    for caller in both:
        caller.join(WITHIN)
    assert (count_runs(work), len(work.executions("success"))) == (3, 2)
    grants = sorted(one["stoppedAt"] for one in work.executions("success", "lock_acquisition"))
    releases = sorted(one["startedAt"] for one in work.executions("success", "lock_release"))
    assert grants[1] < releases[1] <= grants[2] < releases[2]


def test_on_http_a_retry_after_a_failed_acquire_takes_the_lock(deploy_http, call_locks):
    """The failed node is the acquire, so n8n's retry starts there."""
    work = deploy_http(done(), fail_fast=True)
    assert call_locks(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200
    assert work.hit()[0] >= 400
    assert eventually(lambda: work.executions("error"), WITHIN)
    call_locks(work.scope, "release", lock_id="python")
    start_retry(work, work.executions("error")[0]["id"]).join(WITHIN)
    assert len(work.executions("success")) == 1
    assert len(work.executions("success", "lock_release")) == 1


def test_on_http_a_crashed_execution_is_retried_under_the_lock_and_its_body_cannot_be_retried(deploy_http, call_locks):
    """n8n saves nothing of a crashed body; the error workflow releases its lock, and a retry starts at the trigger."""
    work = deploy_http(*fails_once(seconds=20), error_workflow="error_handler_lock_cleanup")
    caller = threading.Thread(target=work.hit)
    caller.start()
    assert eventually(lambda: count_runs(work) == 1, WITHIN)  # in the body
    work.server.crash()
    caller.join(WITHIN)
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    assert eventually(lambda: [status for _, status in work.shown(WORK)] == ["crashed"], WITHIN)
    for what in ("locked body", "locked retry"):
        assert eventually(lambda what=what: work.shown(f"{WORK} ({what})") == [], WITHIN)
    ((crashed, _),) = work.shown(WORK)
    start_retry(work, crashed).join(WITHIN)
    assert (count_runs(work), len(work.executions("success"))) == (2, 1)
    assert len(work.executions("success", "lock_acquisition")) == 2


def test_on_http_a_final_response_is_sent_after_the_release_and_its_body_is_retried_under_the_lock(
    deploy_http, call_locks
):
    """The response node stays with the webhook, the rest becomes a sub-workflow, so a retry acquires the lock again."""
    work = deploy_http(*fails_once(seconds=3), reply(), response_mode="responseNode")
    assert work.wiring == "sub-workflow"
    caller = start_retry(work, run_and_fail_once(work))
    assert eventually(lambda: count_runs(work) == 2, WITHIN)  # in the body now
    assert call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 409
    caller.join(WITHIN)
    assert len(work.executions("success")) == 1
    assert work.hit()[:2] == (200, {"done": True})
    assert (count_runs(work), len(work.executions("success", "lock_release"))) == (3, 3)
    assert call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    call_locks(work.scope, "release", lock_id="probe")


def test_on_http_a_retry_acquires_the_lock_again_and_runs_the_body_under_it(deploy_http, call_locks):
    check_retry_acquires_the_lock_again(deploy_http(*fails_once(seconds=5)), call_locks)


def test_on_http_only_the_locked_workflow_itself_can_be_retried(deploy_http, call_locks):
    check_only_the_locked_workflow_can_be_retried(deploy_http(*fails_once()), call_locks)
