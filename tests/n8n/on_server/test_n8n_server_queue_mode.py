"""A full n8n server in queue mode: its main process serves requests, and a worker runs the workflows."""

from __future__ import annotations

import threading

import pytest
from deployed_workflow import (
    CLEAN_UP,
    LOCKED_BODY,
    WITHIN,
    WORK,
)
from lab.runner import node
from server_bodies import fails_once, inline_body, slow
from server_checks import (
    check_manual_release_on_http,
    check_only_the_locked_workflow_can_be_retried,
    check_retry_acquires_the_lock_again,
    check_ttl_releases_the_lock_on_redis,
    count_runs,
    held_on_http,
    held_on_redis,
    is_held_after_the_timeout,
    start_retry,
    start_until_in_body,
    stop,
)

from backstay.testing.waiting import eventually

pytestmark = [pytest.mark.n8n_server, pytest.mark.redis]


def test_in_queue_mode_a_retry_acquires_the_lock_again_and_runs_the_body_under_it(deploy_queue, call_locks):
    check_retry_acquires_the_lock_again(deploy_queue(*fails_once(seconds=5)), call_locks)


def test_in_queue_mode_only_the_locked_workflow_itself_can_be_retried(deploy_queue, call_locks):
    check_only_the_locked_workflow_can_be_retried(deploy_queue(*fails_once()), call_locks)


def test_in_queue_mode_a_failed_inline_body_is_saved_and_retried_unlocked(deploy_queue, call_locks):
    """The reason why such a body needs acceptance: n8n saves the failed execution against its settings, and a retry
    starts at the failed node. A documented limit.
    """
    first = "={{ $execution.id === $('Lock Acquire').first().json.execution_id ? 'no object' : { done: true } }}"
    broken = node("Broken", "set", 3.4, {"mode": "raw", "jsonOutput": first, "options": {}})
    count, *_ = fails_once()
    body, options = inline_body(broken, count)
    work = deploy_queue(*body, **options)
    assert work.wiring == "inline"
    assert work.client.workflow(work.id).data["settings"]["saveDataErrorExecution"] == "none"
    assert work.hit()[0] == 200  # the response is sent before the failure
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    ((failed, status),) = work.shown(WORK)
    assert (status, count_runs(work)) == ("error", 0)
    assert (
        call_locks(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200
    )  # the error workflow released it
    start_retry(work, failed).join(WITHIN)
    assert count_runs(work) == 1  # the rest of the body ran while another holder had the lock
    assert len(work.executions(of="lock_acquisition")) == 1
    assert call_locks(work.scope, "release", lock_id="python")[0] == 200


def test_in_queue_mode_retrying_a_body_of_a_lost_worker_runs_no_node(deploy_queue, call_locks):
    """n8n marks executions missing from its queue as crashed, whatever the settings, and offers to retry them."""
    work = deploy_queue(*fails_once(seconds=20))
    caller = threading.Thread(target=work.hit)
    caller.start()
    assert eventually(lambda: count_runs(work) == 1, WITHIN)  # in the body
    work.server.crash(lose_event_log=True)
    caller.join(WITHIN)
    body = f"{WORK} (locked body)"
    assert eventually(lambda: [status for _, status in work.shown(body)] == ["crashed"] * 2, WITHIN)
    for execution, _ in work.shown(body):  # the call of the body, and the body
        start_retry(work, execution).join(WITHIN)
    assert [status for _, status in work.shown(body)] == ["crashed"] * 2 + ["error"] * 2
    assert count_runs(work) == 1


def test_in_queue_mode_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy_queue, call_locks):
    check_manual_release_on_http(deploy_queue(*slow(5), error_workflow=CLEAN_UP), call_locks)


def test_in_queue_mode_on_redis_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(
    deploy_redis_queue, redis, stay
):
    check_ttl_releases_the_lock_on_redis(deploy_redis_queue(*slow(5), error_workflow=CLEAN_UP), redis, stay)


def is_released_after_the_body(work, held):
    """In queue mode n8n checks the timeout only between nodes: the error workflow starts after the body has ended."""
    assert is_held_after_the_timeout(work, held)
    assert eventually(lambda: work.executions("success", CLEAN_UP), WITHIN)
    (cleaned,) = work.executions("success", CLEAN_UP)
    listed = work.output_of(cleaned["id"], "Error Trigger")["execution"]
    assert (listed["error"]["name"], listed["lastNodeExecuted"]) == ("TimeoutExecutionCancelledError", "Locked Body")
    assert work.output_of(cleaned["id"], "Log Cleanup")["scopes"] == [work.scope]
    return not held()


def test_in_queue_mode_the_error_workflow_releases_the_lock_of_a_timed_out_execution_after_its_body(
    deploy_queue, call_locks
):
    work = deploy_queue(*slow(9), error_workflow=CLEAN_UP)
    assert is_released_after_the_body(work, held_on_http(work, call_locks))


def test_in_queue_mode_on_redis_the_error_workflow_releases_the_lock_of_a_timed_out_execution_after_its_body(
    deploy_redis_queue, redis
):
    work = deploy_redis_queue(*slow(9), error_workflow=CLEAN_UP)
    assert is_released_after_the_body(work, held_on_redis(work, redis))


def test_in_queue_mode_a_stopped_body_keeps_running_under_its_lock(deploy_queue, call_locks):
    """n8n reports it as canceled, but its main process cannot stop a sub-workflow that a worker runs."""
    work = deploy_queue(*slow(5), error_workflow=CLEAN_UP)
    held = held_on_http(work, call_locks)
    _, caller = start_until_in_body(work)
    _, (body, _) = work.shown(LOCKED_BODY)
    stop(work, body)
    assert work.shown(LOCKED_BODY)[1] == (body, "canceled")
    assert (count_runs(work), held()) == (1, True)
    caller.join(WITHIN)
    assert count_runs(work) == 2
    assert [status for _, status in work.shown(WORK)] == ["success"]
    assert not held()
