"""A workflow in Python: results that flow, a list that is known later, a condition, and a second try."""

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
async def tell(whom: str) -> str:
    return f"told {whom}"


@stay.workflow
def release(flow: Flow, repository: str, version: str) -> None:
    packages = flow.add(find_packages, repository)
    wheels = flow.map(build, packages.output, version)
    published = flow.add(publish, wheels.output)
    flow.add(tell, "everybody", key="celebrate", after=published, when="needs.publish.outputs.published != 0")
    flow.add(tell, "the team", key="alarm", after=published, when="any_failure")


async def main() -> None:
    worker = stay.worker(signals=False)
    working = asyncio.create_task(worker.run())

    run = await release.start("shop", "1.2")
    print("the run ended:", await run.wait(timeout=10))
    for job in await run.jobs():
        print(f"  {job.key:<22} {job.state}")

    broken.clear()
    await run.rerun_failed()
    print("once more:", await run.wait(timeout=10))
    print("published:", run.outputs["publish"], "and", run.outputs["celebrate"])

    worker.stop()
    await working
    await stay.close()


asyncio.run(main())
