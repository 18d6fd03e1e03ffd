"""An outage, a refusal of the server and a corrupt record raise different errors."""

from __future__ import annotations

import pytest
import redis

from backstay import CorruptRecord, EngineRefused, EngineUnavailable, sync
from backstay.engine.redis.address import Address
from backstay.engine.redis.link.protocol import (
    REROUTED_CODES,
    STALE_CODES,
    UNAVAILABLE_CODES,
    ErrorReply,
    translate_error,
)
from backstay.testing.servers import RedisServer

pytestmark = pytest.mark.redis


OOM = "command not allowed when used memory > 'maxmemory'."
MISCONF = "Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."
READONLY = "You can't write against a read only replica."


@pytest.mark.parametrize(
    ("text", "error"),
    [
        # Redis 7: the error of the command that the script called, then the place in the script.
        (f"OOM {OOM} script: 3a1f, on @user_script:59.", EngineUnavailable),
        (f"MISCONF {MISCONF} script: 3a1f, on @user_script:59.", EngineUnavailable),
        (f"READONLY {READONLY} script: 3a1f, on @user_script:59.", EngineUnavailable),
        (
            "NOPERM this user has no permissions to run the 'set' command script: 3a1f, on @user_script:5.",
            EngineRefused,
        ),
        ("WRONGTYPE Operation against a key script: 3a1f, on @user_script:5.", CorruptRecord),
        ("ERR user_script:7: attempt to index a nil value script: 3a1f, on @user_script:7.", CorruptRecord),
        # Redis 6.2: the place first.
        (f"ERR Error running script (call to f_3a1f): @user_script:5: @user_script: 5: -OOM {OOM}", EngineUnavailable),
        (f"@user_script: 5: -OOM {OOM}", EngineUnavailable),
        (
            f"ERR Error running script (call to f_3a1f): @user_script:5: @user_script: 5: -MISCONF {MISCONF}",
            EngineUnavailable,
        ),
        (
            f"ERR Error running script (call to f_3a1f): @user_script:5: @user_script: 5: -READONLY {READONLY}",
            EngineUnavailable,
        ),
        (
            "ERR Error running script (call to f_3a1f): @user_script:5: @user_script: 5: The user executing the",
            EngineRefused,
        ),
        ("ERR Error running script (call to f_3a1f): @user_script:5: WRONGTYPE Operation against a key", CorruptRecord),
        (
            "ERR Error running script (call to f_3a1f): @user_script:7: user_script:7: attempt to index a nil value",
            CorruptRecord,
        ),
        # Without a script.
        ("LOADING Redis is loading the dataset in memory", EngineUnavailable),
        ("BUSY Redis is busy running a script", EngineUnavailable),
        ("MASTERDOWN Link with MASTER is down", EngineUnavailable),
        ("CLUSTERDOWN Hash slot not served", EngineUnavailable),
        ("TRYAGAIN Multiple keys request during rehashing of slot", EngineUnavailable),
        ("NOREPLICAS Not enough good replicas to write.", EngineUnavailable),
        ("ERR max number of clients reached", EngineUnavailable),
        ("WRONGPASS invalid username-password pair or user is disabled.", EngineRefused),
        ("NOAUTH Authentication required.", EngineRefused),
        ("CORRUPT record of another version, or damaged", CorruptRecord),
    ],
)
def test_an_outage_can_be_told_from_a_refusal_and_from_damage(text, error):
    assert type(translate_error(ErrorReply(text), Address())) is error


def test_the_special_lists_contain_only_errors_that_pass():
    assert STALE_CODES | REROUTED_CODES <= UNAVAILABLE_CODES


def test_a_record_that_makes_a_script_fail_raises_corrupt_record():
    with RedisServer() as server, redis.Redis(port=server.port) as raw, sync.Backstay(server.url) as stay:
        raw.set("backstay:gate:{x}", b"\x95\x01\xa1a\xa1b\xa1c\x91\x90")
        with pytest.raises(CorruptRecord):
            stay.lock("x").acquire(wait=0)
