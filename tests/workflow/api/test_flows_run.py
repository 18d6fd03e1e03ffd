"""Python workflows run end to end with a real worker."""

import pytest
from each_engine import on_each_engine

from backstay import Backstay, BadArgument, BadInput, ConfigError, ResultTimeout, RunNotFound, current_job
from backstay.workflow.api.mixin import WORKFLOWS
from support.app import working


@on_each_engine
async def test_the_release_example_runs_end_to_end(stay):
    @stay.job()
    async def build(version: str) -> str:
        return f"app-{version}.whl"

    @stay.job()
    async def run_tests(python: str, wheel: str) -> str:
        return f"{wheel} on {python}"

    @stay.job()
    async def publish(wheel: str) -> dict[str, str]:
        return {"published": wheel}

    @stay.workflow
    def release(flow, version: str):
        wheel = flow.add(build, version)
        tests = flow.map(run_tests, ["3.11", "3.12"], wheel=wheel.output)
        flow.add(publish, wheel.output, after=tests, when="all_success")

    async with working(stay):
        run = await release.start("1.2")
        assert await run.wait(timeout=30) == "success"
    assert run.outputs["publish"] == {"published": "app-1.2.whl"}
    assert run.outputs["run_tests (3.12)"] == "app-1.2.whl on 3.12"
    assert run.outputs["run_tests"] == ["app-1.2.whl on 3.11", "app-1.2.whl on 3.12"]
    jobs = {job.key: job for job in await run.jobs()}
    assert jobs["publish"].needs == ("build", "run_tests (3.11)", "run_tests (3.12)")
    info = await run.info()
    assert info.inputs == {"version": "1.2"}
    assert info.counts == {"completed": 4}
    kinds = [event.kind async for event in run.events()]
    assert kinds[0] == "run_created"
    assert kinds[-1] == "run_finished"
    assert kinds.count("completed") == 4


@on_each_engine
async def test_a_map_over_an_output_creates_its_jobs_once_the_output_is_known(stay):
    @stay.job()
    async def find(count: int) -> list[int]:
        return list(range(count))

    @stay.job()
    async def square(n: int, plus: int = 0) -> int:
        return n * n + plus

    @stay.job()
    async def add_up(numbers: list[int]) -> int:
        return sum(numbers)

    @stay.workflow
    def squares(flow, count: int):
        found = flow.add(find, count)
        each = flow.map(square, found.output, plus=1)
        flow.add(add_up, each.output)

    async with working(stay):
        run = await squares.start(5)
        assert await run.wait(timeout=30) == "success"
        assert run.outputs["square"] == [1, 2, 5, 10, 17]
        assert run.outputs["add_up"] == 35
        assert run.outputs["square (3)"] == 10
        keys = [job.key for job in await run.jobs()]
        assert keys == ["find", "square", *(f"square ({n})" for n in range(5)), "add_up"]
        empty = await squares.start(0)
        assert await empty.wait(timeout=30) == "success"
        assert empty.outputs["add_up"] == 0


@on_each_engine
async def test_outputs_are_injected_into_nested_arguments(stay):
    @stay.job()
    async def make(name: str) -> dict[str, object]:
        return {"path": f"/{name}", "sizes": [1, 2]}

    @stay.job()
    async def join(parts: list[str], by: dict[str, int], *, tail: str = "") -> str:
        return ",".join(parts) + str(by["size"]) + tail

    @stay.workflow
    def joining(flow):
        a, b = flow.add(make, "a"), flow.add(make, "b")
        by = {"size": b.output["sizes"][1]}
        flow.add(join, [a.output["path"], "x", b.output["path"]], by, tail="!", key="joined")

    async with working(stay):
        run = await joining.start()
        assert await run.wait(timeout=30) == "success"
    assert run.outputs["joined"] == "/a,x,/b2!"
    assert [job.key for job in await run.jobs()] == ["make", "make-2", "joined"]


@on_each_engine
async def test_conditions_decide_which_jobs_run(stay):
    @stay.job(retries=0)
    async def check(fails: bool) -> dict[str, str]:
        if fails:
            raise ValueError
        return {"changed": "yes"}

    @stay.job()
    async def echo(word: str) -> str:
        return word

    @stay.workflow
    def conditional(flow, fails: bool, deploy: bool = True):
        first = flow.add(check, fails)
        flow.add(echo, "a", key="changed", after=first, when="needs.check.outputs.changed == 'yes' && inputs.deploy")
        flow.add(echo, "b", key="unchanged", after=first, when="needs.check.outputs.changed != 'yes'")
        flow.add(echo, "c", key="mail", after=first, when="any_failure")
        flow.add(echo, "d", key="tidy", after=first, when="all_done")
        flow.add(echo, "e", key="either", after=first, when="failure() || needs.check.outputs.changed == 'yes'")

    async def states(**inputs):
        run = await conditional.start(**inputs)
        status = await run.wait(timeout=30)
        return status, {job.key for job in await run.jobs() if job.state == "completed"} - {"check"}

    async with working(stay):
        assert await states(fails=False) == ("success", {"changed", "tidy", "either"})
        assert await states(fails=False, deploy=False) == ("success", {"tidy", "either"})
        assert await states(fails=True) == ("failure", {"mail", "tidy", "either"})


