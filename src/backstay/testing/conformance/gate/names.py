"""Any text is a valid name, and different names are different locks."""

from __future__ import annotations

from backstay.testing.conformance.driver import Stage, driver_test

STRANGE = [
    "a",
    "a:b",
    "a:{b}",
    "{a}",
    "{a}:b",
    "}{",
    "{}",
    "%7Ba%7D",
    "%",
    "%25",
    "a%",
    "a b",
    " a",
    "a ",
    "a\nb",
    "a\n",
    "a\r\nb",
    "a\0b",
    "a\0",
    "\0",
    "a\tb",
    "*",
    "a*",
    "?",
    "[a]",
    "[ab]*",
    "^a",
    "a-b",
    "\\",
    "a\\*",
    "a_b",
    "A",
    "é",
    "e\u0301",
    "ключ",
    "鎖",
    "\U0001f512",
    "'; --",
    '"',
    "a/b",
    "../a",
    "x" * 512,
    "é" * 256,
]


class GateNamesTests:
    """Tests of names with braces, colons, newlines, NUL, glob characters and Unicode."""

    @driver_test
    async def test_unusual_lock_names_do_not_collide(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for name in STRANGE:
            assert await one.try_acquire(name) is not None, name
        for name in STRANGE:
            assert await other.try_acquire(name) is None, name
            seen = await other.inspect(name)
            assert (seen.name, seen.holder_count) == (name, 1)

    @driver_test
    async def test_strange_names_are_listed_as_they_are(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for name in STRANGE:
            await one.acquire(name, wait=0)
        assert sorted(seen.name for seen in await other.list_all()) == sorted(STRANGE)

    @driver_test
    async def test_every_name_is_found_by_any_prefix_of_it(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for name in STRANGE:
            await one.acquire(name, wait=0)
        for prefix in [*STRANGE, "x" * 511, "a:{", "e", "[", "a\\"]:
            found = sorted(seen.name for seen in await other.list_all(prefix))
            assert found == sorted(name for name in STRANGE if name.startswith(prefix)), repr(prefix)

    @driver_test
    async def test_unusual_identities_are_returned_unchanged(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for text in STRANGE:
            name = f"name of {text[:100]}"
            grant = await one.acquire(
                name, wait=0, lock_id=text, execution_id=text, workflow_id=text, workflow_name=text
            )
            (shown,) = (await other.inspect(name)).holders
            assert (shown.lock_id, shown.execution_id) == (text, text)
            assert (shown.workflow_id, shown.workflow_name) == (text, text)
            cleaned = await other.cleanup(text)
            assert cleaned.scopes == (name,), repr(text)
            await one.release(grant)
