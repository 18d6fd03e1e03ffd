"""A look at one Redis or Valkey server, and at the replicas that it knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files

from backstay.doctor.finding import (
    OK,
    PROBLEM,
    SKEW_PROBLEM,
    SKEW_WARNING,
    WARNING,
    Finding,
    above,
    round_trip,
)
from backstay.doctor.redis_server import Clock, Server, skew
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import Refusal
from backstay.errors import EngineError, EngineRefused

#: A replica reports once a second.
REPLICA_LAG = 5
#: Each thread has a connection of its own; past this share of `maxclients` a busy day may not fit.
CROWDED = 0.8
#: What clocks are for.
NTP = "run NTP (chrony) on this host and on every node: after a failover, fences grow only as far as clocks agree"


def where(engine: RedisEngine) -> str:
    return str(engine.address)


def diagnose(engine: RedisEngine, clock: Clock) -> Iterator[Finding]:
    """Everything worth knowing, in the order in which one would ask."""
    try:
        server = Server(engine, clock)
    except EngineError as error:
        yield unreached(error)
        return
    try:
        for look in LOOK_AT:
            yield from look(server)
    except EngineError as error:
        yield Finding(PROBLEM, "reach", f"the connection was lost on the way: {error}", "look again when it is stable")
    finally:
        server.link.close()


def unreached(error: EngineError) -> Finding:
    if isinstance(error, EngineRefused):
        return Finding(PROBLEM, "reach", str(error), "mend what the server names: password, rights or version")
    return Finding(PROBLEM, "reach", str(error), "look at host, port and firewall, and whether the server runs")


def version(server: Server) -> Iterator[Finding]:
    hello = server.hello
    number = ".".join(map(str, hello.version)) or "of an unknown version"
    yield Finding(OK, "version", f"{hello.server} {number}")


def protocol(server: Server) -> Iterator[Finding]:
    if server.hello.resp3:
        yield Finding(OK, "protocol", "RESP3")
    else:
        what = "RESP2 only: HELLO 3 is not known here"
        advice = "allow HELLO (rename-command): blocked threads then hear of their turn on their own connection, sooner"
        yield Finding(WARNING, "protocol", what, advice)


def role(server: Server) -> Iterator[Finding]:
    if server.info.get("role") == "slave":
        master = f"{server.info.get('master_host', '?')}:{server.info.get('master_port', '?')}"
        what = f"this is a replica of {master}: it takes no writes"
        yield Finding(PROBLEM, "role", what, "point the URL at the master, or use Sentinel to find it")


def rights(server: Server) -> Iterator[Finding]:
    if not server.info:
        advice = "let the doctor's user read it (ACL +info), or ask whoever runs the server about the rest"
        yield Finding(WARNING, "info", "INFO is not for this user: persistence and replicas are unknown", advice)


def persistence(server: Server) -> Iterator[Finding]:
    info = server.info
    if not info:
        return
    if info.get("loading") == "1":
        yield Finding(PROBLEM, "persistence", "the server is still loading its data", "wait until it has started")
    for what, field in (("AOF", "aof_last_write_status"), ("RDB", "rdb_last_bgsave_status")):
        if info.get(field, "ok") != "ok":
            advice = "look at the server's log, its disk space and rights: it may refuse writes until this is mended"
            yield Finding(PROBLEM, "persistence", f"the last {what} write failed", advice)
    fsync = server.setting("appendfsync")
    if info.get("aof_enabled") == "1":
        if fsync == "always":
            yield Finding(OK, "persistence", "AOF, appendfsync always: an answered grant survives a crash")
        elif fsync in ("everysec", None):
            known = "appendfsync everysec" if fsync else "appendfsync unknown (CONFIG is not for this user)"
            advice = "a crash of the machine may lose a second of grants; appendfsync always does not"
            yield Finding(OK, "persistence", f"AOF, {known}", advice)
        else:
            advice = "a crash may lose half a minute of grants: CONFIG SET appendfsync everysec, or always"
            yield Finding(WARNING, "persistence", f"AOF, appendfsync {fsync}", advice)
        return
    save = server.setting("save")
    if save is None:
        advice = "make sure of it: a restart forgets locks that were not written to disk (appendonly yes)"
        yield Finding(WARNING, "persistence", "no AOF, and CONFIG is not for this user", advice)
    elif save:
        advice = "a restart forgets locks since the last snapshot: CONFIG SET appendonly yes"
        yield Finding(WARNING, "persistence", f"RDB snapshots only (save {save})", advice)
    else:
        advice = "a restart forgets every lock while its holder still works: CONFIG SET appendonly yes"
        yield Finding(WARNING, "persistence", "nothing is written to disk", advice)


def eviction(server: Server) -> Iterator[Finding]:
    policy = server.info.get("maxmemory_policy") or server.setting("maxmemory-policy")
    if policy == "noeviction":
        yield Finding(OK, "eviction", "noeviction")
    elif policy is None:
        yield Finding(
            WARNING, "eviction", "the policy may not be read", "make sure that maxmemory-policy is noeviction"
        )
    else:
        advice = "a full server would throw locks away: CONFIG SET maxmemory-policy noeviction, or a server of its own"
        yield Finding(PROBLEM, "eviction", f"maxmemory-policy is {policy}", advice)


def clocks(server: Server) -> Iterator[Finding]:
    """This host's clock against the server's and every replica's."""
    yield of_this_host("the server", server.skew())
    for replica in server.replicas():
        name = f"replica {replica.get('ip', '?')}:{replica.get('port', '?')}"
        engine = server.engine
        try:
            address = dataclasses.replace(engine.address, path="", host=replica["ip"], port=int(replica["port"]))
            link = BlockingLink(address, engine.client_name, engine.tls)
        except (EngineError, KeyError, ValueError):
            unasked = "let this host reach its replicas once, or run the doctor on theirs"
            yield Finding(WARNING, "clock", f"{name} could not be asked for its clock", unasked)
            continue
        try:
            yield of_this_host(name, skew(link, server.clock))
        except EngineError:
            yield Finding(WARNING, "clock", f"{name} did not answer", "look whether it runs")
        finally:
            link.close()


