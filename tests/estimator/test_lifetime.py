import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.goodput import goodput_samples_per_second
from estimator.lifetime import average_throughput, state_samples, stretch_throughput, total_samples, total_seconds
from kintsugi.core.errors import InvalidInputError

SECONDS = st.floats(1.0, 1e6)


def test_a_run_of_two_states():
    assert total_samples([10.0, 5.0]) == 15.0
    assert total_seconds([100.0, 50.0], [10.0]) == 160.0
    assert average_throughput([2.0, 1.0], [100.0, 50.0], [10.0]) == pytest.approx(250 / 160)


def test_there_is_one_transition_between_two_states():
    with pytest.raises(InvalidInputError, match="transition_seconds: must be one between each state and the next: 1"):
        total_seconds([1.0, 2.0], [1.0, 1.0])


@given(throughput=SECONDS, transition=SECONDS, state=SECONDS)
def test_equation_8_is_equation_6_with_the_stretch_constant(throughput, transition, state):
    expected = goodput_samples_per_second(throughput, transition, transition + state)
    assert stretch_throughput(throughput, transition, state) == pytest.approx(expected, rel=1e-9)


@given(rates=st.lists(SECONDS, min_size=1, max_size=6), data=st.data())
def test_the_run_is_the_mean_of_its_stretches_weighted_by_time(rates, data):
    states = [data.draw(SECONDS) for _ in rates]
    transitions = [data.draw(SECONDS) for _ in rates[1:]]
    stretches = [state_samples(rates[0], states[0])]
    stretches += [stretch_throughput(r, t, s) * (t + s) for r, t, s in zip(rates[1:], transitions, states[1:], strict=True)]
    assert average_throughput(rates, states, transitions) == pytest.approx(sum(stretches) / total_seconds(states, transitions))
