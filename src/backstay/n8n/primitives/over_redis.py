"""The primitives over n8n's own Redis node, with the keys of `backstay.interop.n8n_wire.keys` and no server but Redis.

Each Redis node sends one or two commands, so the sequences are not atomic. The guide documents the races: a crash
between INCR and SET leaves a counter without an owner until it expires, and between a GET and the following DEL the
lock may pass to another holder.
"""

from __future__ import annotations

from backstay.interop.n8n_wire.keys import IDENTITY, LIMIT_PREFIX, LOCK_PREFIX, META_SUFFIX, POLL_SECONDS
from backstay.n8n.primitives import inputs, shared
from backstay.n8n.primitives.builder import WorkflowBuilder, expression, first, js, object_of
from backstay.n8n.primitives.shared import LOCK, NOW, RELEASE

#: The item fields for the reply of n8n's Redis node to a GET: VALUE for the lock's counter, META for the identity of
#: the lock's holder.
VALUE, META = "LOCK_VALUE", "LOCK_META"


def lock_keys(scope: str) -> dict[str, tuple[str, str]]:
    key = f"{js(LOCK_PREFIX)} + {scope}"
    return {"key": ("string", key), "meta_key": ("string", f"{key} + {js(META_SUFFIX)}")}


def get(builder: WorkflowBuilder, name: str, at: tuple[float, float], key: str, under: str) -> None:
    # With `keyType` n8n sends only GET. Without it n8n first asks Redis for the key's type, and the value may change
    # between the two commands.
    builder.redis(name, at, "get", key, propertyName=under, keyType="string", options={})


# ── lock_acquisition ──


def lock_acquisition(d: WorkflowBuilder) -> None:
    """Build the acquire workflow: GET first, INCR only when the lock is free. The caller whose INCR returns 1 holds the
    lock. It then stores its identity (lock_id, execution, workflow) as JSON in a second key.
    """
    shared.add_acquire_inputs(d, lock_keys(inputs.SCOPE))
    _add_check(d)
    _add_increment(d)
    _add_failures(d)


def _add_check(d: WorkflowBuilder) -> None:
    """Add the loop in which a caller waits for the lock. It polls with GET. The INCR node also sets the key's TTL,
    so waiting callers that poll with INCR would extend the holder's TTL. The loop has only three nodes, because n8n
    stores the output of each node for every round.
    """
    get(d, "GET Lock", (5, 0), f"{LOCK}.key", VALUE)
    free = f"($json.{VALUE} ?? '') === ''"
    late = f"{NOW} >= {LOCK}.deadline_ms"
    d.condition("Keep Waiting?", (6, 0), f"!({free}) && !({late}) && {LOCK}.wait_till_lock_released")
    # The field `state` below tests `free` before `over`: a caller that finds the lock free acquires it even after its
    # deadline.
    over = f"{LOCK}.wait_till_lock_released && {late}"
    d.fields(
        "Check Wait State",
        (7, 1),
        {
            "state": ("string", f"{free} ? 'retry-incr' : {over} ? 'timeout' : 'keep-waiting'"),
            "count": ("number", f"Number($json.{VALUE} ?? 0)"),
        },
    )
    d.condition("Timeout?", (8, 1), "$json.state === 'timeout'")
    d.condition("Retry INCR?", (9, 1), "$json.state === 'retry-incr'")
    d.chain("Generate Lock Id", "Build Lock Context", "GET Lock", "Keep Waiting?")
    d.fork("Keep Waiting?", "Wait Before Poll", "Check Wait State")
    d.chain("Check Wait State", "Timeout?")
    d.fork("Timeout?", "Wait Timeout — Stop", "Retry INCR?")
    d.fork("Retry INCR?", "INCR Acquire Attempt", "Should Wait?")


def _add_increment(d: WorkflowBuilder) -> None:
    ttl = expression(f"{LOCK}.ttl")
    d.redis("INCR Acquire Attempt", (10, 1), "incr", f"{LOCK}.key", expire=True, ttl=ttl)
    d.fields(
        "Evaluate Acquired",
        (11, 1),
        {
            "count": ("number", f"$json[{LOCK}.key]"),
            "acquired": ("boolean", f"$json[{LOCK}.key] === 1"),
            "locked_at": ("string", "$now.toUTC().toISO()"),
        },
    )
    d.condition("Acquired?", (12, 1), "$json.acquired")
    identity = object_of(
        {field: "$json.locked_at" if field == "locked_at" else f"{LOCK}.{field}" for field in IDENTITY}
    )
    d.redis(
        "Set Lock Meta",
        (13, 1),
        "set",
        f"{LOCK}.meta_key",
        value=expression(f"JSON.stringify({identity})"),
        keyType="string",
        expire=True,
        ttl=ttl,
    )
    texts = ("scope", "lock_id", "key", "meta_key", "workflow_id", "workflow_name", "execution_id")
    output = {field: f"{LOCK}.{field}" for field in texts} | {"locked_at": "$json.locked_at"}
    shared.add_acquire_output(d, (14, 1), output)
    d.chain("INCR Acquire Attempt", "Evaluate Acquired", "Acquired?")
    d.fork("Acquired?", "Set Lock Meta", "Should Wait?")
    d.chain("Set Lock Meta", "Build Acquire Output")


