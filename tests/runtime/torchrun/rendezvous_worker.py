"""What torchrun starts in the rendezvous' test: joins a group, says who is there, and stays until it is told to end.

    torchrun ... rendezvous_worker.py FOLDER

Every worker reduces a one with the others and writes the sum to `AGENT-lifeL-rankR-ofW`; then they reduce on, as in training,
until the file `end` is there. A worker whose peer dies fails, and its agent starts another one in the next generation.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

LIFETIME_SECONDS = 90.0


PR_SET_PDEATHSIG = 1


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a host that dies takes all its processes with it
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    total = torch.ones(1)
    dist.all_reduce(total)
    life, rank, world = (os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
    (folder / f"{os.environ['AGENT']}-life{life}-rank{rank}-of{world}").write_text(str(int(total)))
    deadline, pause = time.monotonic() + LIFETIME_SECONDS, threading.Event()
    is_over = torch.zeros(1)
    while not is_over:
        pause.wait(0.05)
        is_over.fill_((folder / "end").exists() or time.monotonic() > deadline)
        dist.all_reduce(is_over, dist.ReduceOp.MAX)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
