"""Render the templates of a command job."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable

from msgspec.structs import replace

from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.expressions.expression import Context
from backstay.workflow.expressions.interpolation import OPEN, TextBudget, interpolate, interpolate_env, parse_template


def render_command(spec: CommandSpec, context: Context, budget: TextBudget | None = None) -> CommandSpec:
    """Render the variables in order, then the steps, which may refer to the variables. Not rendered here are
    the `if` of a step, which is evaluated while the job runs, and the job's `outputs`, which are evaluated at its end.
    Call this once per command: rendered text must not be rendered again (injection). Raises RunTooLarge.
    """
    budget = budget or TextBudget(f"job {spec.key!r}")
    env = interpolate_env(spec.env, context, budget)
    outside = replace(context, env=env)
    steps = tuple(
        replace(
            step,
            env=own,
            run=interpolate(step.run, inside, budget),
            name=interpolate(step.name, inside, budget),
            working_directory=interpolate(step.working_directory, inside, budget),
        )
        for step in spec.steps
        for own in (interpolate_env(step.env, outside, budget),)
        for inside in (replace(outside, env=ChainMap(own, env)),)
    )
    place = interpolate(spec.working_directory, outside, budget)
    return replace(spec, env=env, steps=steps, working_directory=place)


def render_outputs(spec: CommandSpec, context: Context) -> dict[str, str]:
    """Render the outputs that a job declares. `context.outputs`: those that its commands set. Raises RunTooLarge."""
    budget = TextBudget(f"the outputs of job {spec.key!r}")
    return {name: interpolate(text, context, budget) for name, text in spec.outputs.items()}


def references_needs(spec: CommandSpec) -> bool:
    """Whether a template of the command refers to `needs`: then it can be rendered only after those jobs have ended."""
    texts = [*spec.env.values(), spec.working_directory]
    for step in spec.steps:
        texts += [*step.env.values(), step.run, step.name, step.working_directory]
    return any_references_needs(texts)


def any_references_needs(texts: Iterable[str]) -> bool:
    """Whether one of the templates refers to `needs`."""
    return any(
        reference.path[0] == "needs"
        for text in texts
        if OPEN in text
        for expression in parse_template(text).expressions
        for reference in expression.references
    )
