"""Check one Redis or Valkey server and the replicas that it reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files

from backstay.assembly.settings import MOST_SHARDS
from backstay.doctor.finding import (
    OK,
    PROBLEM,
    SKEW_PROBLEM,
    SKEW_WARNING,
    WARNING,
    Finding,
    check_round_trip,
    rate_excess,
    rate_set_back,
)
from backstay.doctor.redis_server import Clock, Server, measure_skew
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import ErrorReply, cannot_serve_now
from backstay.errors import EngineError, EngineRefused
from backstay.job.stores.redis import keys

#: A replica whose last report is older than this many seconds lags. Replicas report once per second.
REPLICA_LAG = 5
#: Each thread has a connection of its own; above this share of `maxclients` a load peak may exceed the limit.
CROWDED = 0.8
#: Above this share of `maxmemory` a load peak may fill the server.
NEARLY_FULL = 0.9
MEGABYTE = 1_000_000
NTP = "run NTP (chrony) on this host and on every node: after a failover, fences keep growing only if clocks agree"


def where(engine: RedisEngine) -> str:
    return str(engine.address)


def diagnose(engine: RedisEngine, clock: Clock) -> Iterator[Finding]:
    """Run all checks of a Redis server and yield their findings."""
    try:
        server = Server(engine, clock)
    except EngineError as error:
        yield describe_unreachable(error)
        return
    try:
        for check in CHECKS:
            yield from check(server)
    except EngineError as error:
        yield Finding(PROBLEM, "reach", f"the connection was lost: {error}", "repeat when the connection is stable")
    finally:
        server.link.close()


def describe_unreachable(error: EngineError) -> Finding:
    if isinstance(error, EngineRefused):
        return Finding(PROBLEM, "reach", str(error), "correct what the server names: password, permissions or version")
    return Finding(PROBLEM, "reach", str(error), "check host, port and firewall, and whether the server runs")


def check_version(server: Server) -> Iterator[Finding]:
    hello = server.hello
    number = ".".join(map(str, hello.version)) or "of an unknown version"
    yield Finding(OK, "version", f"{hello.server} {number}")


def check_protocol(server: Server) -> Iterator[Finding]:
    if server.hello.resp3:
        yield Finding(OK, "protocol", "RESP3")
    else:
        what = "RESP2 only: the server does not support HELLO 3"
        advice = "allow HELLO (rename-command): threads then receive hints on their own connections, with less delay"
        yield Finding(WARNING, "protocol", what, advice)


def check_role(server: Server) -> Iterator[Finding]:
    if server.info.get("role") == "slave":
        master = f"{server.info.get('master_host', '?')}:{server.info.get('master_port', '?')}"
        what = f"this server is a replica of {master} and accepts no writes"
        yield Finding(PROBLEM, "role", what, "point the URL at the master, or use Sentinel to find it")


def check_info(server: Server) -> Iterator[Finding]:
    if not server.info:
        advice = "permit INFO to the doctor's user (ACL +info), or check these settings on the server"
        yield Finding(WARNING, "info", "this user may not run INFO: persistence and replicas are unknown", advice)


def check_persistence(server: Server) -> Iterator[Finding]:
    info = server.info
    if not info:
        return
    if info.get("loading") == "1":
        yield Finding(PROBLEM, "persistence", "the server is still loading its data", "wait until it has started")
    for what, field in (("AOF", "aof_last_write_status"), ("RDB", "rdb_last_bgsave_status")):
        if info.get(field, "ok") != "ok":
            advice = "check the server's log, disk space and permissions: it may refuse writes until this is fixed"
            yield Finding(PROBLEM, "persistence", f"the last {what} write failed", advice)
    fsync = server.setting("appendfsync")
    if info.get("aof_enabled") == "1":
        if fsync == "always":
            yield Finding(OK, "persistence", "AOF, appendfsync always: a confirmed grant survives a crash")
        elif fsync in ("everysec", None):
            known = "appendfsync everysec" if fsync else "appendfsync unknown (this user may not run CONFIG)"
            advice = "a crash of the machine may lose a second of grants; appendfsync always prevents that"
            yield Finding(OK, "persistence", f"AOF, {known}", advice)
        else:
            advice = "a crash may lose half a minute of grants: CONFIG SET appendfsync everysec, or always"
            yield Finding(WARNING, "persistence", f"AOF, appendfsync {fsync}", advice)
        return
    save = server.setting("save")
    if save is None:
        advice = "check the settings: a restart loses locks that were not written to disk (appendonly yes)"
        yield Finding(WARNING, "persistence", "no AOF, and this user may not run CONFIG", advice)
    elif save:
        advice = "a restart loses all locks since the last snapshot: CONFIG SET appendonly yes"
        yield Finding(WARNING, "persistence", f"RDB snapshots only (save {save})", advice)
    else:
        advice = "a restart loses every lock while its holder still works: CONFIG SET appendonly yes"
        yield Finding(WARNING, "persistence", "nothing is written to disk", advice)


def check_eviction(server: Server) -> Iterator[Finding]:
    policy = server.info.get("maxmemory_policy") or server.setting("maxmemory-policy")
    if policy == "noeviction":
        yield Finding(OK, "eviction", "noeviction")
    elif policy is None:
        yield Finding(
            WARNING, "eviction", "this user may not read the policy", "make sure that maxmemory-policy is noeviction"
        )
    else:
        advice = "a full server evicts locks: CONFIG SET maxmemory-policy noeviction, or use a separate server"
        yield Finding(PROBLEM, "eviction", f"maxmemory-policy is {policy}", advice)


def check_memory(server: Server) -> Iterator[Finding]:
    """Compare the memory in use with `maxmemory`. A server that evicts is reported by `check_eviction`."""
    most = server.number("maxmemory")
    if not server.info:
        return
    if not most:
        yield Finding(OK, "memory", "no limit (maxmemory 0)")
        return
    used = server.number("used_memory") - server.number("mem_not_counted_for_evict")
    what = f"{used / MEGABYTE:.1f} of {most / MEGABYTE:.1f} MB (maxmemory) are in use"
    if used > most:
        advice = (
            "free memory or raise maxmemory: until then no lock can be acquired and no job enqueued. Held leases are"
            " still renewed and released, and workers finish the jobs that are stored"
        )
        yield Finding(PROBLEM, "memory", f"the server is full and refuses writes: {what}", advice)
    elif used > most * NEARLY_FULL:
        yield Finding(WARNING, "memory", what, "raise maxmemory: a full server refuses writes")
    else:
        yield Finding(OK, "memory", f"less than {NEARLY_FULL:.0%} of maxmemory is in use")


def check_clocks(server: Server) -> Iterator[Finding]:
    """Compare this host's clock with the server's and every replica's."""
    yield rate_skew("the server", server.measure_skew())
    for replica in server.replicas():
        name = f"replica {replica.get('ip', '?')}:{replica.get('port', '?')}"
        engine = server.engine
        try:
            address = dataclasses.replace(engine.address, path="", host=replica["ip"], port=int(replica["port"]))
            link = BlockingLink(address, engine.client_name, engine.tls)
        except (EngineError, KeyError, ValueError):
            unread = "let this host reach the replicas, or run the doctor on a host that can"
            yield Finding(WARNING, "clock", f"the clock of {name} could not be read", unread)
            continue
        try:
            yield rate_skew(name, measure_skew(link, server.clock))
        except EngineError:
            yield Finding(WARNING, "clock", f"{name} did not respond", "check whether it runs")
        finally:
            link.close()


