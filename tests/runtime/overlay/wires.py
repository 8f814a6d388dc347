"""Passes between threads of this process, over queues instead of links."""

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue

from kintsugi.runtime.overlay.messages import NO_BYTES, Channel, Message


class Wires:
    """One queue per worker."""

    def __init__(self, workers) -> None:
        self.queues = {worker: SimpleQueue() for worker in workers}
        self.sent: list[tuple[str, str, str]] = []


class Wire:
    """One worker's end of a pass, as `Exchange` is."""

    def __init__(self, wires: Wires, worker: str) -> None:
        self.wires, self.worker = wires, worker

    def send(self, worker: str, kind: str, fields: Mapping, payload: memoryview = NO_BYTES) -> None:
        self.wires.sent.append((self.worker, worker, kind))
        copied = memoryview(bytearray(payload))
        self.wires.queues[worker].put((self.worker, Message(Channel.REDUCTION, kind, fields, copied)))

    def receive(self):
        return self.wires.queues[self.worker].get(timeout=240.0)


def together(workers, work: Callable[[Wire], object]) -> dict[str, object]:
    """What `work` gives for each worker, run at the same time."""
    wires = Wires(workers)
    results: dict[str, object] = {}

    def run(worker: str) -> None:
        try:
            results[worker] = work(Wire(wires, worker))
        except BaseException as error:
            results[worker] = error

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert len(results) == len(workers), "somebody still waits"
    for result in results.values():
        if isinstance(result, BaseException):
            raise result
    return results
