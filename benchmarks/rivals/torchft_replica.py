"""One torchft replica group of one process; run by an interpreter that has torchft.

    python -m benchmarks.rivals.torchft_replica LIGHTHOUSE REPLICA STATE_BYTES

Prints a line of JSON when it begins and for every step: its number, whether it was committed, how many replicas took part,
the instant on the monotonic clock. Ends with its standard input.
"""

import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

BEGAN_AT = time.monotonic()

import torch  # noqa: E402  # the instant before it counts
from torch._C._distributed_c10d import TCPStore  # noqa: E402
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # noqa: E402

from benchmarks.rivals.model import BATCH, optimizer, whole, width_for  # noqa: E402

TIMEOUT = timedelta(seconds=5)
"""As in torchft's own example."""


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    lighthouse, replica, state_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    say(event="ready", began_at=BEGAN_AT, at=time.monotonic())
    torch.manual_seed(0)
    width = width_for(state_bytes)
    model = whole(width)
    inner = optimizer(list(model.parameters()))

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=2,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica_{replica}",
        lighthouse_addr=lighthouse,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=30),
    )
    wrapped = DistributedDataParallel(manager, model)
    outer = Optimizer(manager, inner)
    threading.Thread(target=end_with_input, daemon=True).start()
    while True:
        values = torch.randn(BATCH, width)
        before = manager.current_step()
        outer.zero_grad()
        wrapped(values).square().mean().backward()
        outer.step()
        committed = manager.current_step() > before
        say(event="step", step=before, committed=committed, replicas=manager.num_participants(), at=time.monotonic())


if __name__ == "__main__":
    main()
