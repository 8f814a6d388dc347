"""The process of a cell's job: `python -m kintsugi.matrix.child ORDERS`. Its supervisor starts it again when it ends early.

Ctrl-C ends it without a word, also while it imports, which takes a second of each life: whoever stops a matrix is told so by the
command.
"""

import os
import sys
from pathlib import Path

INTERRUPTED = 130


def main() -> None:
    """Live as the orders say; exits 130 after Ctrl-C."""
    try:
        _live()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _live() -> None:
    import structlog
    import torch

    from kintsugi.core.codec import load
    from kintsugi.matrix.life import live
    from kintsugi.matrix.workload import Orders
    from kintsugi.runtime.supervising.supervisor import ATTEMPT_VARIABLE

    torch.set_num_threads(1)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    live(load(Orders, Path(sys.argv[1])), attempt=int(os.environ.get(ATTEMPT_VARIABLE, "0")))


if __name__ == "__main__":
    main()
