"""Where replicas can be kept on different hosts, against every naming; and bounds that count on it."""

import itertools

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimator.estimate import estimate
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Pipeline, Plan, Stage
from planner.arranging.degrees import degrees
from planner.placing.spreading import is_spread, most_confined
from planner.replan import replan
from restorer.rounds import colour_rounds
from tests.builders import snapshot_of, transformer_profile

NUM_LAYERS = 6
PROFILE = transformer_profile(NUM_LAYERS - 2)


def cluster_of(sizes) -> Cluster:
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    return Cluster(name="any", workers=tuple(Worker(id=f"w{n:02d}", host=f"h{host}") for n, host in enumerate(hosts)))


def plan_of(cuts, names, counts) -> Plan:
    left = iter(names)
    pipelines = tuple(
        Pipeline(
            num_microbatches=count,
            stages=tuple(Stage(layer_start=a, layer_stop=b, worker=next(left)) for a, b in itertools.pairwise(own)),
        )
        for own, count in zip(cuts, counts, strict=True)
    )
    return Plan(pipelines=pipelines)


@st.composite
def arrangements(draw):
    """Hosts, and stage boundaries of pipelines for at most all workers."""
    cluster = cluster_of(draw(st.lists(st.integers(1, 4), min_size=2, max_size=4).filter(lambda sizes: sum(sizes) <= 6)))
    left, cuts = len(cluster.workers), []
    while left and (len(cuts) < 2 or draw(st.booleans())):
        length = draw(st.integers(1, min(left, NUM_LAYERS)))
        inner = draw(st.lists(st.integers(1, NUM_LAYERS - 1), min_size=length - 1, max_size=length - 1, unique=True))
        cuts.append((0, *sorted(inner), NUM_LAYERS))
        left -= length
    assume(len(cuts) > 1)
    return cluster, cuts


@settings(deadline=None, max_examples=200)
@given(arrangements(), st.data())
def test_more_pipelines_than_may_be_confined_can_be_spread(case, data):
    cluster, cuts = case
    lengths = [len(own) - 1 for own in cuts]
    ranges = Ranges(min_pp=data.draw(st.integers(1, min(lengths))), max_pp=data.draw(st.integers(max(lengths), NUM_LAYERS)))
    names = tuple(cluster.by_id)
    assume(ranges.min_pp * len(cuts) <= len(names))
    if len(cuts) <= most_confined(names, cluster, degrees(ranges, len(names), NUM_LAYERS, 12)):
        return
    namings = itertools.permutations(names, sum(lengths))
    assert any(is_spread(plan_of(cuts, naming, [1] * len(cuts)), cluster, names) for naming in namings)


@settings(deadline=None, max_examples=150)
@given(arrangements(), st.data())
def test_no_spread_plan_is_faster_than_the_bound_and_no_other_where_the_plan_is_not_spread(case, data):
    cluster, cuts = case
    counts = [data.draw(st.integers(1, 3)) for _ in cuts]
    names = tuple(cluster.by_id)
    plan = plan_of(cuts, data.draw(st.permutations(names)), counts)
    plan = plan.amended(rounds=colour_rounds(plan, PROFILE))
    decision = replan(snapshot_of(PROFILE, cluster, sum(counts)))
    confined = most_confined(names, cluster, degrees(Ranges(), len(names), NUM_LAYERS, sum(counts)))
    if is_spread(plan, cluster, names) or (len(cuts) <= confined and not is_spread(decision.plan, cluster, names)):
        bound = decision.search.lower_bound_seconds
        assert bound <= estimate(plan, PROFILE, cluster).iteration_seconds * (1 + 1e-9)
