"""A contender with a broken machine: `python rogue_contender.py KIND …`, the rest as `backstay.testing.contender`."""

import sys

from rogues import break_in

from backstay.testing.contender import main

if __name__ == "__main__":
    break_in(sys.argv[1])
    main(sys.argv[2:])
