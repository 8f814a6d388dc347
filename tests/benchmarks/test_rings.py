"""That gloo passes sums along the ring that the planner counts with: from each worker of a reduction to the next one."""

import re
import subprocess
from itertools import permutations

import pytest

from benchmarks.links import UnevenLinks, unavailable_reason
from benchmarks.members import Members
from benchmarks.rings import NUM_BYTES, reduced_seconds, uneven_costs
from estimator.communication import ring_all_reduce_seconds
from kintsugi.core.plan import Reduction
from kintsugi.core.profile import LinkCost
from restorer.rings import along_fast_links

NAMES = ("w00", "w01", "w02", "w03", "w04")
RATE = 100e6


def sent_bytes(links, member):
    """To each other member so far."""
    command = ["tc", "-n", links.namespace(member), "-s", "class", "show", "dev", "port"]
    told = subprocess.run(command, capture_output=True, check=True, text=True, timeout=240.0).stdout
    classes = {
        number: int(num_bytes) for number, num_bytes in re.findall(r"class htb 1:(\w+) .*?Sent (\d+) bytes", told, re.DOTALL)
    }
    others = [name for name in NAMES if name != member]
    return {other: classes[str(number)] for number, other in enumerate(others, start=2)}


@pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
@pytest.mark.parametrize("ring", [NAMES, ("w02", "w00", "w04", "w01", "w03")])
def test_gloo_passes_sums_to_the_next_worker_of_a_reduction_alone(ring):
    pairs = dict.fromkeys(permutations(NAMES, 2), RATE)
    with UnevenLinks(dict.fromkeys(NAMES, RATE), pairs) as links, Members(links) as members:
        members.connect(NAMES, [ring])
        before = {name: sent_bytes(links, name) for name in NAMES}
        members.call(reduced_seconds, ring)
        sent = {name: {to: now - before[name][to] for to, now in sent_bytes(links, name).items()} for name in NAMES}
    forward = dict(zip(ring, (*ring[1:], ring[0]), strict=True))
    backward = {to: name for name, to in forward.items()}
    heard = {name: {to for to, num_bytes in own.items() if num_bytes > NUM_BYTES / 4} for name, own in sent.items()}
    assert heard in ({name: {to} for name, to in forward.items()}, {name: {to} for name, to in backward.items()})


def test_a_ring_around_slow_links_takes_what_one_without_any_takes():
    costs = uneven_costs(6, num_slow=3, seed=0)
    given = Reduction(layers=(0,), workers=tuple(costs.cluster.by_id), num_bytes=NUM_BYTES)
    [found] = along_fast_links([given], costs)
    usual: LinkCost = costs.profile.network.inter_host
    assert costs.reduction_seconds(found) == ring_all_reduce_seconds(usual, 6, NUM_BYTES) < costs.reduction_seconds(given) / 5
