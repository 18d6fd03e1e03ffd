"""A command job's steps as one script, for workers that have nothing but a shell: each step in a subshell with its own
variables and place, and its condition, as far as that is known beforehand.

What cannot be told in a script fails and says so: a wrong answer would be worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from backstay.workflow.command.job_type import step_runs
from backstay.workflow.command.spec import CommandSpec, Step
from backstay.workflow.expressions.expression import Context, parse

SHELLS = ("", "sh", "bash")
#: What a condition may speak of that is known only while the job runs.
LATER = ("outputs", "needs")


def script(spec: CommandSpec) -> str:
    """A single command stays as it was written."""
    only = spec.steps[0]
    bare = len(spec.steps) == 1 and only == Step(run=only.run, name=only.name)
    if bare and not spec.working_directory and spec.shell in SHELLS:
        return only.run
    lines = [f"cd {quote(spec.working_directory)}"] if spec.working_directory else []
    lines.append("backstay_failed=0")
    for number, step in enumerate(spec.steps, 1):
        lines += _step(number, step, spec)
    return "\n".join([*lines, 'exit "$backstay_failed"', ""])


def _step(number: int, step: Step, spec: CommandSpec) -> Iterator[str]:
    after_success, after_failure = _runs(step, spec)
    if not after_success and not after_failure:
        return
    if after_success != after_failure:
        yield f'if [ "$backstay_failed" {"=" if after_success else "!="} 0 ]; then'
    else:
        yield "if true; then"
    # Not behind || or in a condition: there, a shell does not stop at what fails.
    yield from ("set +e", "(", "set -e")
    if _is_open(step):
        yield f"echo {quote(f'step {number}: if {step.condition} is for workers that know steps')} >&2; exit 1"
    if step.working_directory:
        yield f"cd {quote(step.working_directory)}"
    for name, value in step.env.items():
        yield f"export {name}={quote(value)}"
    yield from _run(step.run, step.shell or spec.shell)
    yield from (")", "backstay_status=$?", "set -e")
    if not step.continue_on_error:
        yield '[ "$backstay_status" = 0 ] || backstay_failed=$backstay_status'
    yield "fi"


def _run(text: str, shell: str) -> Iterator[str]:
    if shell in SHELLS:
        yield text
        return
    program = 'python3 "$backstay_file"' if shell == "python" else shell.replace("{0}", '"$backstay_file"')
    yield f'backstay_file=$(mktemp); printf "%s" {quote(text)} > "$backstay_file"; {program}'


def _runs(step: Step, spec: CommandSpec) -> tuple[bool, bool]:
    """Whether it runs when all before it succeeded, and when one failed."""
    if _is_open(step):
        return True, False
    context = Context(inputs=spec.inputs, matrix=spec.matrix, env=spec.env)
    after_success, after_failure = (step_runs(step, context, failed=failed, outputs={}) for failed in (False, True))
    return after_success, after_failure


def _is_open(step: Step) -> bool:
    return bool(step.condition) and any(one.path[0] in LATER for one in parse(step.condition).references)
