"""A contender with a broken machine: `python faulty_contender.py KIND …`, the rest as `support.contender`."""

import sys

from faulty_machines import install_fault

from support.contender import main

if __name__ == "__main__":
    install_fault(sys.argv[1])
    main(sys.argv[2:])
