"""A contender with a faulty machine: `python faulty_contender.py KIND …`, then the arguments of a contender."""

import sys

from faulty_machines import install_fault

from support.races.contender import main

if __name__ == "__main__":
    install_fault(sys.argv[1])
    main(sys.argv[2:])
