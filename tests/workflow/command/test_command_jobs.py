"""Command jobs on workers: permission, logs, outputs, cancellation, timeouts and artifacts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import asynccontextmanager

import pytest

from backstay import Backstay, ConfigError
from backstay.job import flows, metadata
from backstay.job.ids import JOB_IDS
from backstay.job.metadata import Meta
from backstay.job.model import NewJob
from backstay.job.reserved import COMMAND, COMMANDS
from backstay.testing.waiting import eventually, soon
from backstay.workflow import flows as workflow_flows
from backstay.workflow.command.spec import CommandSpec, Step, encode
from backstay.workflow.document.yaml import read
from backstay.workflow.planning.plan import plan_run
from support.event_loop import on_a_worker_loop
from support.programs import is_alive


def command(stay: Backstay, run: str | tuple[Step, ...], *, timeout: float = 0.0, retries: int = 0, **spec) -> NewJob:
    steps = (Step(run=run),) if isinstance(run, str) else run
    return NewJob(
        id=stay._core.services.get(JOB_IDS).new(0),
        type=COMMAND,
        queue=spec.pop("queue", COMMANDS),
        args=encode(CommandSpec(steps=steps, key="build", workflow="ci", **spec)),
        meta=metadata.pack(Meta(timeout=timeout)),
        labels=spec.pop("labels", ()),
        retries=retries,
    )


async def submit(stay: Backstay, job: NewJob) -> str:
    return (await flows.enqueue(stay._core, job)).id


@asynccontextmanager
async def working(stay: Backstay, **options):
    worker = stay.worker(allow_commands=True, signals=False, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop(now=True)
        await task


async def wait_ended(stay: Backstay, job: str):
    return await flows.wait_finished(stay._core, job, chain=False, timeout=20)


async def log_of(stay: Backstay, job: str, *streams: str) -> str:
    lines = await flows.logs(stay._core, job, 0)
    return "".join(line.data for line in lines if line.stream in (streams or ("stdout", "stderr")))


@on_a_worker_loop
async def test_a_command_completes_with_its_outputs_and_its_log():
    async with Backstay("memory://") as stay, working(stay):
        job = await submit(
            stay,
            command(
                stay,
                'echo "$BACKSTAY_WORKFLOW $BACKSTAY_JOB $BACKSTAY_ATTEMPT $INPUT_TO"; echo "a=1" >> "$BACKSTAY_OUTPUT"',
                inputs={"to": "prod"},
                outputs={"b": "${{ outputs.a }}2"},
            ),
        )
        done = await wait_ended(stay, job)
        assert done.state == "completed"
        assert await flows.outputs(stay._core, job) == {"a": "1", "b": "12"}
        assert await log_of(stay, job) == "ci build 1 prod\n"


@on_a_worker_loop
async def test_a_failed_command_reports_its_exit_code_and_the_end_of_its_output():
    async with Backstay("memory://") as stay, working(stay):
        job = await submit(stay, command(stay, "echo reason >&2; exit 7"))
        failed = await wait_ended(stay, job)
        assert failed.state == "failed"
        assert (failed.error.kind, failed.error.message) == ("CommandFailed", "exit code 7")
        assert failed.error.trace == "reason\n"


@on_a_worker_loop
async def test_a_command_is_retried_up_to_its_limit():
    async with Backstay("memory://") as stay, working(stay):
        job = command(stay, 'echo "attempt $BACKSTAY_ATTEMPT"; test "$BACKSTAY_ATTEMPT" = 2', retries=2)
        await submit(stay, job)
        assert (await wait_ended(stay, job.id)).state == "completed"
        assert await log_of(stay, job.id) == "attempt 1\nattempt 2\n"


@on_a_worker_loop
async def test_step_conditions_read_inputs_outputs_and_matrix():
    async with Backstay("memory://") as stay, working(stay):
        steps = (
            Step(run="echo '::set-output changed=yes'"),
            Step(run="echo changed", condition="outputs.changed == 'yes'"),
            Step(run="echo forced", condition="inputs.force"),
            Step(run="echo matrix", condition="matrix.os == 'linux' && success()"),
        )
        job = await submit(stay, command(stay, steps, inputs={"force": False}, matrix={"os": "linux"}))
        await wait_ended(stay, job)
        assert await log_of(stay, job, "stdout") == "::set-output changed=yes\nchanged\nmatrix\n"


@on_a_worker_loop
async def test_a_worker_that_does_not_allow_commands_claims_none():
    async with Backstay("memory://") as stay:
        job = await submit(stay, command(stay, "echo no"))

        @stay.job()
        async def plain() -> None: ...

        await plain.enqueue()
        worker = stay.worker(signals=False)
        await worker.run(burst=True)
        assert worker.counts == {"completed": 1}
        found = await flows.fetch_job(stay._core, job)
        assert (found.state, found.attempt, found.snoozes) == ("pending", 0, 0)


@on_a_worker_loop
async def test_a_command_in_another_queue_is_not_run():
    async with Backstay("memory://") as stay, working(stay):
        job = await submit(stay, command(stay, "echo no", queue="default"))
        failed = await wait_ended(stay, job)
        assert failed.state == "failed"
        assert "commands run only from the queue 'backstay.commands'" in failed.error.message
        assert await log_of(stay, job) == ""


@on_a_worker_loop
async def test_the_commands_queue_is_refused_to_workers_that_do_not_allow_commands():
    async with Backstay("memory://") as stay:
        with pytest.raises(ConfigError, match="allow_commands=True"):
            stay.worker(queues=[COMMANDS])
        with pytest.raises(ConfigError, match="allow_commands=True"):
            stay.worker(pass_env=["HOME"])


@on_a_worker_loop
async def test_secrets_are_checked_when_the_worker_starts(tmp_path):
    async with Backstay("memory://") as stay:
        with pytest.raises(ConfigError, match="secret 'NO_SUCH' is not set"):
            stay.worker(allow_commands=True, secrets=["NO_SUCH"])
        with pytest.raises(ConfigError, match="fewer than 4 characters"):
            stay.worker(allow_commands=True, secrets={"PIN": "123"})
        with pytest.raises(ConfigError, match="does not exist"):
            stay.worker(allow_commands=True, directory=tmp_path / "none")


@on_a_worker_loop
async def test_secrets_given_to_the_worker_reach_commands_and_no_log():
    async with Backstay("memory://") as stay, working(stay, secrets={"DEPLOY_KEY": "hunter22"}):
        job = await submit(stay, command(stay, 'echo "$DEPLOY_KEY"; echo "k=$DEPLOY_KEY" >> $BACKSTAY_OUTPUT; exit 0'))
        await wait_ended(stay, job)
        assert await log_of(stay, job) == "***\n"
        assert await flows.outputs(stay._core, job) == {"k": "***"}


@on_a_worker_loop
async def test_a_cancelled_command_ends_with_all_its_processes():
    async with Backstay("memory://") as stay, working(stay, grace=1):
        job = await submit(stay, command(stay, "sleep 300 & echo $$ $!; wait"))

        async def started() -> bool:
            return bool(await log_of(stay, job))

        assert await soon(started)
        pids = [int(pid) for pid in (await log_of(stay, job)).split()]
        await flows.cancel(stay._core, job, "enough")
        done = await wait_ended(stay, job)
        assert done.state == "cancelled"
        assert eventually(lambda: not any(map(is_alive, pids)))


@on_a_worker_loop
async def test_a_command_past_its_timeout_keeps_its_last_output():
    async with Backstay("memory://") as stay, working(stay, grace=2):
        script = "trap 'echo last words; exit 1' TERM; echo ready; while true; do sleep 0.05; done"
        job = await submit(stay, command(stay, script, timeout=0.5))
        done = await wait_ended(stay, job)
        assert (done.state, done.error.kind) == ("failed", "JobTimeout")
        assert await log_of(stay, job, "stdout") == "ready\nlast words\n"


@on_a_worker_loop
async def test_a_command_past_its_timeout_that_ignores_sigterm_is_killed():
    async with Backstay("memory://") as stay, working(stay, grace=0.3):
        job = await submit(stay, command(stay, "trap '' TERM; echo $$; while true; do sleep 0.05; done", timeout=0.5))
        done = await wait_ended(stay, job)
        assert done.error.kind == "JobTimeout"
        pid = int(await log_of(stay, job))
        assert eventually(lambda: not is_alive(pid))


@on_a_worker_loop
async def test_a_stopping_worker_releases_its_commands_without_using_up_an_attempt():
    async with Backstay("memory://") as stay:
        async with working(stay, grace=1):
            job = await submit(stay, command(stay, "echo $$; sleep 300"))

            async def started() -> bool:
                return bool(await log_of(stay, job))

            assert await soon(started)
        found = await flows.fetch_job(stay._core, job)
        assert (found.state, found.attempt) == ("pending", 0)
        pid = int(await log_of(stay, job))
        assert eventually(lambda: not is_alive(pid))


@on_a_worker_loop
async def test_a_stopping_worker_does_not_wait_for_a_long_grace():
    async with Backstay("memory://") as stay:
        async with working(stay, grace=60):
            job = await submit(stay, command(stay, "trap '' TERM; echo $$; while true; do sleep 0.05; done"))

            async def started() -> bool:
                return bool(await log_of(stay, job))

            assert await soon(started)
            began = time.monotonic()
        assert time.monotonic() - began < 30
        pid = int(await log_of(stay, job))
        assert eventually(lambda: not is_alive(pid))


@on_a_worker_loop
async def test_many_lines_are_kept_in_order_and_fast_enough():
    async with Backstay("memory://") as stay, working(stay):
        lines = 200_000
        job = await submit(stay, command(stay, f"seq 1 {lines}"))
        began = time.monotonic()
        done = await wait_ended(stay, job)
        took = time.monotonic() - began
        assert done.state == "completed"
        assert await log_of(stay, job) == "".join(f"{n}\n" for n in range(1, lines + 1))
        print(f"{lines / took:,.0f} lines/s")
        assert lines / took > 20_000


@pytest.mark.slow
def test_a_killed_worker_leaves_no_command_running(tmp_path):
    url = f"sqlite:///{tmp_path / 'backstay.db'}"
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            from backstay import Backstay

            async def main():
                async with Backstay({url!r}) as stay:
                    await stay.worker(allow_commands=True, grace=0.5).run()

            asyncio.run(main())
            """
        )
    )

    async def begin() -> str:
        async with Backstay(url) as stay:
            return await submit(stay, command(stay, f"setsid -f true; sleep 300 & echo $$ $! > {tmp_path}/pids; wait"))

    asyncio.run(begin())
    worker = subprocess.Popen([sys.executable, str(program)], env=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        pids = tmp_path / "pids"
        assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2, 30)
        found = [int(pid) for pid in pids.read_text().split()]
        assert all(map(is_alive, found))
        os.kill(worker.pid, signal.SIGKILL)
        assert eventually(lambda: not any(map(is_alive, found)))
    finally:
        worker.kill()
        worker.wait()