def check_set_back(server: Server) -> Iterator[Finding]:
    """Compare the server's clock with the last fences of jobs: a fence is at least the server's time at that moment."""
    fences = [
        int(fence)
        for fence in server.call_many(
            *(("HGET", keys.shard(server.engine.namespace, number), "fence") for number in range(MOST_SHARDS))
        )
        if isinstance(fence, bytes)  # a node of a Cluster replies MOVED for the shards of other nodes
    ]
    time = server.call("TIME")
    if fences and not isinstance(time, ErrorReply):
        seconds, micros = time
        yield rate_set_back((max(fences) - int(micros)) / 1_000_000 - int(seconds))


def rate_skew(name: str, ahead: float) -> Finding:
    """Rate the difference between a server's clock and this host's."""
    level = rate_excess(abs(ahead), SKEW_WARNING, SKEW_PROBLEM)
    side = "ahead of" if ahead > 0 else "behind"
    what = f"the clock of {name} is {abs(ahead):.3f} s {side} this host's"
    return Finding(level, "clock", what, NTP if level != OK else "")


def check_replication(server: Server) -> Iterator[Finding]:
    found = server.replicas()
    if server.info and not found:
        yield Finding(OK, "replicas", "none")
    offset = server.number("master_repl_offset")
    for replica in found:
        name = f"{replica.get('ip', '?')}:{replica.get('port', '?')}"
        behind = offset - int(replica.get("offset", "0"))
        lag, state = int(replica.get("lag", "-1")), replica.get("state", "unknown")
        what = f"{name} is {state}, {behind} bytes behind, last report {lag} s ago"
        if state == "online" and 0 <= lag <= REPLICA_LAG:
            yield Finding(OK, "replicas", what)
        else:
            advice = "a failover to it would lose grants: check its log and the network between the two"
            yield Finding(WARNING, "replicas", what, advice)


