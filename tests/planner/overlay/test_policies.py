"""Trees, rings and shards against all that there are; planners that are put in the place of the project's own."""

from itertools import combinations, permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.overlay import LinkState, OverlayLink, Shape, SynchronizationPolicy
from planner.overlay import rings
from planner.overlay.pricing import SynchronizationProblem, alpha, beta, ring_seconds, tree_seconds
from planner.overlay.replication import ready_seconds
from planner.overlay.rings import fastest_ring
from planner.overlay.synchronization import check_policy, fastest, load_planner
from planner.overlay.topology import components
from planner.overlay.trees import fastest_tree
from planner.sharding.baselines import brute_force, single_source
from planner.sharding.exact import assign_shards, divisible_seconds
from planner.sharding.problem import ExactTimes, ShardProblem
from tests.planner.overlay.world import MIB, World, mesh
from tests.planner.sharding.samples import neighbor


def link(first, second, alpha_seconds=0.01, beta_seconds_per_byte=1e-8):
    between = tuple(sorted((first, second)))
    return OverlayLink(
        between=between, state=LinkState.UP, alpha_seconds=alpha_seconds, beta_seconds_per_byte=beta_seconds_per_byte
    )


@st.composite
def problems(draw, max_workers=5):
    """Connected overlays, small enough to try everything."""
    workers = tuple("abcde"[: draw(st.integers(1, max_workers))])
    pairs = list(combinations(workers, 2))
    chain = {(workers[draw(st.integers(0, index - 1))], worker) for index, worker in enumerate(workers) if index}
    more = draw(st.sets(st.sampled_from(pairs), max_size=6)) if pairs else set()
    times = st.sampled_from([0.0, 0.25, 1.0, 1.5])
    rates = st.sampled_from([0.0, 0.125, 0.25, 1.0])
    links = tuple(link(*pair, draw(times), draw(rates) / 1024) for pair in sorted(chain | more))
    return SynchronizationProblem(workers=workers, links=links, message_bytes=draw(st.sampled_from([0, 1024, 4096])))


def height(root, links, workers):
    """Latency from the root to the farthest worker of a tree."""
    distance, waiting = {root: 0.0}, [root]
    while waiting:
        worker = waiting.pop()
        for one in links:
            if worker in one.between:
                other = one.between[one.between[0] == worker]
                if other not in distance:
                    distance[other] = distance[worker] + alpha(one)
                    waiting.append(other)
    return max(distance.values())


def price(root, links, problem):
    slowest = max((beta(one) for one in links), default=0.0)
    return tree_seconds(height(root, links, problem.workers), slowest, problem.message_bytes)


def spanning_trees(problem):
    for links in combinations(problem.links, len(problem.workers) - 1):
        if len(components(problem.workers, links)) == 1:
            yield links


def six():
    """Six workers and fourteen unequal links."""
    pairs = list(combinations("abcdef", 2))[1:]
    links = tuple(link(*pair, 0.25 * (index * 7 % 5), (1 + index * 11 % 13) / 4096) for index, pair in enumerate(pairs))
    return SynchronizationProblem(workers=tuple("abcdef"), links=links, message_bytes=1024)


@settings(max_examples=40, deadline=None)
@example(six())
@given(problems())
def test_the_tree_is_the_best_of_all_spanning_trees(problem):
    tree = fastest_tree(problem)
    best = min(price(root, links, problem) for links in spanning_trees(problem) for root in problem.workers)
    assert tree.seconds == best
    used = [one for one in problem.links for child, parent in tree.parents.items() if set(one.between) == {child, parent}]
    assert price(tree.order[0], used, problem) == tree.seconds
    check_policy(problem, SynchronizationPolicy(shape=Shape.TREE, order=tree.order, parents=tree.parents))


