"""`python -m cyctr` is the command line."""

from cyctr.cli import main

if __name__ == "__main__":
    main()