def check_min_replicas(server: Server) -> Iterator[Finding]:
    have = len(server.replicas())
    given = server.setting("min-replicas-to-write")
    if given is None or not given.isdigit():
        return
    wanted = int(given)
    if wanted > have:
        advice = "writes are refused (NOREPLICAS): start the missing replicas, or lower min-replicas-to-write"
        yield Finding(PROBLEM, "min-replicas", f"{wanted} replicas are required, {have} are connected", advice)
    elif have and not wanted:
        advice = (
            "a master that is cut off from its replicas keeps granting locks that its successor does not know:"
            ' CONFIG SET min-replicas-to-write 1, and durability="replicas:1" where it matters'
        )
        yield Finding(WARNING, "min-replicas", "min-replicas-to-write is 0 although there are replicas", advice)
    elif wanted:
        yield Finding(OK, "min-replicas", f"min-replicas-to-write {wanted}")


def count_connections(server: Server) -> tuple[int, int]:
    """Return the number of open connections and the limit `maxclients`; 0 for an unknown number."""
    return server.number("connected_clients"), server.number("maxclients")


def check_connections(server: Server) -> Iterator[Finding]:
    used, most = count_connections(server)
    if not most:
        return
    what = f"{used} of {most} connections are in use"
    if used > most * CROWDED:
        yield Finding(
            WARNING, "connections", what, "raise maxclients: each thread that uses locks has a connection of its own"
        )
    else:
        yield Finding(OK, "connections", what)


def check_scripts(server: Server) -> Iterator[Finding]:
    """Run a script with every command that Backstay's scripts use, and subscribe to a channel as waiters do."""
    namespace = server.engine.namespace
    source = files("backstay.doctor").joinpath("probe.lua").read_text()
    key, channel = f"{namespace}:doctor:{{{server.tag}}}", f"{namespace}:inbox:doctor"
    reply = server.call("EVAL", source, "1", key, channel)
    if isinstance(reply, ErrorReply) and cannot_serve_now(reply):
        advice = "correct what the server names (memory, disk, replicas), then repeat: the rights are not checked yet"
        yield Finding(PROBLEM, "scripts", f"scripts cannot write now: {reply}", advice)
    elif isinstance(reply, ErrorReply):
        advice = (
            "this user needs EVAL, EVALSHA, TIME, GET, SET, DEL, GETRANGE, SETRANGE, APPEND, PEXPIRE, PTTL and PUBLISH"
            f" on {namespace}:*"
            f" (ACL SETUSER … +@scripting +@read +@write +@connection +publish ~{namespace}:* &{namespace}:*)"
        )
        yield Finding(PROBLEM, "scripts", f"scripts cannot run: {reply}", advice)
    else:
        yield Finding(OK, "scripts", "scripts may run, write and publish")
    if server.hello.resp3:
        try:
            server.link.subscribe(channel, lambda _: None)
        except EngineRefused as error:
            advice = f"waiters poll every few seconds instead of being notified: allow +subscribe &{namespace}:*"
            yield Finding(WARNING, "hints", f"subscribing is not permitted: {error}", advice)
        else:
            yield Finding(OK, "hints", "channels can be subscribed to")


def check_latency(server: Server) -> Iterator[Finding]:
    yield check_round_trip(partial(server.call, "PING"))


CHECKS: tuple[Callable[[Server], Iterator[Finding]], ...] = (
    check_version,
    check_protocol,
    check_info,
    check_role,
    check_persistence,
    check_eviction,
    check_memory,
    check_clocks,
    check_set_back,
    check_replication,
    check_min_replicas,
    check_connections,
    check_latency,
    check_scripts,
)