@settings(max_examples=60, deadline=None)
@example(six())
@given(problems())
def test_the_ring_is_the_best_of_all_cycles(problem):
    first, *others = problem.workers
    hops = {frozenset(one.between): alpha(one) + beta(one) * problem.message_bytes / len(problem.workers) for one in problem.links}
    best = None
    for rest in permutations(others) if len(others) > 1 else ():
        order = (first, *rest)
        ends = [frozenset((order[index - 1], worker)) for index, worker in enumerate(order)]
        if all(pair in hops for pair in ends):
            seconds = ring_seconds(max(hops[pair] for pair in ends), len(order))
            best = seconds if best is None else min(best, seconds)
    ring = fastest_ring(problem)
    assert (ring and ring.seconds) == best
    if ring is not None:
        check_policy(problem, SynchronizationPolicy(shape=Shape.RING, order=ring.order))
        assert fastest_ring(problem, below_seconds=ring.seconds) is None


@settings(max_examples=40, deadline=None)
@given(problems())
def test_whichever_is_predicted_faster_is_taken(problem):
    tree, ring, policy = fastest_tree(problem), fastest_ring(problem), fastest(problem)
    best = min(tree.seconds, ring.seconds) if ring else tree.seconds
    assert policy.predicted_seconds == best
    assert (policy.shape is Shape.RING) == (ring is not None and ring.seconds < tree.seconds)


def test_a_large_message_goes_over_a_ring_of_equal_links_and_a_small_one_over_a_tree():
    links = tuple(link(*pair) for pair in combinations("abcd", 2))
    assert fastest(SynchronizationProblem(workers=tuple("abcd"), links=links, message_bytes=64 * MIB)).shape is Shape.RING
    assert fastest(SynchronizationProblem(workers=tuple("abcd"), links=links, message_bytes=1024)).shape is Shape.TREE


def test_a_slow_link_is_gone_around():
    links = (link("a", "b", beta_seconds_per_byte=1e-6), link("a", "c"), link("b", "c"))
    tree = fastest_tree(SynchronizationProblem(workers=tuple("abc"), links=links, message_bytes=MIB))
    assert (tree.order[0], tree.parents) == ("c", {"a": "c", "b": "c"})


def test_a_search_that_takes_too_long_gives_up(monkeypatch):
    links = tuple(link(*pair) for pair in combinations("abcde", 2))
    problem = SynchronizationProblem(workers=tuple("abcde"), links=links, message_bytes=MIB)
    monkeypatch.setattr(rings, "SEARCH_WORK", 2)
    assert fastest_ring(problem) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.02]), st.sampled_from([1e-8, 2e-8, 8e-8])), min_size=1, max_size=4))
def test_shards_are_assigned_as_well_as_by_trying_all(told):
    names = [f"w{index:02}" for index in range(len(told))]
    world = mesh(*names)
    world.join("w09", *names, state_bytes=9 * MIB, shard_bytes=MIB)
    for name, (alpha_seconds, beta_seconds_per_byte) in zip(names, told, strict=True):
        world.measure(name, "w09", alpha_seconds, beta_seconds_per_byte)
    (replication,) = world.overlay.replications
    sources = tuple(
        neighbor(name, slow, ready_seconds(world.overlay, name), far) for name, (far, slow) in zip(names, told, strict=True)
    )
    problem = ShardProblem(num_shards=9, shard_bytes=MIB, min_shards_per_neighbor=0, neighbors=sources)
    assert replication.makespan_seconds == brute_force(problem).makespan_seconds <= single_source(problem).makespan_seconds


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([1e-8, 2e-8, 8e-8]), min_size=2, max_size=4),
    st.integers(1, 2**30),
    st.integers(1, 2**30),
    st.booleans(),
)
def test_the_makespan_is_that_of_the_bytes_that_are_sent(betas, state_bytes, shard_bytes, is_one_lost):
    names = [f"w{index:02}" for index in range(len(betas))]
    world = mesh(*names)
    world.join("w09", *names, state_bytes=state_bytes, shard_bytes=shard_bytes)
    for name, beta_seconds_per_byte in zip(names, betas, strict=True):
        world.measure(name, "w09", beta=beta_seconds_per_byte)
    if is_one_lost:
        world.tell("link_disconnected", link=(names[-1], "w09"))
    (plan,) = world.overlay.replications
    sent = dict.fromkeys((share.source for share in plan.shares), 0)
    for share in plan.shares:
        begin, end = plan.byte_range(share, state_bytes)
        assert (end - begin) - plan.shard_bytes * share.num_shards in range(-share.num_shards, 1)
        sent[share.source] += end - begin
    assert sum(sent.values()) == state_bytes
    ends = [
        neighbor(name, betas[int(name[1:])], ready_seconds(world.overlay, name), 0.01).arrival_seconds(num_bytes)
        for name, num_bytes in sent.items()
    ]
    assert plan.makespan_seconds == pytest.approx(max(ends), rel=1e-12)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(0.01, 3) | st.just(0.0)), min_size=1, max_size=5),
    st.integers(1, 50),
)
def test_the_lower_bound_is_when_divisible_shares_end_together(told, num_bytes):
    neighbors = tuple(neighbor(f"n{index}", slow, ready, far) for index, (ready, far, slow) in enumerate(told))
    problem = ShardProblem(num_shards=num_bytes, shard_bytes=1, min_shards_per_neighbor=0, neighbors=neighbors)
    end = divisible_seconds(ExactTimes.of(problem), num_bytes)
    assert end <= assign_shards(problem).makespan_seconds
    if any(one.beta_seconds_per_byte == 0 and one.ready_seconds + one.propagation_seconds <= end for one in neighbors):
        assert end == min(one.ready_seconds + one.propagation_seconds for one in neighbors if not one.beta_seconds_per_byte)
        return
    sent = sum(
        max(0.0, end - one.ready_seconds - one.propagation_seconds) / one.beta_seconds_per_byte
        for one in neighbors
        if one.beta_seconds_per_byte
    )
    assert sent == pytest.approx(num_bytes, rel=1e-6)


