"""What `kintsugi.train` refuses before anything starts."""

import pytest

from kintsugi.runtime.train import train
from tests.core.refusals import refuses
from tests.runtime.jobs import tiny_gpt


@pytest.mark.parametrize("workers", ["4", 2.5, 0, -1, None])
def test_workers_are_a_whole_number_or_a_cluster(workers):
    with refuses("workers", workers, "whole number"):
        train(tiny_gpt, workers=workers, dp=2, pp=2)