FLOW = """
name: files
jobs:
  build:
    run: |
      mkdir -p "$BACKSTAY_ARTIFACTS/dist"
      printf wheel > "$BACKSTAY_ARTIFACTS/dist/a.whl"
      ln -s /etc/passwd "$BACKSTAY_ARTIFACTS/passwd"
      echo "name=a.whl" >> "$BACKSTAY_OUTPUT"
  decided:
    needs: build
    if: needs.build.outputs.name == 'a.whl'
    run: |
      cat "$BACKSTAY_NEEDS_DIR/BUILD/dist/a.whl"
      echo " $NEEDS_BUILD_NAME $BACKSTAY_RESULT_BUILD"
      printf report > "$BACKSTAY_ARTIFACTS/report"
      exit 3
    continue-on-error: true
  last:
    needs: decided
    run: ls "$BACKSTAY_NEEDS_DIR/DECIDED"
"""


@pytest.mark.parametrize("artifacts_dir", ["", "artifacts_dir"])
@on_a_worker_loop
async def test_artifacts_pass_from_job_to_job(artifacts_dir, tmp_path):
    async with (
        Backstay("memory://") as stay,
        working(stay, artifacts=tmp_path / artifacts_dir if artifacts_dir else ""),
    ):
        run = await workflow_flows.start(stay._core, plan_run(stay._core, read(FLOW), {}))
        done = await workflow_flows.wait_finished(stay._core, run.id, 30)
        jobs = {job.key: job for job in await workflow_flows.list_run_jobs(stay._core, run.id)}
        assert done.status == "success", jobs
        assert await log_of(stay, jobs["decided"].id) == "wheel a.whl success\n"
        assert await log_of(stay, jobs["last"].id) == "report\n"
        assert "passwd was not stored" in await log_of(stay, jobs["build"].id, "log")
        assert bool(list(tmp_path.rglob("*"))) is bool(artifacts_dir)