def star(problem):
    """Everybody under the one that joined first."""
    root, *others = problem.workers
    return SynchronizationPolicy(shape=Shape.TREE, order=problem.workers, parents=dict.fromkeys(others, root), reason="a star")


def broken(problem):
    raise RuntimeError("out of ideas")


def forgetful(problem):
    return SynchronizationPolicy(shape=Shape.TREE, order=problem.workers[:1])


def test_a_planner_may_be_replaced():
    world = World(planner=load_planner(f"{__name__}:star"))
    world.grow("w00")
    world.grow("w01", "w00")
    world.grow("w02", "w00", "w01")
    assert world.overlay.synchronization.reason == "a star"
    assert world.overlay.synchronization.parents == {"w01": "w00", "w02": "w00"}


@pytest.mark.parametrize(("planner", "reason"), [(broken, "out of ideas"), (forgetful, "exactly the workers that count")])
def test_training_goes_on_where_a_replaced_planner_fails(planner, reason):
    world = World(planner=planner)
    world.grow("w00")
    world.grow("w01", "w00")
    policy = world.overlay.synchronization
    assert set(policy.order) == {"w00", "w01"}
    assert reason in policy.reason or planner is forgetful
    assert "planner" in policy.reason


@pytest.mark.parametrize("name", ["", "nowhere:f", "planner.overlay.trees:nothing", "planner.overlay.rings:SEARCH_WORK"])
def test_a_planner_that_is_not_there_is_named(name):
    with pytest.raises(InvalidInputError) as refused:
        load_planner(name)
    assert refused.value.value == name


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"shape": Shape.TREE, "order": ("a", "b")}, "synchronization.order"),
        ({"shape": Shape.TREE, "order": ("a", "b", "c"), "parents": {"b": "a"}}, "synchronization.order[2]"),
        ({"shape": Shape.TREE, "order": ("a", "c", "b"), "parents": {"c": "a", "b": "c"}}, "synchronization.tree"),
        ({"shape": Shape.TREE, "order": ("a", "b", "c"), "parents": {"a": "b", "b": "a", "c": "b"}}, "synchronization.order[0]"),
        ({"shape": Shape.RING, "order": ("a", "b", "c")}, "synchronization.ring"),
        ({"shape": Shape.RING, "order": ("a", "b", "c"), "listeners": ("d",)}, "synchronization.order"),
    ],
)
def test_what_is_no_policy_is_refused(policy, field):
    problem = SynchronizationProblem(workers=tuple("abc"), links=(link("a", "b"), link("b", "c")), message_bytes=1)
    with pytest.raises(InvalidInputError) as refused:
        check_policy(problem, SynchronizationPolicy(**policy))
    assert refused.value.field == field
