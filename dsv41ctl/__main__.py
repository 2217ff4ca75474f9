"""`python -m dsv41ctl`."""

from dsv41ctl.cli import main

if __name__ == "__main__":
    main()
