"""Checks of deployed workflows that several tests share: runs, retries, stops, and whether the lock is held."""

from __future__ import annotations

import threading

from deployed_workflow import (
    CLEAN_UP,
    LOCKED_BODY,
    WITHIN,
    WORK,
    is_free,
)

from backstay.testing.waiting import eventually


def count_runs(work):
    """Return how often the body has run; its first node calls the primitive `rate_limit_check`."""
    return len(work.executions("success", "rate_limit_check"))


def run_and_fail_once(work):
    """Run the workflow, let its body fail once and return the id of the execution."""
    status, body, _ = work.hit()
    assert status >= 400 or body is None  # n8n's reply when the response node did not run
    assert eventually(lambda: work.executions("error"), WITHIN)
    assert count_runs(work) == 1
    (failed,) = work.executions("error")
    return failed["id"]


def start_retry(work, execution):
    """Retry an execution in a thread, as the editor does; n8n replies when the retry has ended."""
    caller = threading.Thread(target=work.server.call, args=("POST", f"/rest/executions/{execution}/retry", {}, WITHIN))
    caller.start()
    return caller


def check_retry_acquires_the_lock_again(work, call_locks):
    """Check that n8n's retry of a body from `fails_once(seconds=5)` runs under a lock of its own."""
    failed = run_and_fail_once(work)
    assert call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    call_locks(work.scope, "release", lock_id="probe")
    caller = start_retry(work, failed)
    assert eventually(lambda: count_runs(work) == 2, WITHIN)  # in the body now
    status, held = call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)
    assert status == 409, held
    caller.join(WITHIN)
    (again,) = work.executions("success")
    assert again["retryOf"] == failed
    assert [one["id"] for one in work.executions("error")] == [failed]
    first, second = reversed(work.executions("success", "lock_acquisition"))
    grants = [work.output_of(one["id"], "Build Acquire Output") for one in (first, second)]
    assert [grant["execution_id"] for grant in grants] == [failed, again["id"]]
    assert len({grant["lock_id"] for grant in grants}) == 2
    assert len(work.executions("success", "lock_release")) == 2
    assert call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    call_locks(work.scope, "release", lock_id="probe")


def check_only_the_locked_workflow_can_be_retried(work, call_locks):
    """Check that n8n saves no failed executions of the body or of its calling workflow. The body is `fails_once()`."""
    failed = run_and_fail_once(work)
    for what in ("locked body", "locked retry"):
        assert work.shown(f"{WORK} ({what})") == []
    listed = work.server.call("GET", "/rest/executions?limit=50")[1]["data"]["results"]
    last = max(int(one["id"]) for one in listed)
    for other in range(int(failed) + 1, last + 1):
        status, reply_body, _ = work.server.call("POST", f"/rest/executions/{other}/retry", {})
        assert status >= 400, reply_body
    assert count_runs(work) == 1
    assert call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    call_locks(work.scope, "release", lock_id="probe")


def leaves_nothing_to_retry(work, call_locks):
    """Check that the error workflow released the lock and that n8n has no execution left that could be retried."""
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    assert eventually(lambda: work.shown(WORK) == [], WITHIN)
    listed = work.server.call("GET", "/rest/executions?limit=50")[1]["data"]["results"]
    last = max(int(one["id"]) for one in listed)
    for other in range(last, max(0, last - 10), -1):
        status, reply_body, _ = work.server.call("POST", f"/rest/executions/{other}/retry", {})
        assert status >= 400, reply_body
    assert call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    call_locks(work.scope, "release", lock_id="probe")
    return True


def held_on_redis(work, redis):
    return lambda: not is_free(redis, work.scope)


def held_on_http(work, call_locks):
    def held():
        status, _ = call_locks(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)
        return status == 409 or call_locks(work.scope, "release", lock_id="probe")[0] != 200

    return held


def start_until_in_body(work):
    """Start the workflow and wait until its body runs; return the execution id and the requesting thread."""
    caller = threading.Thread(target=work.hit, args=(60,))
    caller.start()
    assert eventually(lambda: count_runs(work) == 1, WITHIN)
    (running,) = work.executions("running")
    return running["id"], caller


def stop(work, execution):
    assert work.server.call("POST", f"/rest/executions/{execution}/stop")[0] == 200


def is_held_while_the_body_runs(work, held):
    """Poll the lock until the body has ended."""
    running = True
    while running:
        was_held = held()
        running = "running" in [status for _, status in work.shown(LOCKED_BODY)]
        assert was_held or not running
        assert not running or not work.executions(of=CLEAN_UP)  # no clean-up was attempted
    return True


def check_held_after_a_stop(work, held):
    """The lock is held while the body runs and afterwards: only its TTL releases it, and n8n's retry runs nothing."""
    stopped, caller = start_until_in_body(work)
    stop(work, stopped)
    assert eventually(lambda: work.shown(WORK) == [(stopped, "canceled")], WITHIN)
    assert "running" in [status for _, status in work.shown(LOCKED_BODY)]
    assert is_held_while_the_body_runs(work, held)
    caller.join(WITHIN)
    assert count_runs(work) == 2  # the body ran to its end
    assert [status for _, status in work.shown(LOCKED_BODY)] == ["success"] * 2
    assert work.executions(of=CLEAN_UP) == []
    assert work.executions(of="lock_release") == []
    start_retry(work, stopped).join(WITHIN)
    assert count_runs(work) == 2
    assert held()
    (acquire,) = work.executions("success", "lock_acquisition")
    return work.output_of(acquire["id"], "Build Acquire Output")


def check_ttl_releases_the_lock_on_redis(work, redis, stay):
    grant = check_held_after_a_stop(work, held_on_redis(work, redis))
    assert 0 < redis.ttl(grant["key"]) <= 600
    (holder,) = stay.locks.force_release(work.scope, wire="n8n").holders
    assert holder.lock_id == grant["lock_id"]


def check_manual_release_on_http(work, call_locks):
    """Check that the lock of a stopped execution is held until it is released by its id."""
    held = held_on_http(work, call_locks)
    grant = check_held_after_a_stop(work, held)
    assert call_locks(work.scope, "release", lock_id=grant["lock_id"])[0] == 200  # a manual release
    assert not held()


def set_time_limit(work, seconds):
    """Set the timeout of the locked workflow itself, which the patch had extended by the wait."""
    data = work.client.workflow(work.id).data
    wanted = {name: data[name] for name in ("name", "nodes", "connections")}
    kept = {name: data["settings"][name] for name in ("executionOrder", "errorWorkflow")}
    work.client.update(work.id, {**wanted, "settings": {**kept, "executionTimeout": seconds}})


def is_held_after_the_timeout(work, held):
    """n8n passes the caller's timeout to a sub-workflow, which ends before its next node and not earlier."""
    set_time_limit(work, 6)
    late, caller = start_until_in_body(work)
    assert is_held_while_the_body_runs(work, held)
    assert eventually(lambda: work.shown(WORK) == [(late, "canceled")], WITHIN)
    caller.join(WITHIN)
    assert count_runs(work) == 1
    return True
