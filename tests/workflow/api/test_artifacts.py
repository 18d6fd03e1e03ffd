"""Artifacts of jobs are stored completely, verified on reading, and kept below their directory."""

from __future__ import annotations

import io
import os
import stat
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay import Backstay, ConfigError, CorruptRecord, EngineUnavailable, PayloadTooLarge
from backstay.errors import JobError
from backstay.job import flows
from backstay.job.ids import JOB_IDS
from backstay.job.model import NewJob
from backstay.workflow.api.artifacts import PART, JobArtifacts, list_files, validate_artifact_name
from support.event_loop import on_a_worker_loop


async def enqueue_job(stay: Backstay) -> str:
    return (await flows.enqueue(stay._core, NewJob(id=stay._core.services.get(JOB_IDS).new(0), type="x"))).id


async def read_whole(artifacts: JobArtifacts, job: str, name: str) -> bytes:
    artifact = await artifacts.find(job, name)
    assert artifact is not None
    async with aclosing(artifacts.read(artifact)) as parts:
        return b"".join([part async for part in parts])


@pytest.fixture(params=["engine", "directory"])
def artifacts_dir(request, tmp_path):
    return None if request.param == "engine" else tmp_path / "artifacts_dir"


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART + 7])
@on_a_worker_loop
async def test_a_file_is_read_back_as_it_was_stored(artifacts_dir, size):
    async with Backstay("memory://") as stay:
        artifacts, job, data = (
            JobArtifacts(stay._core, directory=artifacts_dir),
            await enqueue_job(stay),
            os.urandom(size),
        )
        left = await artifacts.put(job, 0, "report/index.html", io.BytesIO(data))
        assert left.size == size
        assert [one.name for one in await artifacts.list(job)] == ["report/index.html"]
        assert await read_whole(artifacts, job, "report/index.html") == data


@on_a_worker_loop
async def test_a_file_of_the_same_name_is_replaced(artifacts_dir):
    async with Backstay("memory://") as stay:
        artifacts, job = JobArtifacts(stay._core, directory=artifacts_dir), await enqueue_job(stay)
        for data in (b"one", b"two" * PART, b"one"):
            await artifacts.put(job, 0, "a", io.BytesIO(data))
            assert await read_whole(artifacts, job, "a") == data
        assert len(await artifacts.list(job)) == 1


@on_a_worker_loop
async def test_a_file_above_the_limit_is_refused_before_anything_is_stored(artifacts_dir):
    async with Backstay("memory://") as stay:
        artifacts, job = JobArtifacts(stay._core, directory=artifacts_dir, limit=1000), await enqueue_job(stay)
        with pytest.raises(PayloadTooLarge, match="limit of 1000"):
            await artifacts.put(job, 0, "a", io.BytesIO(b"x" * 1001))
        assert await artifacts.list(job) == []
        await artifacts.put(job, 0, "a", io.BytesIO(b"x" * 1000))


@on_a_worker_loop
async def test_only_the_lease_holder_stores_files(artifacts_dir):
    async with Backstay("memory://") as stay:
        artifacts, job = JobArtifacts(stay._core, directory=artifacts_dir), await enqueue_job(stay)
        with pytest.raises(JobError, match="lost the lease"):
            await artifacts.put(job, 77, "a", io.BytesIO(b"x"))
        assert await artifacts.list(job) == []


@on_a_worker_loop
async def test_a_file_that_does_not_match_its_checksum_is_never_returned(tmp_path):
    async with Backstay("memory://") as stay:
        artifacts, job = JobArtifacts(stay._core, directory=tmp_path / "artifacts_dir"), await enqueue_job(stay)
        left = await artifacts.put(job, 0, "a", io.BytesIO(b"genuine"))
        (place,) = [path for path in (tmp_path / "artifacts_dir").rglob("*") if path.is_file()]
        place.write_bytes(b"forged!")
        target = tmp_path / "copy"
        with pytest.raises(CorruptRecord, match="is not what was stored"):
            await artifacts.fetch(left, target)
        assert list(tmp_path.glob("copy")) == []
        place.unlink()
        with pytest.raises(CorruptRecord, match="cannot be opened"):
            await artifacts.fetch(left, target)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["artifacts_dir"]


