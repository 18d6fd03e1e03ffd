"""One of several processes that hit a limit as often as they can.

`python limit_burster.py URL NAMESPACE ALGORITHM RATE SECONDS` prints `ready`, waits for a line on standard input, hits
the limit for SECONDS, and prints a JSON list of the times of the admitted hits, in µs of the engine's clock.
"""

import asyncio
import json
import sys
import time

from backstay import Backstay


async def main() -> None:
    url, namespace, algorithm, rate, seconds = sys.argv[1:]
    async with Backstay(url, namespace=namespace) as stay:
        api = stay.limit("burst", rate, algorithm=algorithm)
        await api.peek("k")
        print("ready", flush=True)
        sys.stdin.readline()
        end = time.monotonic() + float(seconds)
        times: list[int] = []

        async def hammer() -> None:
            while time.monotonic() < end:
                decision = await api.hit("k")
                if decision.allowed:
                    times.append(round(decision.at * 1_000_000))
                elif decision.by != "engine":
                    # A denial from the local cache: retry exactly when it expires.
                    await asyncio.sleep(min(decision.retry_after, max(0.0, end - time.monotonic())))

        await asyncio.gather(*[hammer() for _ in range(4)])
    print(json.dumps(times), flush=True)


asyncio.run(main())
