"""A workflow in Python: outputs as arguments, a map over an output, conditions, and a re-run of failed jobs."""

import asyncio
import logging

from backstay import Backstay, Flow

logging.getLogger("backstay").setLevel("CRITICAL")  # the failure below is on purpose

stay = Backstay("memory://")
broken = [True]


@stay.job()
async def find_packages(repository: str) -> list[str]:
    return [f"{repository}/core", f"{repository}/web"]


@stay.job(retries=0)
async def build(package: str, version: str) -> str:
    if broken and package.endswith("web"):
        raise RuntimeError("the compiler is missing")
    return f"{package}-{version}.whl"


@stay.job()
async def publish(wheels: list[str]) -> dict[str, int]:
    return {"published": len(wheels)}


@stay.job()
async def notify(recipient: str) -> str:
    return f"notified {recipient}"


@stay.workflow
def release(flow: Flow, repository: str, version: str) -> None:
    packages = flow.add(find_packages, repository)
    wheels = flow.map(build, packages.output, version)
    published = flow.add(publish, wheels.output)
    flow.add(notify, "users", key="announce", after=published, when="needs.publish.outputs.published != 0")
    flow.add(notify, "the team", key="alarm", after=published, when="any_failure")


async def main() -> None:
    worker = stay.worker(signals=False)
    working = asyncio.create_task(worker.run())

    run = await release.start("shop", "1.2")
    print("result of the run:", await run.wait(timeout=10))
    for job in await run.jobs():
        print(f"  {job.key:<22} {job.state}")

    broken.clear()
    await run.rerun_failed()
    print("after the re-run:", await run.wait(timeout=10))
    print("outputs:", run.outputs["publish"], "and", run.outputs["announce"])

    worker.stop()
    await working
    await stay.close()


asyncio.run(main())
