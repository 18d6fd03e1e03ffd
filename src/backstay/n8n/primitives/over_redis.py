"""The primitives on n8n's own Redis node: the keys of `backstay.interop.n8n_wire.keys`, and no server but Redis.

Each Redis node is a command or two of its own. What two commands cannot promise is in the guide: a crash between INCR
and SET leaves a counter that nobody owns until it expires, and between a GET and the DEL that follows a lock may pass
to somebody else.
"""

from __future__ import annotations

from backstay.interop.n8n_wire.keys import IDENTITY, LIMIT_PREFIX, LOCK_PREFIX, META_SUFFIX, POLL_SECONDS
from backstay.n8n.primitives import inputs, shared
from backstay.n8n.primitives.builder import Drawing, expression, first, js, object_of
from backstay.n8n.primitives.shared import LOCK, NOW, RELEASE

#: What GET puts the value under.
VALUE, META = "LOCK_VALUE", "LOCK_META"


def lock_keys(scope: str) -> dict[str, tuple[str, str]]:
    key = f"{js(LOCK_PREFIX)} + {scope}"
    return {"key": ("string", key), "meta_key": ("string", f"{key} + {js(META_SUFFIX)}")}


def get(drawing: Drawing, name: str, at: tuple[float, float], key: str, under: str) -> None:
    # The type is given: else n8n would ask Redis for it first, and the value could be another's by then.
    drawing.redis(name, at, "get", key, propertyName=under, keyType="string", options={})


# ── lock_acquisition ──


def lock_acquisition(d: Drawing) -> None:
    """Look first, count only when nobody holds it: who counted to 1 holds the lock, and says who it is."""
    shared.wants_lock(d, lock_keys(inputs.SCOPE))
    _look(d)
    _count(d)
    _give_up(d)


def _look(d: Drawing) -> None:
    """Reading touches no TTL, however many wait. Three nodes go round: n8n keeps what each of their runs gave."""
    get(d, "GET Lock", (5, 0), f"{LOCK}.key", VALUE)
    free = f"($json.{VALUE} ?? '') === ''"
    late = f"{NOW} >= {LOCK}.deadline_ms"
    d.choice("Keep Waiting?", (6, 0), f"!({free}) && !({late}) && {LOCK}.wait_till_lock_released")
    # A lock that is free is taken, even when there is no more time to wait for one that is not.
    over = f"{LOCK}.wait_till_lock_released && {late}"
    d.fields(
        "Check Wait State",
        (7, 1),
        {
            "state": ("string", f"{free} ? 'retry-incr' : {over} ? 'timeout' : 'keep-waiting'"),
            "count": ("number", f"Number($json.{VALUE} ?? 0)"),
        },
    )
    d.choice("Timeout?", (8, 1), "$json.state === 'timeout'")
    d.choice("Retry INCR?", (9, 1), "$json.state === 'retry-incr'")
    d.line("Generate Lock Id", "Build Lock Context", "GET Lock", "Keep Waiting?")
    d.fork("Keep Waiting?", "Wait Before Poll", "Check Wait State")
    d.line("Check Wait State", "Timeout?")
    d.fork("Timeout?", "Wait Timeout — Stop", "Retry INCR?")
    d.fork("Retry INCR?", "INCR Acquire Attempt", "Should Wait?")


def _count(d: Drawing) -> None:
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
    d.choice("Acquired?", (12, 1), "$json.acquired")
    said = object_of({field: "$json.locked_at" if field == "locked_at" else f"{LOCK}.{field}" for field in IDENTITY})
    d.redis(
        "Set Lock Meta",
        (13, 1),
        "set",
        f"{LOCK}.meta_key",
        value=expression(f"JSON.stringify({said})"),
        keyType="string",
        expire=True,
        ttl=ttl,
    )
    texts = ("scope", "lock_id", "key", "meta_key", "workflow_id", "workflow_name", "execution_id")
    told = {field: f"{LOCK}.{field}" for field in texts} | {"locked_at": "$json.locked_at"}
    shared.gives_lock(d, (14, 1), told)
    d.line("INCR Acquire Attempt", "Evaluate Acquired", "Acquired?")
    d.fork("Acquired?", "Set Lock Meta", "Should Wait?")
    d.line("Set Lock Meta", "Build Acquire Output")