def _add_failures(d: WorkflowBuilder) -> None:
    d.condition("Should Wait?", (10, 3), f"{LOCK}.wait_till_lock_released")
    d.wait("Wait Before Poll", (7, -1), POLL_SECONDS if POLL_SECONDS % 1 else int(POLL_SECONDS))
    counted = f"{js(' (count ')} + $json.count + {js(').')}"
    shared.add_held_error(d, (11, 4), counted)
    shared.add_timeout_error(d, (9, 0), counted)
    d.fork("Should Wait?", "Wait Before Poll", "Fail Fast — Lock Held")
    d.chain("Wait Before Poll", "GET Lock")


# ── lock_release ──


def parse_identity(code: str) -> str:
    """Return JavaScript that parses a lock's identity (JSON) into an object; null when it is missing or unreadable."""
    tried = f"try {{ const read = JSON.parse({code}); return typeof read === 'object' ? read : null; }}"
    return f"(() => {{ {tried} catch (error) {{ return null; }} }})()".replace("}}", "} }")


def lock_release(d: WorkflowBuilder) -> None:
    """Build the release workflow. It needs the lock_id of the holder. Releasing a lock that is already free is a
    success and deletes nothing.
    """
    shared.add_release_inputs(d, lock_keys(inputs.SCOPE))
    get(d, "GET Lock Meta", (4, 0), "$json.meta_key", META)
    there = f"($json.{META} ?? '') !== ''"
    held = f"({parse_identity(f'$json.{META}')} ?? {{}})"
    d.fields(
        "Parse + Verify Ownership",
        (5, 0),
        {
            "held": ("boolean", there),
            "is_match": ("boolean", f"{there} && {held}.lock_id === {RELEASE}.provided_lock_id"),
            "readable": ("boolean", f"typeof {held}.lock_id === 'string'"),
            **{
                f: ("string", f"String({held}.{f} ?? '')")
                for f in ("workflow_id", "workflow_name", "execution_id", "locked_at")
            },
        },
    )
    d.condition("Held?", (6, 0), "$json.held")
    d.condition("Match?", (7, 0), "$json.is_match")
    # Delete the identity first. If the counter was deleted first, another caller could acquire the lock and write its
    # own identity before the second DEL, which would delete it.
    d.redis("DEL Lock Meta", (8, 0), "delete", f"{RELEASE}.meta_key")
    d.redis("DEL Lock Counter", (9, 0), "delete", f"{RELEASE}.key")
    shared.add_release_output(d, (10, 1), f"!{first('Parse + Verify Ownership')}.held")
    named = f"{js('LOGIC ERROR: lock ')} + JSON.stringify({RELEASE}.scope)"
    holder = (
        f"{js(' is held by workflow ')} + JSON.stringify($json.workflow_name || $json.workflow_id)"
        f" + {js(', execution ')} + $json.execution_id + {js(', since ')} + $json.locked_at"
    )
    unreadable = js(" is held by an execution whose identity cannot be read")
    given = f"{js(', and not with lock_id ')} + JSON.stringify({RELEASE}.provided_lock_id)"
    left = f"{given} + {js('. Nothing was released.')}"
    d.stop_and_error(
        "Ownership Mismatch — Stop", (8, 2), f"{named} + ($json.readable ? {holder} : {unreadable}) + {left}"
    )
    d.chain("Build Release Context", "GET Lock Meta", "Parse + Verify Ownership", "Held?")
    d.fork("Held?", "Match?", "Build Result")
    d.fork("Match?", "DEL Lock Meta", "Ownership Mismatch — Stop")
    d.chain("DEL Lock Meta", "DEL Lock Counter", "Build Result")


# ── rate_limit_check ──


def rate_limit_check(d: WorkflowBuilder) -> None:
    """Build the rate limit check, with one Redis counter per scope and time window. Each item is one hit."""
    bucket = f"Math.floor({NOW} / (Number($json.windowSeconds) * 1000))"
    key = f"{js(LIMIT_PREFIX)} + {inputs.SCOPE} + {js('-')} + {bucket}"
    shared.add_limit_inputs(d, "Build Bucket Key", {"key": ("string", key)})
    d.redis("Redis INCR", (4, 0), "incr", "$json.key", expire=True, ttl=expression("$json.windowSeconds"))
    asked = f"$({js('Build Bucket Key')}).all()[$itemIndex].json"
    count = f"$json[{asked}.key]"
    shared.add_limit_output(d, (5, 0), allowed=f"{count} <= {asked}.limit", count=count, read=asked)
    d.chain("Build Bucket Key", "Redis INCR", "Build Result")
