"""Pay once with the recipe of examples/exactly_once.py; this process kills itself before the n-th executed line of it.

Arguments: the engine's URL; the namespace; the accounts' file; n (0: never). Prints the number of executed lines.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

from backstay.sync import Backstay

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "exactly_once.py"
STEPS = {"pay", "handle", "is_processed"}


class Lines:
    """The number of executed lines of the recipe."""

    run = 0
    dies_before = int(sys.argv[4])

    @classmethod
    def trace(cls, frame, event, _):
        if frame.f_code.co_filename != str(EXAMPLE) or frame.f_code.co_name not in STEPS:
            return None
        if event in ("line", "return"):
            cls.run += 1
            if cls.run == cls.dies_before:
                os.kill(os.getpid(), signal.SIGKILL)
        return cls.trace


spec = importlib.util.spec_from_file_location("exactly_once", EXAMPLE)
recipe = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recipe)

with Backstay(sys.argv[1], namespace=sys.argv[2]) as stay:
    pay = recipe.make_pay(stay, Path(sys.argv[3]), lease=1)
    sys.settrace(Lines.trace)
    receipt = pay("p-1", "ada", 5)
    sys.settrace(None)
    assert receipt == {"paid": 5}
    print(Lines.run)
