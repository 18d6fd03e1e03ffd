"""The source of the random pauses that keep processes from retrying at the same moment.

It is not the generator of the module `random`: that one belongs to the application, which may seed it and expect the
same numbers again. The operating system's generator has no state, so threads and forked processes can share it.
"""

from __future__ import annotations

import random

RANDOM = random.SystemRandom()