@on_each_engine
async def test_a_condition_sees_a_failure_of_an_indirect_need(stay):
    @stay.job(retries=0)
    async def fail() -> None:
        raise ValueError

    @stay.job()
    async def work() -> str:
        return "done"

    @stay.workflow
    def far(flow):
        first = flow.add(fail)
        second = flow.add(work, key="second", after=first)
        flow.add(work, key="third", after=second, when="failure() && needs.second.result == 'skipped'")
        soft = flow.add(fail, key="soft", soft=True)
        flow.add(work, key="goes-on", after=soft, when="success() && needs.soft.result == 'success'")

    async with working(stay):
        run = await far.start()
        assert await run.wait(timeout=30) == "failure"
        states = {job.key: job.state for job in await run.jobs()}
    assert states["third"] == "completed"
    assert states["goes-on"] == "completed"


@on_each_engine
async def test_a_job_of_a_run_can_continue_its_chain(stay):
    @stay.job()
    async def first() -> str:
        current_job().continue_with(second, 2)
        return "first"

    @stay.job()
    async def second(n: int) -> str:
        return f"second {n}"

    @stay.job()
    async def last(word: str) -> str:
        return f"last after {word}"

    @stay.workflow
    def chained(flow):
        flow.add(last, flow.add(first).output)

    async with working(stay):
        run = await chained.start()
        assert await run.wait(timeout=30) == "success"
    assert run.outputs == {"first": "second 2", "last": "last after second 2"}


@on_each_engine
async def test_an_invalid_flow_is_refused_before_anything_starts(stay):
    @stay.job()
    async def build(version: str) -> str:
        return version

    @stay.job(unique="one")
    async def single() -> None: ...

    def broken(what):
        def flow(flow):
            what(flow)

        flow.__name__ = f"flow{len(stay._core.services.get(WORKFLOWS))}"
        return stay.workflow(flow)

    other = None

    def keep(flow):
        nonlocal other
        other = flow.add(build, "1")

    broken(keep).build()
    cases = {
        "with @stay.job": lambda flow: flow.add(print, 1),
        ".output": lambda flow: flow.add(build, flow.add(build, "1")),
        "no value while the flow is built": lambda flow: flow.add(build, f"{flow.add(build, '1').output}"),
        "have the key 'x'": lambda flow: [flow.add(build, "1", key="x"), flow.add(build, "2", key="x")],
        "another run": lambda flow: flow.add(build, other.output),
        "unique": lambda flow: flow.add(single),
        "when= must be one of": lambda flow: flow.add(build, "1", when="sometimes"),
        "needs.build does not exist": lambda flow: flow.add(build, "1", when="needs.build.result == 'success'"),
        "needs a list": lambda flow: flow.map(build, "abc"),
        "after= takes": lambda flow: flow.add(build, "1", after="build"),
    }
    for words, case in cases.items():
        with pytest.raises(ConfigError, match=words):
            await broken(case).start()
    with pytest.raises(BadArgument):
        await broken(lambda flow: flow.add(build, 7)).start()
    with pytest.raises(TypeError):
        await broken(lambda flow: flow.add(build)).start()
    with pytest.raises(BadInput):
        await broken(keep).start("too much")
    assert await stay.runs.list() == []


@on_each_engine
async def test_runs_are_found_by_id_and_by_status(stay):
    @stay.job()
    async def work() -> int:
        return 1

    @stay.workflow
    def plain(flow):
        flow.add(work)

    run = await plain.start()
    other = await stay.workflows.start("plain")
    assert [one.id for one in await stay.runs.list(status="queued")] == [other.id, run.id]
    assert [one.id for one in await stay.runs.list(before=other.id)] == [run.id]
    with pytest.raises(ResultTimeout):
        await run.wait(timeout=0.05)
    with pytest.raises(ConfigError, match="wait"):
        _ = run.outputs
    for unknown in ("0-00", "zz", "f-1", ""):
        with pytest.raises(RunNotFound):
            await stay.runs.get(unknown)
    (stored,) = await stay.workflows.list()
    assert (stored.name, stored.version) == ("plain", 1)
    async with working(stay):
        handle = await stay.runs.handle(run.id)
        assert await handle.wait(timeout=30) == "success"
        assert handle.outputs == {"work": 1}


@on_each_engine
async def test_a_program_that_does_not_define_the_jobs_reads_a_runs_outputs(stay):
    @stay.job()
    async def work() -> list[int]:
        return [1, 2]

    @stay.workflow
    def plain(flow):
        flow.add(work)

    async with working(stay):
        run = await plain.start()
        await run.wait(timeout=30)
    async with Backstay(stay._settings.url, namespace=stay._settings.namespace) as other_app:
        handle = await other_app.runs.handle(run.id)
        assert await handle.wait(timeout=30) == "success"
        assert handle.outputs == {"work": [1, 2]}
