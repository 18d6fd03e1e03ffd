"""One of a crowd that hits a limit as fast as it can, at the worst moments; prints when it was admitted.

`python limit_burster.py URL NAMESPACE ALGORITHM RATE SECONDS`: waits for a line, then hits; one JSON list of moments in
µs of the engine's clock at the end.
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
        moments: list[int] = []

        async def hammer() -> None:
            while time.monotonic() < end:
                decision = await api.hit("k")
                if decision.allowed:
                    moments.append(round(decision.at * 1_000_000))
                elif decision.by != "engine":
                    # A locally cached refusal: retry exactly when it expires.
                    await asyncio.sleep(min(decision.retry_after, max(0.0, end - time.monotonic())))

        await asyncio.gather(*[hammer() for _ in range(4)])
    print(json.dumps(moments), flush=True)


asyncio.run(main())
