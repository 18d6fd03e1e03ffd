"""Renders the steps of a command job as one shell script, for HTTP workers that only run a shell.

Each step runs in a subshell with its own variables and working directory. The server evaluates a step's `if` before the
job runs. If the condition refers to values that exist only while the job runs (`outputs`, `needs`), the script lets the
step fail with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from backstay.workflow.command.job_type import should_run_step
from backstay.workflow.command.spec import CommandSpec, Step
from backstay.workflow.expressions.expression import Context, parse

SHELLS = ("", "sh", "bash")
#: Contexts of a condition whose values are known only while the job runs.
RUNTIME_CONTEXTS = ("outputs", "needs")


def render_script(spec: CommandSpec) -> str:
    """Render the script of a command job. A single step without options is returned exactly as it is written."""
    only = spec.steps[0]
    is_plain = len(spec.steps) == 1 and only == Step(run=only.run, name=only.name)
    if is_plain and not spec.working_directory and spec.shell in SHELLS:
        return only.run
    lines = [f"cd {quote(spec.working_directory)}"] if spec.working_directory else []
    lines.append("backstay_failed=0")
    for number, step in enumerate(spec.steps, 1):
        lines += _step(number, step, spec)
    return "\n".join([*lines, 'exit "$backstay_failed"', ""])


def _step(number: int, step: Step, spec: CommandSpec) -> Iterator[str]:
    after_success, after_failure = _condition_outcomes(step, spec)
    if not after_success and not after_failure:
        return
    if after_success != after_failure:
        yield f'if [ "$backstay_failed" {"=" if after_success else "!="} 0 ]; then'
    else:
        yield "if true; then"
    # The subshell must be neither an operand of || nor a condition: there, a shell ignores `set -e`.
    yield from ("set +e", "(", "set -e")
    if _needs_runtime_values(step):
        yield f"echo {quote(f'step {number}: a plain script cannot evaluate if: {step.condition}')} >&2; exit 1"
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


def _condition_outcomes(step: Step, spec: CommandSpec) -> tuple[bool, bool]:
    """Evaluate a step's `if` for two cases. Return whether the step runs if no earlier step failed, and whether it
    runs if one failed.
    """
    if _needs_runtime_values(step):
        return True, False
    context = Context(inputs=spec.inputs, matrix=spec.matrix, env=spec.env)
    after_success, after_failure = (
        should_run_step(step, context, failed=failed, outputs={}) for failed in (False, True)
    )
    return after_success, after_failure


def _needs_runtime_values(step: Step) -> bool:
    return bool(step.condition) and any(one.path[0] in RUNTIME_CONTEXTS for one in parse(step.condition).references)
