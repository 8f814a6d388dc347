"""Order of the tests: the fast ones first, those that start processes last; one thread for torch, as its workers have."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded; on tiny tensors threads only wait for each other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("processes") is not None)
