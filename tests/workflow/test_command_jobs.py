"""Command jobs and the workers that run them: who may, what they tell, how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import asynccontextmanager, suppress

import pytest
from awaited import awaited

from holdfast import ConfigError, Holdfast
from holdfast.job import flows, meta
from holdfast.job.internal import COMMAND, COMMANDS
from holdfast.job.meta import Meta
from holdfast.job.model import NewJob
from holdfast.job.registry import ids_of
from holdfast.testing.waiting import eventually, soon
from holdfast.workflow import flows as workflow_flows
from holdfast.workflow.command_spec import CommandSpec, Step, encode
from holdfast.workflow.plan import new_run
from holdfast.workflow.yaml import read


def command(hf: Holdfast, run: str | tuple[Step, ...], *, timeout: float = 0.0, retries: int = 0, **spec) -> NewJob:
    steps = (Step(run=run),) if isinstance(run, str) else run
    return NewJob(
        id=ids_of(hf._core).new(0),
        type=COMMAND,
        queue=spec.pop("queue", COMMANDS),
        args=encode(CommandSpec(steps=steps, key="build", workflow="ci", **spec)),
        meta=meta.pack(Meta(timeout=timeout)),
        labels=spec.pop("labels", ()),
        retries=retries,
    )


async def submit(hf: Holdfast, job: NewJob) -> str:
    return (await flows.enqueue(hf._core, job)).id


@asynccontextmanager
async def working(hf: Holdfast, **options):
    worker = hf.worker(allow_commands=True, signals=False, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop(now=True)
        await task


async def ended(hf: Holdfast, job: str):
    return await flows.ended(hf._core, job, chain=False, timeout=20)


async def log_of(hf: Holdfast, job: str, *streams: str) -> str:
    lines = await flows.logs(hf._core, job, 0)
    return "".join(line.data for line in lines if line.stream in (streams or ("stdout", "stderr")))


def alive(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - one line
        return stat.read().rpartition(b")")[2].split()[0] not in b"ZX"
    return False


@awaited
async def test_a_command_completes_with_its_outputs_and_its_log():
    async with Holdfast("memory://") as hf, working(hf):
        job = await submit(
            hf,
            command(
                hf,
                'echo "$HOLDFAST_WORKFLOW $HOLDFAST_JOB $HOLDFAST_ATTEMPT $INPUT_TO"; echo "a=1" >> "$HOLDFAST_OUTPUT"',
                inputs={"to": "prod"},
                outputs={"b": "${{ outputs.a }}2"},
            ),
        )
        done = await ended(hf, job)
        assert done.state == "completed"
        assert await flows.outputs(hf._core, job) == {"a": "1", "b": "12"}
        assert await log_of(hf, job) == "ci build 1 prod\n"


@awaited
async def test_a_command_that_fails_tells_its_exit_code_and_the_end_of_its_output():
    async with Holdfast("memory://") as hf, working(hf):
        job = await submit(hf, command(hf, "echo reason >&2; exit 7"))
        failed = await ended(hf, job)
        assert failed.state == "failed"
        assert (failed.error.kind, failed.error.message) == ("CommandFailed", "exit code 7")
        assert failed.error.trace == "reason\n"


@awaited
async def test_a_command_is_tried_again_as_often_as_it_may():
    async with Holdfast("memory://") as hf, working(hf):
        job = command(hf, 'echo "attempt $HOLDFAST_ATTEMPT"; test "$HOLDFAST_ATTEMPT" = 2', retries=2)
        await submit(hf, job)
        assert (await ended(hf, job.id)).state == "completed"
        assert await log_of(hf, job.id) == "attempt 1\nattempt 2\n"


@awaited
async def test_steps_may_ask_for_inputs_and_outputs():
    async with Holdfast("memory://") as hf, working(hf):
        steps = (
            Step(run="echo '::set-output changed=yes'"),
            Step(run="echo changed", condition="outputs.changed == 'yes'"),
            Step(run="echo forced", condition="inputs.force"),
            Step(run="echo matrix", condition="matrix.os == 'linux' && success()"),
        )
        job = await submit(hf, command(hf, steps, inputs={"force": False}, matrix={"os": "linux"}))
        await ended(hf, job)
        assert await log_of(hf, job, "stdout") == "::set-output changed=yes\nchanged\nmatrix\n"


@awaited
async def test_a_worker_without_commands_never_sees_one():
    async with Holdfast("memory://") as hf:
        job = await submit(hf, command(hf, "echo no"))

        @hf.job()
        async def plain() -> None: ...

        await plain.enqueue()
        worker = hf.worker(signals=False)
        await worker.run(burst=True)
        assert worker.counts == {"completed": 1}
        found = await flows.look(hf._core, job)
        assert (found.state, found.attempt, found.snoozes) == ("pending", 0, 0)


@awaited
async def test_a_command_in_another_queue_is_not_run():
    async with Holdfast("memory://") as hf, working(hf):
        job = await submit(hf, command(hf, "echo no", queue="default"))
        failed = await ended(hf, job)
        assert failed.state == "failed"
        assert "commands run from the queue 'holdfast.commands' alone" in failed.error.message
        assert await log_of(hf, job) == ""


@awaited
async def test_the_queue_of_commands_is_refused_to_workers_without():
    async with Holdfast("memory://") as hf:
        with pytest.raises(ConfigError, match="allow_commands=True"):
            hf.worker(queues=[COMMANDS])
        with pytest.raises(ConfigError, match="allow_commands=True"):
            hf.worker(pass_env=["HOME"])


@awaited
async def test_secrets_are_checked_when_the_worker_starts(tmp_path):
    async with Holdfast("memory://") as hf:
        with pytest.raises(ConfigError, match="secret 'NO_SUCH' is not set"):
            hf.worker(allow_commands=True, secrets=["NO_SUCH"])
        with pytest.raises(ConfigError, match="fewer than 4 characters"):
            hf.worker(allow_commands=True, secrets={"PIN": "123"})
        with pytest.raises(ConfigError, match="there is no directory"):
            hf.worker(allow_commands=True, directory=tmp_path / "none")


@awaited
async def test_secrets_given_to_the_worker_reach_commands_and_no_log():
    async with Holdfast("memory://") as hf, working(hf, secrets={"DEPLOY_KEY": "hunter22"}):
        job = await submit(hf, command(hf, 'echo "$DEPLOY_KEY"; echo "k=$DEPLOY_KEY" >> $HOLDFAST_OUTPUT; exit 0'))
        await ended(hf, job)
        assert await log_of(hf, job) == "***\n"
        assert await flows.outputs(hf._core, job) == {"k": "***"}


@awaited
async def test_a_cancelled_command_ends_with_everything_it_started():
    async with Holdfast("memory://") as hf, working(hf, grace=1):
        job = await submit(hf, command(hf, "sleep 300 & echo $$ $!; wait"))

        async def started() -> bool:
            return bool(await log_of(hf, job))

        assert await soon(started)
        pids = [int(pid) for pid in (await log_of(hf, job)).split()]
        await flows.cancel(hf._core, job, "enough")
        done = await ended(hf, job)
        assert done.state == "cancelled"
        assert eventually(lambda: not any(map(alive, pids)))


@awaited
async def test_a_command_that_takes_too_long_is_ended_and_keeps_its_last_words():
    async with Holdfast("memory://") as hf, working(hf, grace=2):
        script = "trap 'echo last words; exit 1' TERM; echo ready; while true; do sleep 0.05; done"
        job = await submit(hf, command(hf, script, timeout=0.5))
        done = await ended(hf, job)
        assert (done.state, done.error.kind) == ("failed", "JobTimeout")
        assert await log_of(hf, job, "stdout") == "ready\nlast words\n"


@awaited
async def test_a_command_that_does_not_listen_is_killed_after_the_grace():
    async with Holdfast("memory://") as hf, working(hf, grace=0.3):
        job = await submit(hf, command(hf, "trap '' TERM; echo $$; while true; do sleep 0.05; done", timeout=0.5))
        done = await ended(hf, job)
        assert done.error.kind == "JobTimeout"
        pid = int(await log_of(hf, job))
        assert eventually(lambda: not alive(pid))


@awaited
async def test_a_worker_that_stops_gives_its_commands_back_without_using_up_an_attempt():
    async with Holdfast("memory://") as hf:
        async with working(hf, grace=1):
            job = await submit(hf, command(hf, "echo $$; sleep 300"))

            async def started() -> bool:
                return bool(await log_of(hf, job))

            assert await soon(started)
        found = await flows.look(hf._core, job)
        assert (found.state, found.attempt) == ("pending", 0)
        pid = int(await log_of(hf, job))
        assert eventually(lambda: not alive(pid))


@awaited
async def test_a_worker_in_a_hurry_does_not_wait_for_a_long_grace():
    async with Holdfast("memory://") as hf:
        async with working(hf, grace=60):
            job = await submit(hf, command(hf, "trap '' TERM; echo $$; while true; do sleep 0.05; done"))

            async def started() -> bool:
                return bool(await log_of(hf, job))

            assert await soon(started)
            began = time.monotonic()
        assert time.monotonic() - began < 30
        pid = int(await log_of(hf, job))
        assert eventually(lambda: not alive(pid))


@awaited
async def test_many_lines_are_kept_in_order_and_fast_enough():
    async with Holdfast("memory://") as hf, working(hf):
        lines = 200_000
        job = await submit(hf, command(hf, f"seq 1 {lines}"))
        began = time.monotonic()
        done = await ended(hf, job)
        took = time.monotonic() - began
        assert done.state == "completed"
        assert await log_of(hf, job) == "".join(f"{n}\n" for n in range(1, lines + 1))
        print(f"{lines / took:,.0f} lines/s")
        assert lines / took > 20_000


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_no_command_behind(tmp_path):
    url = f"sqlite:///{tmp_path / 'holdfast.db'}"
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            from holdfast import Holdfast

            async def main():
                async with Holdfast({url!r}) as hf:
                    await hf.worker(allow_commands=True, grace=0.5).run()

            asyncio.run(main())
            """
        )
    )

    async def begin() -> str:
        async with Holdfast(url) as hf:
            return await submit(hf, command(hf, f"setsid -f true; sleep 300 & echo $$ $! > {tmp_path}/pids; wait"))

    asyncio.run(begin())
    worker = subprocess.Popen([sys.executable, str(program)], env=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        pids = tmp_path / "pids"
        assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2, 30)
        found = [int(pid) for pid in pids.read_text().split()]
        assert all(map(alive, found))
        os.kill(worker.pid, signal.SIGKILL)
        assert eventually(lambda: not any(map(alive, found)))
    finally:
        worker.kill()
        worker.wait()


