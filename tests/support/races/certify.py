"""A race that certifies a deployment: many processes, a few locks, and faults (kills, pauses, cut connections).

    PYTHONPATH=tests python -m support.races.certify --url redis://127.0.0.1:6379/0 --seconds 30
    PYTHONPATH=tests python -m support.races.certify --own-redis --seconds 60 --nemesis kill,pause,restart,faults

Prints counts and, if a guarantee was violated, the violations; it then exits with status 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from support.nemeses.nemesis import Cut, Kill, Nemesis, Pause, Restart
from support.races.engines import SHORT_TIMEOUTS
from support.races.lock_race import LockRace


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m support.races.certify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", default="", help="the engine to certify; default: a new SQLite file")
    parser.add_argument("--own-redis", action="store_true", help="start a Redis for the race, with an AOF")
    parser.add_argument("--forgetful", action="store_true", help="the same without an AOF: a restart loses all data")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--ttl", type=float, default=1.0)
    parser.add_argument("--nemesis", default="kill,pause", help="comma-separated: kill, pause, restart, faults")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backstay-race-")))
        server = None
        if args.own_redis or args.forgetful:
            server = stack.enter_context(RedisServer(port=reserve_port(), aof=not args.forgetful))
        direct = server.url if server else args.url or f"sqlite:///{folder}/race.db"
        url = direct
        nemeses: list[Nemesis] = []
        for kind in filter(None, args.nemesis.split(",")):
            nemesis, url = _nemesis(kind, url, server, args, stack)
            nemeses.append(nemesis)
        race = LockRace(
            url,
            direct=direct,
            folder=folder,
            processes=args.processes,
            seconds=args.seconds,
            ttl=args.ttl,
            nemeses=nemeses,
            seed=args.seed,
        )
        result = race.run()
    sys.stdout.write(f"{result}\n" + "".join(f"VIOLATION {v}\n" for v in result.violations))
    return 1 if result.violations else 0


def _nemesis(
    kind: str, url: str, server: RedisServer | None, args: argparse.Namespace, stack: ExitStack
) -> tuple[Nemesis, str]:
    """Create a nemesis by its name. Returns it with the URL that contenders must use, which may be a proxy's."""
    if kind == Kill.kind:
        return Kill(), url
    if kind == Pause.kind:
        return Pause(args.ttl), url
    if kind == Restart.kind and server is not None:
        return Restart(server), url
    if kind == Cut.kind and not url.startswith(("sqlite:", "memory:")):
        parts = urlsplit(url)
        proxy = FaultProxy(parts.port or 6379, host=parts.hostname or "127.0.0.1", seed=args.seed)
        return Cut(proxy), stack.enter_context(proxy).instead_of(url if parts.query else url + SHORT_TIMEOUTS)
    raise SystemExit(f"--nemesis {kind}: unknown or not available (restart needs --own-redis, faults needs a server)")


if __name__ == "__main__":
    sys.exit(main())
