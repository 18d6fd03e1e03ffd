"""What users may import, and what importing costs them."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import holdfast
from holdfast import sync
from holdfast.job.definition import BlockingJobType, JobType
from holdfast.job.handle import BlockingJobHandle
from holdfast.workflow.handle import BlockingRunHandle
from holdfast.workflow.python import BlockingWorkflowType, WorkflowType

OPTIONAL = ["typer", "rich", "fastapi", "psycopg", "uvloop", "ruamel", "django", "opentelemetry", "redis"]


def test_all_is_exactly_the_public_names():
    values = {name: getattr(holdfast, name) for name in dir(holdfast) if not name.startswith("_")}
    ours = {
        name
        for name, value in values.items()
        if getattr(value, "__module__", "").startswith("holdfast") and not isinstance(value, ModuleType)
    }
    assert sorted(holdfast.__all__) == sorted(ours)
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Lokc"):
        _ = holdfast.Lokc


def test_every_public_name_says_what_it_is():
    for name in holdfast.__all__:
        value = getattr(holdfast, name)
        if isinstance(value, type):
            assert value.__doc__, name


@pytest.mark.parametrize(
    "pair",
    [
        (holdfast.Holdfast, sync.Holdfast),
        (holdfast.Lease, sync.Lease),
        (type(holdfast.Holdfast("memory://").lock("x")), sync.Lock),
        (type(holdfast.Holdfast("memory://").locks), sync.Locks),
        (type(holdfast.Holdfast("memory://").hub), sync.Channels),
        (type(holdfast.Holdfast("memory://").limit("x", "1/s")), sync.Limit),
        (type(holdfast.Holdfast("memory://").limits), sync.Limits),
        (type(holdfast.Holdfast("memory://").idempotency), sync.Idempotency),
        (type(holdfast.Holdfast("memory://").jobs), type(sync.Holdfast("memory://").jobs)),
        (type(holdfast.Holdfast("memory://").jobs.dead), type(sync.Holdfast("memory://").jobs.dead)),
        (type(holdfast.Holdfast("memory://").queues), type(sync.Holdfast("memory://").queues)),
        (type(holdfast.Holdfast("memory://").workflows), type(sync.Holdfast("memory://").workflows)),
        (type(holdfast.Holdfast("memory://").runs), type(sync.Holdfast("memory://").runs)),
        (holdfast.RunHandle, BlockingRunHandle),
        (WorkflowType, BlockingWorkflowType),
        (holdfast.JobHandle, BlockingJobHandle),
        (JobType, BlockingJobType),
    ],
    ids=lambda pair: pair[1].__name__,
)
def test_both_apis_offer_the_same_names(pair):
    of_async, of_sync = ({name for name in dir(kind) if not name.startswith("_")} for kind in pair)
    assert of_async == of_sync


@pytest.mark.parametrize("module", ["holdfast", "holdfast.sync"])
def test_importing_brings_in_no_optional_dependency(module):
    probe = f"import sys, {module}; print(*[name for name in {OPTIONAL!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
