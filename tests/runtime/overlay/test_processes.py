"""Real processes join, leave and are killed around a real service."""

import random
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kintsugi.client import Client
from kintsugi.core.overlay import LinkState
from kintsugi.runtime.forking import forkserver
from kintsugi.runtime.overlay.options import OverlayOptions
from tests import processes
from tests.runtime.overlay.test_churn import check_lines
from tests.runtime.overlay.trainees import WAIT_SECONDS, Trainee, run_example
from tests.runtime.overlay.waiting import until

pytestmark = pytest.mark.processes
OVERLAY_DOCUMENT = Path(__file__).parents[3] / "docs" / "overlay.md"


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[str]:
    with processes.service(tmp_path_factory.mktemp("service") / "service.db") as running:
        yield running.url


def test_the_example_joins_and_leaves_a_running_job(tmp_path, service):
    def start(worker: str):
        arguments = ["--service", service, *documented[worker]]
        process = forkserver().Process(target=run_example, args=(str(tmp_path / worker), arguments))
        process.start()
        started.callback(process.kill)
        return process

    lines = re.findall(r"^python examples/join_and_leave.py (.*)$", OVERLAY_DOCUMENT.read_text(), re.MULTILINE)
    documented = {words[words.index("--worker") + 1]: words for words in map(str.split, lines)}
    assert list(documented) == ["clinic-a", "clinic-b", "clinic-c"]
    with ExitStack() as started:
        first = start("clinic-a")
        await_text(tmp_path / "clinic-a", r"step 2 ", first)
        second = start("clinic-b")
        await_text(tmp_path / "clinic-b", r"with clinic-a,clinic-b", second)
        third = start("clinic-c")
        await_text(tmp_path / "clinic-c", r"with clinic-a,clinic-b,clinic-c", third)
        for process, worker in ((first, "clinic-a"), (third, "clinic-c"), (second, "clinic-b")):
            process.terminate()
            process.join(WAIT_SECONDS)
            assert process.exitcode == 0, (tmp_path / worker).read_text()
    assert re.search(r"clinic-c joined at step [1-9]", (tmp_path / "clinic-c").read_text())
    assert "with clinic-b,clinic-c" in (tmp_path / "clinic-b").read_text()


def test_a_signal_ends_a_worker_that_waits_to_join(tmp_path, service):
    with ExitStack() as started, Client(service) as client:
        holder = Trainee(tmp_path, service, "waited", "a")
        started.callback(holder.end)
        holder.await_steps(1)
        holder.signal(signal.SIGSTOP)
        arguments = ["--service", service, "--job", "waited", "--worker", "b"]
        joiner = forkserver().Process(target=run_example, args=(str(tmp_path / "b"), arguments))
        joiner.start()
        started.callback(joiner.kill)
        until(lambda: "b" in [worker.id for worker in client.overlay("waited").workers], joiner)
        joiner.terminate()
        joiner.join(120.0)
        assert joiner.exitcode == 1
        assert "b" not in [worker.id for worker in client.overlay("waited").workers]
        holder.signal(signal.SIGKILL)
        holder.join()
    assert (tmp_path / "b").read_text() == "b did not join: worker: was asked to leave before it took part\n"


def test_workers_are_killed_at_random_moments(tmp_path, service):
    dice = random.Random(5)
    trainees: dict[str, Trainee] = {}
    with ExitStack() as started, Client(service) as client:

        def start(worker: str, *neighbors: str) -> None:
            trainees[worker] = Trainee(tmp_path, service, "killed", worker, neighbors or None)
            started.callback(trainees[worker].end)
            trainees[worker].await_steps(1)

        for worker, neighbors in (("a", ()), ("b", ("a",)), ("c", ("a", "b")), ("d", ("a", "b", "c"))):
            start(worker, *neighbors)
        for victim, newcomer in (("b", "e"), ("a", "f")):
            trainees["c"].await_steps(len(trainees["c"].lines) + dice.randint(1, 4))
            trainees[victim].signal(signal.SIGKILL)
            start(newcomer, "c", "d")
        for worker in ("c", "d", "e", "f"):
            trainees[worker].await_steps(len(trainees[worker].lines) + 2)
        overlay = client.overlay("killed")
        for worker in ("c", "d", "e", "f"):
            trainees[worker].signal(signal.SIGTERM)
        for trainee in trainees.values():
            trainee.join()
    assert overlay is not None
    assert overlay.restarts == 2
    assert all(trainees[worker].has_left for worker in ("c", "d", "e", "f"))
    check_lines([line for trainee in trainees.values() for line in trainee.lines])


def test_workers_that_name_no_neighbours_outlive_the_one_that_all_joined_next_to(tmp_path, service):
    trainees: dict[str, Trainee] = {}
    with ExitStack() as started, Client(service) as client:

        def await_links(*links: str) -> None:
            def are_up() -> bool:
                return set(links) <= {"".join(one.between) for one in client.overlay("star").links if one.state is LinkState.UP}

            until(are_up, trainees["e"].process)

        for worker in "abcde":
            options = OverlayOptions(link_timeout_seconds=60.0, max_neighbors=1)
            trainees[worker] = Trainee(tmp_path, service, "star", worker, options=options)
            started.callback(trainees[worker].end)
            trainees[worker].await_steps(1)
        await_links("ab", "ac", "ad", "ae", "bc", "cd", "de")
        for victim, closing in (("a", "be"), ("c", "bd")):
            trainees[victim].signal(signal.SIGKILL)
            trainees[victim].join()
            await_links(closing)
        for worker in "bde":
            trainees[worker].await_steps(len(trainees[worker].lines) + 2)
        for worker in "bde":
            trainees[worker].signal(signal.SIGTERM)
        for trainee in trainees.values():
            trainee.join()
    assert all(trainees[worker].has_left for worker in "bde")
    last = {worker: 1 if worker in "ac" else 0 for worker in trainees}  # of the killed: the others may have summed it anew
    check_lines([line for worker, one in trainees.items() for line in one.lines[: len(one.lines) - last[worker]]])


def await_text(path: Path, pattern: str, process) -> None:
    """Wait until a process has written something."""
    until(lambda: path.exists() and re.search(pattern, path.read_text()), process)
