"""From a link's loss told to the scheduler until every agent has the new overlay: told at once, and by asking now and then.

    python -m benchmarks.overlay_latency [--workers 6 12] [--events 30]

A real service in a process of its own; one thread for each agent, in this process. Every event takes a link away or brings it
back, and gives a new generation. The baseline is an agent that asks every second, in the same run, for the same events.
"""

import argparse
import statistics
import threading
import time

from rich.console import Console

from benchmarks.running import LiveTable, scratch
from kintsugi.client import Client
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from tests.processes import service

JOB = "llama"
ASKING_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.1
"""Before each event: everybody waits again."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[6, 12])
    parser.add_argument("--events", type=int, default=30)
    arguments = parser.parse_args()
    table = LiveTable(title="from an event to all agents")
    for name in ("agents", "the answer: median", "all told: median", "largest", "asking every second: median", "ratio"):
        table.add_column(name, justify="right")
    for workers in arguments.workers:
        answered, told, asked = measured(workers, arguments.events)
        middle, slow = statistics.median(told), statistics.median(asked)
        figures = [f"{1e3 * seconds:.1f} ms" for seconds in (statistics.median(answered), middle, max(told), slow)]
        table.add_row(str(workers), *figures, f"{slow / middle:.0f}")
    Console(width=120).print(table)


def measured(num_workers: int, num_events: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds to the answer, to the last agent that waits, and to one that asks every second; one of each for every event."""
    answered, told, asked = [], [], []
    with (
        scratch() as folder,
        service(folder / "bench.sqlite3", "--log-level", "error") as process,
        Client(process.url) as client,
    ):
        overlay = grown(client, num_workers)
        agents = [Agent(process.url, overlay.generation) for _ in range(num_workers)]
        asker = Asker(process.url, overlay.generation)
        for number in range(num_events):
            time.sleep(PAUSE_SECONDS)
            began = time.perf_counter()
            overlay = tell(client, "link_disconnected" if number % 2 == 0 else "link_measured", f"change-{number}")
            answered.append(time.perf_counter() - began)
            told.append(max(agent.await_generation(overlay.generation) for agent in agents) - began)
            asked.append(asker.await_generation(overlay.generation) - began)
            if number % 2 == 0:
                post(client, "link_connected", f"wanted-{number}", link=LINK)
        for one in (*agents, asker):
            one.close()
    return answered, told, asked


def grown(client: Client, num_workers: int) -> Overlay:
    """An overlay of so many active workers, each with links to two before it."""
    names = [f"w{index:02}" for index in range(num_workers)]
    for index, worker in enumerate(names):
        neighbors = tuple(names[max(0, index - 2) : index])
        sizes = {"state_bytes": 1 << 28, "shard_bytes": 1 << 12}
        post(client, "worker_joined", f"joined-{worker}", worker=worker, address=f"{worker}:1", neighbors=neighbors, **sizes)
        for other in neighbors:
            post(client, "link_measured", f"measured-{other}-{worker}", link=(other, worker), **RATE)
        if neighbors:
            post(client, "state_replicated", f"replicated-{worker}", worker=worker)
    found = client.overlay(JOB)
    assert found is not None
    return found


RATE = {"alpha_seconds": 0.01, "beta_seconds_per_byte": 1.6e-8}
LINK = ("w00", "w02")


def tell(client: Client, kind: str, event: str) -> Overlay:
    """The link is lost, or measured again."""
    return post(client, kind, event, link=LINK, **(RATE if kind == "link_measured" else {}))


def post(client: Client, kind: str, event: str, **told: object) -> Overlay:
    """Tell the scheduler something."""
    return client.post_overlay_event(JOB, OverlayEvent(kind=OverlayEventKind(kind), id=event, **told))  # type: ignore[arg-type]


class Agent:
    """Waits for one generation after the other, and remembers when each came."""

    def __init__(self, url: str, generation: int) -> None:
        self._client, self._generation = Client(url), generation
        self._came: dict[int, float] = {}
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def await_generation(self, generation: int) -> float:
        """When that generation or a newer one came."""
        with self._changed:
            assert self._changed.wait_for(lambda: max(self._came, default=-1) >= generation, PATIENCE_SECONDS)
            return min(moment for came, moment in self._came.items() if came >= generation)

    def close(self) -> None:
        """Wait no more."""
        self._closing.set()
        self._thread.join(PATIENCE_SECONDS)
        self._client.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            overlay = self._ask()
            if overlay is not None and overlay.generation > self._generation:
                self._generation = overlay.generation
                with self._changed:
                    self._came[overlay.generation] = time.perf_counter()
                    self._changed.notify_all()

    def _ask(self) -> Overlay | None:
        return self._client.overlay(JOB, after_generation=self._generation, wait_seconds=1.0)


class Asker(Agent):
    """Asks every second."""

    def _ask(self) -> Overlay | None:
        self._closing.wait(ASKING_SECONDS)
        return self._client.overlay(JOB, after_generation=self._generation)


if __name__ == "__main__":
    main()
