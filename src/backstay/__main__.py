"""Run the command line: `python -m backstay` is the same as `backstay`."""

from backstay.cli import main

if __name__ == "__main__":
    main()
