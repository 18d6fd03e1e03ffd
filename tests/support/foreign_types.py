"""Decoders with the types of a foreign client: a worker in a statically typed language, whose records declare unsigned
integers, booleans and text. They are as strict as such a client: `30.0` is no integer, and null is not "".

A record ignores unknown fields. A field may be absent only if the client declares a default for it.
"""

from __future__ import annotations

import json


class Undecodable(AssertionError):
    """A response does not have the declared type."""


def decode(kind, text):
    """Decode JSON text as `kind`. Raises Undecodable with the path of the wrong value."""
    return kind(json.loads(text), "$")


def _expect(held, path, wanted, value):
    if not held:
        raise Undecodable(f"{path} is {value!r}, not {wanted}")
    return value


def _unsigned(bits):
    def check(value, path):
        return _expect(type(value) is int and 0 <= value < 2**bits, path, f"u{bits}", value)

    return check


u64, u32 = _unsigned(64), _unsigned(32)


def f64(value, path):
    return float(_expect(type(value) in (int, float), path, "a number", value))


def text(value, path):
    return _expect(type(value) is str, path, "text", value)


def boolean(value, path):
    return _expect(type(value) is bool, path, "true or false", value)


def anything(value, path):
    return value


def one_of(*words):
    def check(value, path):
        return _expect(type(value) is str and value in words, path, f"one of {words}", value)

    return check


def option(kind):
    def check(value, path):
        return None if value is None else kind(value, path)

    return check


def many(kind):
    def check(value, path):
        _expect(type(value) is list, path, "a list", value)
        return [kind(one, f"{path}[{at}]") for at, one in enumerate(value)]

    return check


def table(kind):
    def check(value, path):
        _expect(type(value) is dict, path, "an object", value)
        return {key: kind(one, f"{path}.{key}") for key, one in value.items()}

    return check


def record(defaults=(), **fields):
    """A record with these fields; those in `defaults` may be absent."""

    def check(value, path):
        _expect(type(value) is dict, path, "an object", value)
        missing = [name for name in fields if name not in value and name not in defaults]
        _expect(not missing, path, f"a record with {missing}", value)
        return {name: kind(value[name], f"{path}.{name}") for name, kind in fields.items() if name in value}

    return check


def variant(**kinds):
    """A union: the name of a variant without fields as text, another one as an object with its name as the only key."""

    def check(value, path):
        if type(value) is str:
            return _expect(value in kinds and kinds[value] is None, path, f"one of {[*kinds]}", value)
        _expect(type(value) is dict and len(value) == 1, path, "an object with one key", value)
        ((name, inner),) = value.items()
        _expect(kinds.get(name) is not None, path, f"one of {[*kinds]}", value)
        return {name: kinds[name](inner, f"{path}.{name}")}

    return check


LEASE = record(lease_id=text, job_id=text, workflow_id=text, worker_id=text, ttl_secs=u64, granted_at_ms=u64)
BACKOFF = variant(**{"None": None}, Fixed=record(delay_secs=u64), Exponential=record(base_secs=u64, max_secs=u64))
QUEUED_JOB = record(
    ("delayed_until_ms",),
    job_id=text,
    workflow_id=text,
    command=text,
    required_labels=many(text),
    retry_policy=record(max_retries=u32, backoff=BACKOFF),
    attempt=u32,
    upstream_outputs=table(table(text)),
    enqueued_at_ms=u64,
    delayed_until_ms=u64,
)
CLAIM = option(record(job=QUEUED_JOB, lease=LEASE))
LOG_CHUNK = record(
    workflow_id=text,
    job_id=text,
    sequence=u64,
    data=text,
    timestamp_ms=u64,
    stream=one_of("stdout", "stderr"),
)
WORKER_INFO = record(
    ("current_job",),
    worker_id=text,
    labels=many(text),
    registered_at_ms=u64,
    last_heartbeat_ms=u64,
    current_job=option(text),
    status=one_of("idle", "busy", "offline"),
)
PORT = record(
    ("port_type", "color"),
    id=text,
    label=text,
    direction=one_of("input", "output"),
    port_type=text,
    color=option(text),
)
JOB = record(
    ("duration_secs", "started_at", "output", "required_labels", "max_retries", "attempt", "metadata", "ports"),
    id=text,
    name=text,
    status=one_of("queued", "running", "success", "failure", "skipped", "cancelled"),
    command=text,
    duration_secs=option(u64),
    started_at=option(f64),
    depends_on=many(text),
    output=option(text),
    required_labels=many(text),
    max_retries=u32,
    attempt=u32,
    metadata=table(anything),
    ports=many(PORT),
)
WORKFLOW = record(id=text, name=text, trigger=text, jobs=many(JOB))