@on_a_worker_loop
async def test_a_file_is_fetched_whole(tmp_path, artifacts_dir):
    async with Backstay("memory://") as stay:
        artifacts, job, data = (
            JobArtifacts(stay._core, directory=artifacts_dir),
            await enqueue_job(stay),
            os.urandom(2 * PART + 5),
        )
        left = await artifacts.put(job, 0, "a", io.BytesIO(data))
        await artifacts.fetch(left, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == data


@on_a_worker_loop
async def test_a_reader_without_the_artifacts_directory_is_refused(tmp_path):
    async with Backstay("memory://") as stay:
        job = await enqueue_job(stay)
        left = await JobArtifacts(stay._core, directory=tmp_path).put(job, 0, "a", io.BytesIO(b"x"))
        with pytest.raises(ConfigError, match="an artifacts directory"):
            await JobArtifacts(stay._core).fetch(left, tmp_path / "copy")


class ChangingFile(io.BytesIO):
    """A file that changes while it is stored."""

    def seek(self, *place):
        self.getbuffer()[:1] = b"!"
        return super().seek(*place)


@on_a_worker_loop
async def test_a_file_that_changes_while_it_is_stored_is_refused(artifacts_dir):
    async with Backstay("memory://") as stay:
        artifacts, job = JobArtifacts(stay._core, directory=artifacts_dir), await enqueue_job(stay)
        with pytest.raises(ConfigError, match="changed while it was stored"):
            await artifacts.put(job, 0, "a", ChangingFile(b"x" * 1000))
        assert await artifacts.list(job) == []


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../a", "a/../b", "a/./b", ".", "..", "a//b", "a/", "a\\b", "c:x", "a\0b", "a\nb", "x" * 513],
)
def test_a_name_outside_the_directory_is_refused(name):
    with pytest.raises(ConfigError):
        validate_artifact_name(name)


@given(st.text(max_size=40))
def test_an_accepted_name_stays_below_its_directory(name):
    try:
        validate_artifact_name(name)
    except ConfigError:
        return
    assert os.path.normpath(f"/kept/{name}").startswith("/kept/")
    assert os.path.normpath(name) == name


def test_links_and_pipes_are_not_collected(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    (tmp_path / "etc").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    refused: list[str] = []
    found = list_files(tmp_path, lambda name, _: refused.append(name))
    assert [name for name, _ in found] == ["b", "sub/a"]
    assert sorted(refused) == ["etc", "passwd", "pipe"]


@pytest.mark.parametrize("umask", [0o022, 0o000], ids=oct)
@on_a_worker_loop
async def test_a_new_artifacts_directory_is_private(tmp_path, umask):
    before = os.umask(umask)
    try:
        async with Backstay("memory://") as stay:
            artifacts = JobArtifacts(stay._core, directory=tmp_path / "new")
            await artifacts.put(await enqueue_job(stay), 0, "a", io.BytesIO(b"x"))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").rglob("*") if path.is_file()} == {0o600}
    folders = [tmp_path / "new", *(path for path in (tmp_path / "new").rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


@on_a_worker_loop
async def test_an_artifacts_directory_of_a_group_stays_open_to_the_group_alone(tmp_path):
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o2775)
    async with Backstay("memory://") as stay:
        artifacts = JobArtifacts(stay._core, directory=directory)
        await artifacts.put(await enqueue_job(stay), 0, "a", io.BytesIO(b"x"))
    (folder,) = directory.iterdir()
    (file,) = folder.iterdir()
    assert (stat.S_IMODE(folder.stat().st_mode) & 0o777, stat.S_IMODE(file.stat().st_mode)) == (0o770, 0o660)


@on_a_worker_loop
async def test_an_artifacts_directory_that_cannot_be_written_is_our_error(tmp_path):
    (tmp_path / "file").touch()
    async with Backstay("memory://") as stay:
        artifacts = JobArtifacts(stay._core, directory=tmp_path / "file" / "below")
        with pytest.raises(EngineUnavailable, match="was not stored"):
            await artifacts.put(await enqueue_job(stay), 0, "a", io.BytesIO(b"x"))