def of_this_host(name: str, ahead: float) -> Finding:
    """A clock against this host's."""
    level = above(abs(ahead), SKEW_WARNING, SKEW_PROBLEM)
    side = "ahead of" if ahead > 0 else "behind"
    what = f"the clock of {name} is {abs(ahead):.3f} s {side} this host's"
    return Finding(level, "clock", what, NTP if level != OK else "")


def replication(server: Server) -> Iterator[Finding]:
    found = server.replicas()
    if server.info and not found:
        yield Finding(OK, "replicas", "none")
    offset = server.number("master_repl_offset")
    for replica in found:
        name = f"{replica.get('ip', '?')}:{replica.get('port', '?')}"
        behind = offset - int(replica.get("offset", "0"))
        lag, state = int(replica.get("lag", "-1")), replica.get("state", "unknown")
        what = f"{name} is {state}, {behind} bytes behind, heard of {lag} s ago"
        if state == "online" and 0 <= lag <= REPLICA_LAG:
            yield Finding(OK, "replicas", what)
        else:
            advice = "a failover to it would lose grants: look at its log and at the network between the two"
            yield Finding(WARNING, "replicas", what, advice)


def least_replicas(server: Server) -> Iterator[Finding]:
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
            "a master that is cut off goes on granting locks that its successor does not know:"
            ' CONFIG SET min-replicas-to-write 1, and durability="replicas:1" where it matters'
        )
        yield Finding(WARNING, "min-replicas", "min-replicas-to-write is 0 although there are replicas", advice)
    elif wanted:
        yield Finding(OK, "min-replicas", f"min-replicas-to-write {wanted}")


def crowd(server: Server) -> tuple[int, int]:
    """Connections in use, and how many there may be; 0: unknown."""
    return server.number("connected_clients"), server.number("maxclients")


def connections(server: Server) -> Iterator[Finding]:
    used, most = crowd(server)
    if not most:
        return
    what = f"{used} of {most} connections are in use"
    if used > most * CROWDED:
        yield Finding(WARNING, "connections", what, "raise maxclients: each thread that locks has one of its own")
    else:
        yield Finding(OK, "connections", what)


def scripts(server: Server) -> Iterator[Finding]:
    """Run a script that uses what ours use, and hear a channel as waiters do."""
    namespace = server.engine.namespace
    source = files("backstay.doctor").joinpath("probe.lua").read_text()
    key, channel = f"{namespace}:doctor:{{{server.tag}}}", f"{namespace}:inbox:doctor"
    reply = server.ask("EVAL", source, "1", key, channel)
    if isinstance(reply, Refusal):
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
            advice = f"waiters look every few seconds instead of being told: allow +subscribe &{namespace}:*"
            yield Finding(WARNING, "hints", f"channels may not be heard: {error}", advice)
        else:
            yield Finding(OK, "hints", "channels may be heard")


def trip(server: Server) -> Iterator[Finding]:
    yield round_trip(partial(server.ask, "PING"))


#: One function for each thing; a further one is one more line.
LOOK_AT: tuple[Callable[[Server], Iterator[Finding]], ...] = (
    version,
    protocol,
    rights,
    role,
    persistence,
    eviction,
    clocks,
    replication,
    least_replicas,
    connections,
    trip,
    scripts,
)
