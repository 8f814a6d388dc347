"""The process of a cell's job: `python -m kintsugi.matrix.child ORDERS`. Its supervisor starts it again when it ends early.

Ctrl-C ends it without a word, also while it imports, which takes a second of each life: whoever stops a matrix is told so by the
command. Whatever it and its workers say goes to standard error: the command's standard output is for the report.
"""

import os
import sys
from pathlib import Path

INTERRUPTED = 130
_STDOUT = 1


def main() -> None:
    """Live as the orders say; exits 130 after Ctrl-C."""
    if sys.stderr is not None:
        os.dup2(sys.stderr.fileno(), _STDOUT)
    try:
        _live()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _live() -> None:
    import torch

    from kintsugi.core.codec import load
    from kintsugi.core.logs import warn_only
    from kintsugi.matrix.life import live
    from kintsugi.matrix.workload import Orders
    from kintsugi.runtime.supervising.supervisor import ATTEMPT_VARIABLE

    torch.set_num_threads(1)
    warn_only()
    live(load(Orders, Path(sys.argv[1])), attempt=int(os.environ.get(ATTEMPT_VARIABLE, "0")))


if __name__ == "__main__":
    main()
