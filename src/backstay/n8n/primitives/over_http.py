"""The primitives over the Backstay server's HTTP API: atomic, FIFO, with immediate handoff and fencing.

A caller waits for a lock with long polls that share one request id. If a poll or its response is lost, the next poll
keeps the place in the queue or returns the same grant. The caller must confirm a grant, or it lapses: an execution that
was stopped while it waited does not block the lock.
"""

from __future__ import annotations

from backstay.n8n.primitives import inputs, shared
from backstay.n8n.primitives.builder import WorkflowBuilder, expression, first, js, object_of
from backstay.n8n.primitives.shared import LOCK, NOW, RELEASE

#: The duration of a long poll at the server, and the timeout of n8n's request for it, both in seconds. The timeout must
#: be longer, or n8n would give up before the server replies.
POLL_SECONDS, POLL_TIMEOUT = 50, 65
#: Seconds after which a grant that was not confirmed lapses; a busy n8n may need a few seconds for the confirmation.
CONFIRM_SECONDS = 60
#: The timeout in seconds of all requests that are no long polls. The server answers them at once.
TIMEOUT = 20
#: For requests while the server is unavailable. RETRY_SECONDS: seconds before a request is sent again. TRIES: how often
#: it is sent in total. A request that waits for a lock is instead sent again until the wait times out.
RETRY_SECONDS, TRIES = 2, 5
#: The name of the server's rate limit that all n8n workflows share. Each scope is a key of this limit.
LIMIT_NAME = "n8n"

STATUS = "Number($json.statusCode ?? 0)"
BODY = "($json.body ?? { })"
#: A JavaScript condition: there was no response (status 0), or its status is 408, 429 or a server error. Then the
#: request may be sent again.
UNAVAILABLE = f"({STATUS} === 0 || {STATUS} === 408 || {STATUS} === 429 || {STATUS} >= 500)"
DETAIL = f"String({BODY}.detail ?? {BODY}.title ?? ($json.error ?? {{ }}).message ?? $json.error ?? 'no answer')"


def _path(scope: str, verb: str) -> str:
    return f"/api/locks/{{{{ encodeURIComponent({scope}) }}}}/{verb}"


def _add_refusal(d: WorkflowBuilder, at: tuple[float, float]) -> None:
    """Add the node that fails the execution when the server refused the request or did not answer. The error message
    contains the status and the detail of the server's response.
    """
    message = f"{js('Backstay answered ')} + ($json.status || {js('nothing')}) + {js(': ')} + $json.detail"
    d.stop_and_error("Refused — Stop", at, message)


# ── lock_acquisition ──


def lock_acquisition(d: WorkflowBuilder) -> None:
    """Build the acquire workflow. It sends long polls, which keep one place in the queue, until the lock is granted or
    the wait times out.
    """
    request = {"request_id": ("string", "$json.new_lock_id")}
    shared.add_acquire_inputs(d, request, inputs.IN_A_PATH)
    same = (
        "request_id",
        "lock_id",
        "workflow_id",
        "workflow_name",
        "execution_id",
        "wait_till_lock_released",
        "max_wait_seconds",
    )
    asked = {field: f"{LOCK}.{field}" for field in same}
    asked |= {
        "ttl_seconds": f"{LOCK}.ttl",
        "poll_seconds": str(POLL_SECONDS),
        "confirm_seconds": str(CONFIRM_SECONDS),
    }
    d.http(
        "Long Poll Acquire",
        (5, 0),
        _path(f"{LOCK}.scope", "acquire"),
        object_of(asked),
        timeout_seconds=POLL_TIMEOUT,
    )
    _add_poll_result(d)
    _add_failures(d)
    d.chain("Generate Lock Id", "Build Lock Context", "Long Poll Acquire", "Check Wait State", "Acquired?")
    d.connect("Long Poll Acquire", "Check Wait State", output=1)
    d.fork("Acquired?", "Build Acquire Output", "Timeout?")
    d.fork("Timeout?", "Wait Timeout — Stop", "Should Wait?")
    d.fork("Should Wait?", "Wait Before Poll", "Held?")
    d.fork("Held?", "Fail Fast — Lock Held", "Refused — Stop")
    d.chain("Wait Before Poll", "Long Poll Acquire")


def _add_poll_result(d: WorkflowBuilder) -> None:
    waits = f"{LOCK}.wait_till_lock_released"
    late = f"{waits} && {NOW} >= {LOCK}.deadline_ms"
    patient = f"({waits} || $runIndex < {TRIES - 1})"
    # The server replies `held` to a poll that has no time left to wait, as it does to a caller that does not want to
    # wait. For a caller that wanted to wait, this is a timeout.
    over = f"{STATUS} === 409 && ({BODY}.reason === 'timeout' || {waits} && {BODY}.reason === 'held')"
    state = (
        f"{STATUS} === 200 ? 'acquired' : {over} ? 'timeout'"
        f" : {STATUS} === 409 && {BODY}.reason === 'held' ? 'held' : {STATUS} === 202 ? 'keep-waiting'"
        f" : !{UNAVAILABLE} ? 'refused' : {late} ? 'timeout' : {patient} ? 'away' : 'refused'"
    )
    d.fields(
        "Check Wait State",
        (6, 0),
        {
            "state": ("string", state),
            "status": ("number", STATUS),
            "count": ("number", f"Number({BODY}.count ?? 0)"),
            "detail": ("string", DETAIL),
            "grant": ("object", BODY),
        },
    )
    d.condition("Acquired?", (7, 0), "$json.state === 'acquired'")
    texts = (
        "scope",
        "lock_id",
        "key",
        "meta_key",
        "workflow_id",
        "workflow_name",
        "execution_id",
        "locked_at",
        "fence",
        "expires_at",
    )
    shared.add_acquire_output(d, (8, -1), {field: f"$json.grant.{field}" for field in texts})


