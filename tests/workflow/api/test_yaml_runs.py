"""YAML workflows run end to end with a real worker and real commands; and the blocking API."""

import asyncio
import threading

import pytest

from backstay import Backstay, sync
from backstay.testing.waiting import eventually
from backstay.workflow.api.run_waiter import RUN_END_WAITERS

CI = """
name: ci
inputs: {word: hello, deploy: {type: boolean, default: false}}
env: {GREETING: "${{ inputs.word }}"}
jobs:
  build:
    run: echo "tag=$GREETING-1" >> "$BACKSTAY_OUTPUT"
    outputs: {image: "app:${{ outputs.tag }}"}
  test:
    needs: build
    matrix: {n: [1, 2]}
    steps:
      - run: echo "got=$IMAGE/${{ matrix.n }}/$STEP" >> "$BACKSTAY_OUTPUT"
        env: {STEP: one}
    env: {IMAGE: "${{ needs.build.outputs.image }}"}
  flaky: {run: exit 3, continue-on-error: true}
  deploy:
    needs: [test, flaky]
    if: inputs.deploy && needs.build.result != 'failure'
    run: echo "where=there" >> "$BACKSTAY_OUTPUT"
  note:
    needs: [test]
    run: echo "text=${{ needs.test.outputs.got }}" >> "$BACKSTAY_OUTPUT"
  mail: {needs: [deploy, note], if: failure(), run: "true"}
  tidy: {needs: [deploy, note, mail], if: always(), run: 'echo "result=$BACKSTAY_RESULT_DEPLOY" >> "$BACKSTAY_OUTPUT"'}
""".replace("needs: [test, flaky]", "needs: [build, test, flaky]")


def run_document(tmp_path, text, inputs=None):
    """Run a document to its end; return its status, outputs and jobs by key."""

    async def whole():
        async with Backstay(f"sqlite:///{tmp_path / 'ci.db'}?synchronous=normal") as stay:
            await stay.workflows.put(text, name="x")
            run = await stay.workflows.start((await stay.workflows.list())[0].name, inputs)
            await stay.worker(signals=False, allow_commands=True, directory=tmp_path).run(burst=True)
            status = await run.wait(timeout=30)
            return status, run.outputs, {job.key: job for job in await run.jobs()}

    return asyncio.run(whole())


def test_a_document_runs_end_to_end(tmp_path):
    status, outputs, jobs = run_document(tmp_path, CI, {"word": "bye"})
    assert status == "success"
    assert outputs["build"] == {"tag": "bye-1", "image": "app:bye-1"}
    assert outputs["test (2)"] == {"got": "app:bye-1/2/one"}
    assert outputs["note"] == {"text": "app:bye-1/2/one"}
    assert {key: job.state for key, job in jobs.items()} == {
        "build": "completed",
        "test (1)": "completed",
        "test (2)": "completed",
        "flaky": "failed",
        "deploy": "skipped",
        "note": "completed",
        "mail": "skipped",
        "tidy": "completed",
    }


def test_a_condition_on_an_input_selects_the_job(tmp_path):
    status, outputs, _ = run_document(tmp_path, CI, {"deploy": "true"})
    assert status == "success"
    assert outputs["deploy"] == {"where": "there"}


def test_a_yaml_condition_sees_a_failure_of_an_indirect_need(tmp_path):
    text = """
jobs:
  a: {run: exit 1}
  b: {run: "true", needs: a}
  c: {run: "true", needs: b, if: failure() && needs.b.result == 'skipped'}
  d: {run: "true", needs: a, if: needs.a.result == 'failure'}
"""
    status, _, jobs = run_document(tmp_path, text)
    assert status == "failure"
    assert {key: job.state for key, job in jobs.items()} == {
        "a": "failed",
        "b": "skipped",
        "c": "completed",
        "d": "skipped",
    }


def test_an_output_is_never_read_as_an_expression(tmp_path):
    text = (
        "jobs:\n  a:\n    run: |\n      printf '%s\\n' 'x=$''{{ env.A }}' >> \"$BACKSTAY_OUTPUT\"\n"
        "  b:\n    needs: a\n    env: {A: s3cret, B: '${{ needs.a.outputs.x }}'}\n"
        '    run: echo "y=$B" >> "$BACKSTAY_OUTPUT"\n'
    )
    status, outputs, _ = run_document(tmp_path, text)
    assert status == "success"
    assert outputs["a"] == {"x": "${{ env.A }}"}
    assert outputs["b"] == {"y": "${{ env.A }}"}


@pytest.fixture
def blocking(tmp_path):
    with sync.Backstay(f"sqlite:///{tmp_path / 'blocking.db'}?synchronous=normal") as stay:
        yield stay


def test_the_blocking_workflow_api_has_the_same_methods(blocking):
    stay = blocking

    @stay.job()
    def double(n: int) -> int:
        return 2 * n

    @stay.job()
    def add_up(numbers: list[int]) -> int:
        return sum(numbers)

    @stay.workflow(name="sums", timeout=60)
    def sums(flow, numbers: list[int]):
        flow.add(add_up, flow.map(double, numbers).output)

    worker = stay.worker(signals=False)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        run = sums.start([1, 2, 3])
        kinds = [event.kind for event in run.events()]
        assert kinds[-1] == "run_finished"
        assert run.wait(timeout=30) == "success"
        assert run.outputs["add_up"] == 12
        assert [job.key for job in run.jobs()] == ["double (1)", "double (2)", "double (3)", "add_up"]
        assert stay.runs.list(workflow="sums")[0].id == run.id
        assert stay.runs.get(run.id).status == "success"
        assert stay.runs.handle(run.id).status() == "success"
        assert next(iter(stay.runs.events(run.id, after=2, follow=False))).seq == 3
    finally:
        worker.stop()
        thread.join(30)


def test_a_blocking_waiter_is_notified_of_the_end(blocking):
    """The hub notifies it, long before its next poll."""
    stay = blocking

    @stay.job()
    def work() -> int:
        return 1

    @stay.workflow
    def plain(flow):
        flow.add(work)

    run = plain.start()
    ends = []
    waiting = threading.Thread(target=lambda: ends.append(run.wait(timeout=30)))
    waiting.start()
    assert eventually(lambda: stay._core.services.find(RUN_END_WAITERS) is not None)
    stay.worker(signals=False).run(burst=True)
    waiting.join(30)
    assert ends == ["success"]
    assert run.cancel() == "success", "cancelling an ended run changes nothing"
    assert run.rerun_failed() == "success"


STEPS = """
name: steps
inputs: {folder: left}
env: {ALL: "1"}
jobs:
  first: {run: "echo folder=right >> $BACKSTAY_OUTPUT"}
  second:
    needs: first
    steps:
      - run: echo "own=yes" >> "$BACKSTAY_OUTPUT"
        env: {MINE: "${{ inputs.folder }}", ALL: "2"}
        if: env.MINE == 'left' && env.ALL == '2'
      - run: echo "others=yes" >> "$BACKSTAY_OUTPUT"
        if: env.MINE == 'left' || env.ALL == '2'
        env: {MINE: none}
      - run: echo "here=$(basename "$PWD")" >> "$BACKSTAY_OUTPUT"
        working-directory: ${{ inputs.folder }}/${{ needs.first.outputs.folder }}
"""


def test_a_step_condition_reads_its_own_variables_and_a_step_sets_its_directory(tmp_path):
    (tmp_path / "left" / "right").mkdir(parents=True)
    status, outputs, _ = run_document(tmp_path, STEPS)
    assert status == "success"
    assert outputs["second"] == {"own": "yes", "here": "right"}
