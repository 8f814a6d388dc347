"""A whole training run as a sequence of states and the transitions between them (Chameleon, section III, equations 1 to 6).

In state i, of n, S_i samples are trained in t_i seconds at T_i samples per second; u_i is the transition from it to the next one.
What this adds up in hindsight `kintsugi.simulator` lets happen.
"""

from collections.abc import Sequence

from kintsugi.core.errors import InvalidInputError


def total_samples(state_samples: Sequence[float]) -> float:
    """Equation 1: samples of all states, the sum of S_i. Shape [states]."""
    return sum(state_samples)


def total_seconds(state_seconds: Sequence[float], transition_seconds: Sequence[float]) -> float:
    """Equation 2: time in all states and in the transitions between them, the sum of t_i and of u_i. Shapes [states], [states - 1].

    Raises:
        InvalidInputError: there is not one transition between each state and the next.
    """
    if len(transition_seconds) != len(state_seconds) - 1:
        raise InvalidInputError(
            f"must be one between each state and the next: {len(state_seconds) - 1}",
            field="transition_seconds",
            value=len(transition_seconds),
        )
    return sum(state_seconds) + sum(transition_seconds)


def average_throughput(throughputs: Sequence[float], state_seconds: Sequence[float], transition_seconds: Sequence[float]) -> float:
    """Equation 3's objective: samples per second of the whole run, (1) by (2). Shapes [states], [states], [states - 1]."""
    samples = [state_samples(rate, seconds) for rate, seconds in zip(throughputs, state_seconds, strict=True)]
    return total_samples(samples) / total_seconds(state_seconds, transition_seconds)


def state_samples(throughput: float, state_seconds: float) -> float:
    """Equation 5: samples of one state, T_i * t_i."""
    return throughput * state_seconds


def stretch_throughput(throughput: float, transition_seconds: float, state_seconds: float) -> float:
    """Equations 4 and 6: samples per second of one stretch between two faults, T_(i+1) * t_(i+1) / (u_i + t_(i+1))."""
    return state_samples(throughput, state_seconds) / (transition_seconds + state_seconds)
