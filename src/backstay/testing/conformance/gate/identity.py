"""The identity of a holder: passed by the caller, or generated."""

from __future__ import annotations

from datetime import datetime

from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME

FIELDS = {
    "acquired",
    "count",
    "scope",
    "lock_id",
    "key",
    "meta_key",
    "workflow_id",
    "workflow_name",
    "execution_id",
    "locked_at",
}


class GateIdentityTests:
    """Tests of the fields of a granted lease (`FIELDS`), and of what `inspect` shows about the holder."""

    @driver_test
    async def test_a_lease_has_the_ten_fields(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        grant = await one.acquire(NAME, lock_id="l", execution_id="e", workflow_id="w", workflow_name="Monthly billing")
        fields = grant.fields
        assert set(fields) == FIELDS
        assert (fields["acquired"], fields["count"], fields["scope"]) == (True, 1, NAME)
        assert (fields["lock_id"], fields["execution_id"]) == ("l", "e")
        assert (fields["workflow_id"], fields["workflow_name"]) == ("w", "Monthly billing")
        assert NAME in fields["key"]
        assert NAME in fields["meta_key"]
        assert datetime.fromisoformat(fields["locked_at"]).tzinfo is not None

    @driver_test
    async def test_the_identity_that_was_given_is_the_one_that_shows(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        grant = await one.acquire(NAME, lock_id="l", execution_id="e", workflow_id="w", workflow_name="Monthly billing")
        assert grant.lock_id == "l"
        (shown,) = (await other.inspect(NAME)).holders
        assert (shown.lock_id, shown.execution_id) == ("l", "e")
        assert (shown.workflow_id, shown.workflow_name) == ("w", "Monthly billing")
        assert shown.locked_at == grant.fields["locked_at"]
        assert shown.fence == grant.fence

    @driver_test
    async def test_missing_identity_fields_are_generated(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        grant = await one.acquire(NAME)
        assert all(grant.fields[field] for field in FIELDS)

    @driver_test
    async def test_two_locks_of_one_execution_have_ids_of_their_own(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        first = await one.acquire("a", execution_id="e")
        second = await one.acquire("b", execution_id="e")
        assert first.lock_id != second.lock_id
        released = await other.release_by_id("a", first.lock_id)
        assert not released.idempotent
        assert (await other.inspect("b")).held

    @driver_test
    async def test_a_workflow_without_a_name_is_called_by_its_id(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        grant = await one.acquire(NAME, workflow_id="w")
        assert grant.fields["workflow_name"] == "w"
