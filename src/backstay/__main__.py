"""`python -m backstay` is `backstay`."""

from backstay.cli import main

if __name__ == "__main__":
    main()
