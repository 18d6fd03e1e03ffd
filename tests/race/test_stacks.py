"""A hanging process dumps its stacks: its threads always, its tasks as long as the event loop runs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from backstay.testing.waiting import eventually
from support.programs import child_environment

pytestmark = [pytest.mark.race]

HANGING = """
import asyncio, signal, sys, threading
from support.stacks import dump_stacks_on

def idle_thread():
    threading.Event().wait()

async def inner():
    await asyncio.get_running_loop().create_future()

async def outer():
    await inner()

async def main(last):
    dump_stacks_on(signal.SIGUSR1, asyncio.get_running_loop())
    hanging = asyncio.create_task(outer(), name="hangs")
    await asyncio.sleep(0)
    if last:
        print("ready", flush=True)
        await hanging

dump_stacks_on(signal.SIGUSR1)
threading.Thread(target=idle_thread, daemon=True).start()
asyncio.run(main(False))
asyncio.run(main(True))
"""
BLOCKED = """
import signal, time
from support.stacks import dump_stacks_on

def blocked():
    print("ready", flush=True)
    time.sleep(60)

dump_stacks_on(signal.SIGUSR1)
blocked()
"""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (HANGING, ["idle_thread", "Task hangs:", "in outer", "in inner", "waits for <Future pending"]),
        (BLOCKED, ["in blocked"]),
    ],
    ids=["with a running loop", "without a loop"],
)
def test_a_hanging_process_dumps_its_stacks_and_keeps_running(tmp_path, script, words):
    output = tmp_path / "stderr"
    with output.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=errors, env=child_environment()
        )
    try:
        assert process.stdout.readline() == b"ready\n"
        for nth in (1, 2):
            process.send_signal(signal.SIGUSR1)
            assert eventually(lambda n=nth: all(output.read_text().count(word) >= n for word in words)), (
                output.read_text()
            )
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