FLOW = """
name: files
jobs:
  build:
    run: |
      mkdir -p "$HOLDFAST_ARTIFACTS/dist"
      printf wheel > "$HOLDFAST_ARTIFACTS/dist/a.whl"
      ln -s /etc/passwd "$HOLDFAST_ARTIFACTS/passwd"
      echo "name=a.whl" >> "$HOLDFAST_OUTPUT"
  decided:
    needs: build
    if: needs.build.outputs.name == 'a.whl'
    run: |
      cat "$HOLDFAST_NEEDS_DIR/BUILD/dist/a.whl"
      echo " $NEEDS_BUILD_NAME $HOLDFAST_RESULT_BUILD"
      printf report > "$HOLDFAST_ARTIFACTS/report"
      exit 3
    continue-on-error: true
  last:
    needs: decided
    run: ls "$HOLDFAST_NEEDS_DIR/DECIDED"
"""


@pytest.mark.parametrize("shelf", ["", "shelf"])
@awaited
async def test_files_travel_from_job_to_job(shelf, tmp_path):
    async with Holdfast("memory://") as hf, working(hf, artifacts=tmp_path / shelf if shelf else ""):
        run = await workflow_flows.start(hf._core, new_run(hf._core, read(FLOW), {}))
        done = await workflow_flows.ended(hf._core, run.id, 30)
        jobs = {job.key: job for job in await workflow_flows.jobs(hf._core, run.id)}
        assert done.status == "success", jobs
        assert await log_of(hf, jobs["decided"].id) == "wheel a.whl success\n"
        assert await log_of(hf, jobs["last"].id) == "report\n"
        assert "passwd is left out" in await log_of(hf, jobs["build"].id, "log")
        assert bool(list(tmp_path.rglob("*"))) is bool(shelf)
