"""Whatever happens to an overlay: its policy spans who is active, its replications cover the state, its log gives it again."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core import codec
from kintsugi.core.overlay import LinkState, Overlay, Shape, WorkerState
from planner.overlay.topology import components, holders, in_state, up_links
from tests.planner.overlay.world import Churn


def check(overlay: Overlay) -> None:
    policy = overlay.synchronization
    active = set(in_state(overlay, WorkerState.ACTIVE))
    draining = set(in_state(overlay, WorkerState.DRAINING))
    joining = set(in_state(overlay, WorkerState.JOINING))
    up = {link.between for link in overlay.links if link.state is LinkState.UP}
    assert len(set(policy.order)) == len(policy.order)
    assert active <= set(policy.order) <= active | draining
    check_links(policy, up)
    assert set(policy.listeners) == {replication.joiner for replication in overlay.replications} <= joining
    for listener in policy.listeners:
        assert policy.parents[listener] in policy.order
        assert tuple(sorted((listener, policy.parents[listener]))) in up
    known = active | draining | joining
    assert all(set(link.between) <= known for link in overlay.links)
    for worker in joining:
        among = (*policy.order, *joining)
        (part,) = (p for p in components(among, [one for one in overlay.links if set(one.between) <= set(among)]) if worker in p)
        assert not set(policy.order).isdisjoint(part)
    for replication in overlay.replications:
        check_replication(overlay, replication, up)


def check_links(policy, up) -> None:
    if policy.shape is Shape.RING:
        used = [(policy.order[index - 1], worker) for index, worker in enumerate(policy.order)]
        assert set(policy.parents) == set(policy.listeners)
    else:
        used = [(worker, policy.parents[worker]) for worker in policy.order[1:]]
        for index, worker in enumerate(policy.order[1:], 1):
            assert policy.parents[worker] in policy.order[:index]
        assert set(policy.parents) == {*policy.order[1:], *policy.listeners}
    assert {tuple(sorted(ends)) for ends in used} <= up


def check_replication(overlay, replication, up) -> None:
    """Every shard once, from neighbours that hold the state and are connected."""
    shards = sorted(n for share in replication.shares for n in range(share.first_shard, share.first_shard + share.num_shards))
    assert shards == list(range(-(-replication.state_bytes // replication.shard_bytes)))
    for share in replication.shares:
        assert overlay.worker(share.source).state in (WorkerState.ACTIVE, WorkerState.DRAINING)
        assert tuple(sorted((share.source, replication.joiner))) in up
    assert replication.generation <= overlay.generation
    assert replication.lower_bound_seconds <= replication.makespan_seconds


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_churn_keeps_every_promise(data):
    churn = Churn(data)
    for _ in range(data.draw(st.integers(1, 30))):
        before, num_logged = churn.world.overlay, len(churn.world.log)
        churn.happen()
        after = churn.world.overlay
        check(after)
        assert len(components(after.synchronization.order, up_links(after, after.synchronization.order))) <= 1
        leaving = in_state(after, WorkerState.DRAINING)
        assert set(leaving).intersection(after.synchronization.order) <= set(before.synchronization.order), "nobody is called back"
        if len(churn.world.log) > num_logged and churn.world.log[-1][0].teller is not None:
            assert holders(after) or not holders(before), "no worker's word loses the state"
        if after is before or len(churn.world.log) == num_logged:
            assert after is before
        else:
            assert after.generation == before.generation + 1
            assert after.restarts - before.restarts in (0, 1)
            if after.restarts > before.restarts:
                assert (after.restarted, after.restarted_generation) == (after.synchronization, after.generation)
    assert codec.dumps(churn.world.replayed()) == codec.dumps(churn.world.overlay)