def _give_up(d: Drawing) -> None:
    d.choice("Should Wait?", (10, 3), f"{LOCK}.wait_till_lock_released")
    d.wait("Wait Before Poll", (7, -1), POLL_SECONDS if POLL_SECONDS % 1 else int(POLL_SECONDS))
    counted = f"{js(' (count ')} + $json.count + {js(').')}"
    shared.is_held(d, (11, 4), counted)
    shared.is_late(d, (9, 0), counted)
    d.fork("Should Wait?", "Wait Before Poll", "Fail Fast — Lock Held")
    d.line("Wait Before Poll", "GET Lock")


# ── lock_release ──


def parsed(code: str) -> str:
    """The identity as an object; null when there is none, or it cannot be read."""
    tried = f"try {{ const read = JSON.parse({code}); return typeof read === 'object' ? read : null; }}"
    return f"(() => {{ {tried} catch (error) {{ return null; }} }})()".replace("}}", "} }")


def lock_release(d: Drawing) -> None:
    """Only by whoever took it. What is gone already is a success, and nothing is deleted."""
    shared.wants_release(d, lock_keys(inputs.SCOPE))
    get(d, "GET Lock Meta", (4, 0), "$json.meta_key", META)
    there = f"($json.{META} ?? '') !== ''"
    held = f"({parsed(f'$json.{META}')} ?? {{}})"
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
    d.choice("Held?", (6, 0), "$json.held")
    d.choice("Match?", (7, 0), "$json.is_match")
    # The identity first: a counter that is left alone blocks until it expires, an identity that outlived its counter
    # would be deleted under the next holder.
    d.redis("DEL Lock Meta", (8, 0), "delete", f"{RELEASE}.meta_key")
    d.redis("DEL Lock Counter", (9, 0), "delete", f"{RELEASE}.key")
    shared.is_released(d, (10, 1), f"!{first('Parse + Verify Ownership')}.held")
    named = f"{js('LOGIC ERROR: lock ')} + JSON.stringify({RELEASE}.scope)"
    holder = (
        f"{js(' is held by workflow ')} + JSON.stringify($json.workflow_name || $json.workflow_id)"
        f" + {js(', execution ')} + $json.execution_id + {js(', since ')} + $json.locked_at"
    )
    unreadable = js(" is held by somebody whose identity cannot be read")
    given = f"{js(', and not with lock_id ')} + JSON.stringify({RELEASE}.provided_lock_id)"
    left = f"{given} + {js('. Nothing was released.')}"
    d.stop("Ownership Mismatch — Stop", (8, 2), f"{named} + ($json.readable ? {holder} : {unreadable}) + {left}")
    d.line("Build Release Context", "GET Lock Meta", "Parse + Verify Ownership", "Held?")
    d.fork("Held?", "Match?", "Build Result")
    d.fork("Match?", "DEL Lock Meta", "Ownership Mismatch — Stop")
    d.line("DEL Lock Meta", "DEL Lock Counter", "Build Result")


# ── rate_limit_check ──


def rate_limit_check(d: Drawing) -> None:
    """One counter for each window of time; each item is counted."""
    bucket = f"Math.floor({NOW} / (Number($json.windowSeconds) * 1000))"
    key = f"{js(LIMIT_PREFIX)} + {inputs.SCOPE} + {js('-')} + {bucket}"
    shared.wants_count(d, "Build Bucket Key", {"key": ("string", key)})
    d.redis("Redis INCR", (4, 0), "incr", "$json.key", expire=True, ttl=expression("$json.windowSeconds"))
    asked = f"$({js('Build Bucket Key')}).all()[$itemIndex].json"
    count = f"$json[{asked}.key]"
    shared.is_counted(d, (5, 0), allowed=f"{count} <= {asked}.limit", count=count, read=asked)
    d.line("Build Bucket Key", "Redis INCR", "Build Result")
