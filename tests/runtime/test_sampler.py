"""A step's samples depend on the step alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.sampler import Sampler, SamplerState

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 30), st.integers(0, 2**63 - 1))


def sampler_of(sizes) -> tuple[Sampler, int, int]:
    microbatch_size, num_microbatches, extra, seed = sizes
    num_samples = microbatch_size * num_microbatches + extra
    sampler = Sampler(num_samples=num_samples, microbatch_size=microbatch_size, num_microbatches=num_microbatches, seed=seed)
    return sampler, num_samples, num_microbatches


@given(SIZES, st.integers(0, 3))
@settings(deadline=None)
def test_an_epoch_sees_no_sample_twice_and_misses_less_than_a_batch(sizes, epoch):
    sampler, num_samples, num_microbatches = sampler_of(sizes)
    steps = range(epoch * sampler.steps_per_epoch, (epoch + 1) * sampler.steps_per_epoch)
    seen = [i for step in steps for m in range(num_microbatches) for i in sampler.indices(step, m)]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(range(num_samples))
    assert num_samples - len(seen) < sizes[0] * sizes[1]


@given(SIZES, st.integers(0, 50))
@settings(deadline=None)
def test_samples_do_not_depend_on_what_was_asked_before(sizes, step):
    sampler, _, num_microbatches = sampler_of(sizes)
    backwards = {m: sampler.indices(step, m) for m in reversed(range(num_microbatches))}
    again, *_ = sampler_of(sizes)
    again.indices(step + 17, 0)
    assert {m: again.indices(step, m) for m in range(num_microbatches)} == backwards
    assert all(len(indices) == sizes[0] for indices in backwards.values())


def test_cutting_the_batch_otherwise_keeps_its_samples():
    coarse = Sampler(num_samples=100, microbatch_size=4, num_microbatches=2, seed=3)
    fine = Sampler(num_samples=100, microbatch_size=2, num_microbatches=4, seed=3)
    for step in range(30):
        assert sum((coarse.indices(step, m) for m in range(2)), ()) == sum((fine.indices(step, m) for m in range(4)), ())


def test_epochs_and_seeds_differ():
    orders = {
        tuple(sampler.indices(step, 0))
        for seed in (0, 1)
        for sampler in [Sampler(num_samples=64, microbatch_size=64, num_microbatches=1, seed=seed)]
        for step in range(3)
    }
    assert len(orders) == 6


def test_too_few_samples_are_refused():
    with pytest.raises(InvalidInputError, match="num_samples: must fill at least one global batch"):
        Sampler(num_samples=7, microbatch_size=2, num_microbatches=4, seed=0)


def by_microbatch(num_samples: int, global_batch_size: int, size: int, seed: int = 3) -> Sampler:
    return Sampler(num_samples=num_samples, microbatch_size=size, num_microbatches=global_batch_size // size, seed=seed)


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@given(st.integers(1, 24), st.integers(0, 40), st.integers(0, 60), st.data())
@settings(deadline=None)
def test_the_global_batch_is_the_same_under_any_split(batch, extra, step, data):
    size, world = data.draw(st.sampled_from(divisors(batch))), data.draw(st.sampled_from(divisors(batch)))
    sampler, whole = by_microbatch(batch + extra, batch, size), by_microbatch(batch + extra, batch, batch)
    window = whole.window(step)
    assert len(window) == batch
    assert sum((sampler.indices(step, m) for m in range(batch // size)), ()) == window
    assert sum((sampler.shard(step, rank, world) for rank in range(world)), ()) == window
    for microbatch in range(batch // size):
        assert window[sampler.offset(microbatch) :][:size] == sampler.indices(step, microbatch)


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 200), st.integers(0, 9))
@settings(deadline=None)
def test_epoch_cursor_and_seed_are_all_that_a_sampler_remembers(batch, extra, step, seed):
    before, after = by_microbatch(batch + extra, batch, 1, seed), by_microbatch(batch + extra, batch, batch, seed)
    state = before.state(step)
    assert after.step_of(state) == step
    assert state.epoch == step // before.steps_per_epoch
    assert 0 <= state.cursor < before.steps_per_epoch
    assert after.window(after.step_of(state)) == before.window(step)


def test_a_state_of_another_order_is_refused():
    sampler = by_microbatch(20, 4, 2)
    with pytest.raises(InvalidInputError, match="seed: must be 3"):
        sampler.step_of(SamplerState(epoch=0, cursor=0, seed=4))
    with pytest.raises(InvalidInputError, match="cursor: must be below 5"):
        sampler.step_of(SamplerState(epoch=0, cursor=5, seed=3))
    with pytest.raises(InvalidInputError, match="epoch"):
        SamplerState(epoch=-1, cursor=0, seed=3)


def test_ranks_that_cannot_share_the_batch_evenly_are_refused():
    with pytest.raises(InvalidInputError, match="world_size: must divide the global batch of 4"):
        by_microbatch(20, 4, 2).shard(0, 0, 3)
    with pytest.raises(InvalidInputError, match="rank: must be from 0 to 1"):
        by_microbatch(20, 4, 2).shard(0, 2, 2)
