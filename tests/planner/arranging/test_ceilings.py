"""What rules numbers of pipelines out: ceilings on micro-batches, found once for many numbers."""

from pathlib import Path

import numpy as np
import pytest

from estimator.costs import Costs
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.plan import Policy
from kintsugi.core.profile import LinkCost, OptimizerSharding, Profile
from planner.arranging.ceilings import Ceilings, OneByOne
from planner.arranging.request import Request, search_for
from planner.arranging.search import EqualSearch
from planner.pipelines.partition import Partitioner
from planner.placing.placement import Holdings
from planner.replan import replan
from tests.builders import snapshot_of, transformer_profile, uniform_profile

MODELS = Path(__file__).parents[3] / "profiles" / "models"
ETHERNET_OF_A_GIGABIT = LinkCost(alpha_seconds=5e-5, beta_seconds_per_byte=8e-9)


class OneByOneSearch(EqualSearch):
    """Looks at every number of pipelines by itself."""

    def _ceilings(self, dp):
        yield OneByOne(self._entries(dp), self._problem.allowed.pp)


def search_of(profile, num_workers, microbatches, **settings):
    cluster = Cluster.uniform(num_workers, workers_per_host=8)
    asked = JobSettings(num_microbatches=microbatches, **settings)
    workers = tuple(worker.id for worker in cluster.workers)
    request = Request(Costs(profile, cluster), asked, workers, Holdings(None, ()), 0, Policy.FAULT_FREE)
    search = search_for(request)
    assert isinstance(search, EqualSearch)
    return search


@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("memory_bytes", [80_000_000_000, 3_000_000_000])
def test_a_ceiling_is_the_most_that_one_finds_one_by_one(length, memory_bytes):
    search = search_of(transformer_profile(8, inter_host=ETHERNET_OF_A_GIGABIT, memory_bytes=memory_bytes), 24, 64)
    entries = search._entries(3)
    seconds = [entries.attain((length, count)).seconds for count in range(1, 65)]
    for limit in [*np.linspace(0.1, seconds[-1] if seconds[-1] < np.inf else 9.0, 25), np.inf]:
        ceilings = Ceilings(entries, range(1, 10))
        assert ceilings.most_within((length, 64), limit) == sum(own <= limit for own in seconds)
        most = np.full(9, 64)
        ceilings.lower(most, limit)
        assert most[length - 1] == min(64, ceilings.most_within((length, 64), limit))


@pytest.mark.parametrize("sharding", OptimizerSharding)
@pytest.mark.parametrize("ranges", [Ranges(), Ranges(min_dp=3), Ranges(max_pp=6)])
@pytest.mark.parametrize(("num_workers", "microbatches"), [(24, 20), (31, 77), (40, 80)])
def test_numbers_are_ruled_out_as_if_each_were_looked_at_by_itself(sharding, ranges, num_workers, microbatches):
    profile = transformer_profile(14, inter_host=ETHERNET_OF_A_GIGABIT, optimizer_sharding=sharding)
    search = search_of(profile, num_workers, microbatches, ranges=ranges)
    alone = OneByOneSearch(search._problem)
    best = min(search.arrange(dp)[0] for dp in search.by_promise()[:3])
    for share in (0.9, 1.0, 1.05, 1.5):
        for dp in search.by_promise():
            (bound, found), (least, other) = search.arrange(dp, best * share), alone.arrange(dp, best * share)
            assert bound == least
            assert (found and found.seconds) == (other and other.seconds)


def test_a_slow_network_takes_few_bounds(monkeypatch):
    asked: list[int] = []
    attain = Partitioner.attain
    monkeypatch.setattr(Partitioner, "attain", lambda self, kinds, *rest: asked.append(len(kinds)) or attain(self, kinds, *rest))
    profile = uniform_profile(32, inter_host=ETHERNET_OF_A_GIGABIT)
    replan(snapshot_of(profile, Cluster.uniform(256, workers_per_host=8), 512))
    assert len(asked) < 4_000


def test_memory_that_forbids_even_stages_takes_few_bounds(monkeypatch):
    asked: list[int] = []
    attain = Partitioner.attain
    monkeypatch.setattr(Partitioner, "attain", lambda self, kinds, *rest: asked.append(len(kinds)) or attain(self, kinds, *rest))
    profile = codec.load(Profile, MODELS / "llama3-405b.h100-80g-tp8.json")
    replan(snapshot_of(profile, Cluster.uniform(256), 512))
    assert len(asked) < 2_000
