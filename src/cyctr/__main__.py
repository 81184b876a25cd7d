"""`cyctr` and `python -m cyctr`: the command line."""

import os
import sys


def main() -> None:
    """Runs the command line; Ctrl-C while its modules are imported ends with one line, as it does later."""
    try:
        from cyctr.cli import main as run
    except KeyboardInterrupt:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # of the processes that torchrun started, the first speaks
            print("cyctr: stopped", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
