"""Which files are loaded, and the order of the tests; one thread for torch, as its workers have.

Fast tests come first, those that start processes last; of either, the files that take longest come first, so that no core
waits at the end for a file that another has just begun.
"""

import gc
import os
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

TESTS = Path(__file__).parent
LONGEST_FIRST = (
    "docs/test_commands.py",
    "runtime/control/test_trouble.py",
    "emulated/test_device.py",
    "runtime/workers/test_recovery_exactness.py",
    "runtime/checkpoints/test_restart.py",
    "runtime/control/test_farewells.py",
    "cli/test_serve.py",
    "runtime/control/test_joins.py",
    "api/dashboard/test_browser.py",
    "api/dashboard/test_live.py",
    "benchmarks/test_chaos.py",
    "runtime/test_train.py",
    "matrix/test_runner.py",
    "runtime/selfgoverned/test_growing.py",
    "runtime/workers/test_interleaved.py",
    "runtime/selfgoverned/test_governed.py",
    "runtime/test_plain_ranks.py",
    "runtime/test_plain.py",
    "recipes/test_recipes.py",
    "api/decisions/test_ahead.py",
    "runtime/overlay/test_processes.py",
    "runtime/overlay/test_takeover.py",
    "api/decisions/test_workshop.py",
    "runtime/torchrun/test_rendezvous.py",
    "runtime/supervising/test_supervised.py",
    "runtime/workers/test_schedules.py",
    "simulator/test_sweep.py",
    "gpu/test_runtime.py",
)

PROCESSES = "pytest.mark.processes"
WHOLLY = re.compile(rf"^pytestmark = (\[\s*)?{re.escape(PROCESSES)}", re.MULTILINE)
"""Of files all of whose tests start processes."""

pytest.register_assert_rewrite(  # to say what was not so
    "tests.api.dashboard.browser", "tests.processes", "tests.services", "tests.restorer.crew", "tests.runtime.runs"
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background; what tests start would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded; on tiny tensors threads only wait for each other


# How long an example takes says nothing where others work, too. The same checkout is tested with the same examples; with
# --hypothesis-profile=fresh, as the soak has it, every run makes up new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
settings.load_profile("same")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Most files have tests of one kind alone, with processes or without: where the others are wanted they need not be loaded."""
    wanted = config.option.markexpr
    if collection_path.suffix != ".py" or wanted not in ("processes", "not processes"):
        return None
    text = collection_path.read_text()
    is_without = WHOLLY.search(text) is not None if wanted == "not processes" else PROCESSES not in text
    return True if is_without else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is loaded stays: it is not looked through for garbage, neither meanwhile nor by any test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(LONGEST_FIRST)}

    def rank(item: pytest.Item) -> tuple[bool, int]:
        return item.get_closest_marker("processes") is not None, places.get(item.path, len(places))

    items.sort(key=rank)


@pytest.fixture(scope="module", autouse=True)
def _logs_go_where_they_went() -> Iterator[None]:
    """A command that is run in this process sends logs to a stream that is closed after its test."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
