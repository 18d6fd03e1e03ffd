"""Jobs: typed calls that a worker runs, with a retry, a chain and a job that waits for others."""

import asyncio
import logging

from backstay import Backstay, current_job

logging.getLogger("backstay").setLevel("ERROR")  # hide the warning about the retry; the output below shows it

stay = Backstay("memory://")
failures = iter([True, False])


@stay.job(retries=3, backoff=0.05)
async def download(url: str) -> str:
    if next(failures, False):
        raise ConnectionError("connection reset")
    path = url.rpartition("/")[2]
    current_job().continue_with(unpack, path)
    return path


@stay.job()
async def unpack(path: str) -> int:
    return len(path)


@stay.job()
def report() -> str:  # not async: it runs in a thread
    return f"sizes: {sorted(current_job().results.values())}"


async def main() -> None:
    worker = stay.worker(signals=False)
    working = asyncio.create_task(worker.run())

    downloads = [await download.enqueue(f"https://example.org/{name}") for name in ("a.zip", "more.zip")]
    summary = await report.options(after=downloads).enqueue()
    print("state of the report:", await summary.status())
    print("result of the report:", await summary.result(timeout=10))
    print("attempts of the first download:", (await downloads[0].info()).attempt)

    worker.stop()
    await working
    await stay.close()


asyncio.run(main())