def _add_failures(d: WorkflowBuilder) -> None:
    counted = f"{js(' (count ')} + $json.count + {js('): ')} + $json.detail"
    d.condition("Timeout?", (8, 1), "$json.state === 'timeout'")
    shared.add_timeout_error(d, (9, 0), counted)
    d.condition("Should Wait?", (9, 1), "['keep-waiting', 'away'].includes($json.state)")
    # The server does the waiting; the client pauses only while the server is unavailable.
    d.wait("Wait Before Poll", (10, 1), expression(f"$json.state === 'away' ? {RETRY_SECONDS} : 0"))
    d.condition("Held?", (10, 2), "$json.state === 'held'")
    shared.add_held_error(d, (11, 2), counted)
    _add_refusal(d, (11, 3))


# ── requests without waiting ──


def _add_request(
    d: WorkflowBuilder, name: str, at: tuple[float, float], path: str, body: str, then: str, *, tries: int = TRIES
) -> None:
    """Add a request that is sent up to `tries` times while the server is unavailable. The node `then` receives the
    response as three fields: `status` (the HTTP status), `detail` (the error message) and `answer` (the JSON body).
    """
    column, row = at
    read, again, pause = f"Read {name}", "Try Again?", "Wait Before Retry"
    d.http(name, at, path, body, timeout_seconds=TIMEOUT)
    fields = {"status": ("number", STATUS), "detail": ("string", DETAIL), "answer": ("object", BODY)}
    if tries > 1:
        fields["again"] = ("boolean", f"{UNAVAILABLE} && $runIndex < {tries - 1}")
    d.fields(read, (column + 1, row), fields)
    d.chain(name, read)
    d.connect(name, read, output=1)
    if tries == 1:
        d.chain(read, then)
        return
    d.condition(again, (column + 2, row), "$json.again")
    d.wait(pause, (column + 2, row + 1), RETRY_SECONDS)
    d.chain(read, again)
    d.fork(again, pause, then)
    d.chain(pause, name)


def lock_release(d: WorkflowBuilder) -> None:
    """Build the release workflow. It needs the lock_id of the holder. Releasing a lock that is free is a success."""
    shared.add_release_inputs(d, {}, inputs.IN_A_PATH)
    body = object_of({"lock_id": f"{RELEASE}.provided_lock_id"})
    _add_request(d, "Release Lock", (4, 0), _path(f"{RELEASE}.scope", "release"), body, "Match?")
    d.condition("Match?", (7, 0), "$json.status === 200")
    shared.add_release_output(d, (8, 0), "$json.answer.idempotent")
    d.condition("Held?", (8, 1), "$json.status === 409")
    message = f"{js('LOGIC ERROR: ')} + $json.detail + {js(' Nothing was released.')}"
    d.stop_and_error("Ownership Mismatch — Stop", (9, 1), message)
    _add_refusal(d, (9, 2))
    d.chain("Build Release Context", "Release Lock")
    d.fork("Match?", "Build Result", "Held?")
    d.fork("Held?", "Ownership Mismatch — Stop", "Refused — Stop")


# ── error_handler_lock_cleanup ──


def lock_cleanup(d: WorkflowBuilder) -> None:
    """Build the clean-up workflow: it releases all locks of the failed execution. The server knows which locks
    an execution holds, so the scopes need not be registered in the workspace (`lockScopes`).
    """
    d.error_trigger("Error Trigger", (0, 0))
    d.fields("Prepare Clean-up", (1, 0), {"failed_execution_id": ("string", shared.FAILED_EXECUTION)})
    d.condition("Has Execution?", (2, 0), "$json.failed_execution_id !== ''")
    body = object_of({"execution_id": f"{first('Prepare Clean-up')}.failed_execution_id"})
    _add_request(d, "Clean Up Locks", (3, 0), "/api/locks/cleanup", body, "Cleaned Up?")
    d.condition("Cleaned Up?", (6, 0), "$json.status === 200")
    shared.add_cleanup_output(
        d,
        (7, 0),
        cleaned="$json.answer.cleaned",
        count="$json.answer.cleaned_count",
        scopes="$json.answer.scopes",
        reason="$json.answer.reason",
    )
    _add_refusal(d, (7, 1))
    shared.add_nothing_to_clean_output(d, js(shared.NO_EXECUTION))
    d.chain("Error Trigger", "Prepare Clean-up", "Has Execution?")
    d.fork("Has Execution?", "Clean Up Locks", "Log Nothing To Clean")
    d.fork("Cleaned Up?", "Log Cleanup", "Refused — Stop")


# ── rate_limit_check ──


def rate_limit_check(d: WorkflowBuilder) -> None:
    """Build the rate limit check. Each item is one hit. A request without a response is not sent again, because the
    server may have counted it.
    """
    shared.add_limit_inputs(d, "Build Hit", {})
    body = object_of({field: f"$json.{field}" for field in ("scope", "limit", "windowSeconds")})
    _add_request(d, "Hit Limit", (4, 0), f"/api/limits/{LIMIT_NAME}/hit", body, "Answered?", tries=1)
    d.condition("Answered?", (6, 0), "$json.status === 200")
    shared.add_limit_output(d, (7, 0), allowed="$json.answer.allowed", count="$json.answer.count", read="$json.answer")
    _add_refusal(d, (7, 1))
    d.chain("Build Hit", "Hit Limit")
    d.fork("Answered?", "Build Result", "Refused — Stop")
