"""What follows a pipeline's last backward pass at least: the reduction of its first stage's layers."""

from collections.abc import Callable, Sequence

import numpy as np

from estimator.arrays import Floats, Ints
from kintsugi.core.profile import LinkCost, Profile


def least_tails(profile: Profile, degrees: range, first_length: int, link_over: Callable[[int], LinkCost]) -> Floats:
    """The least that reducing the first n layers takes, by the number of pipelines. Shape [degrees, layers + 1].

    Where the last layer is tied to the first, both ends of every pipeline reduce them together, apart from the rest; that
    counts for the first layer and for the last.

    Args:
        profile: of the job.
        degrees: numbers of pipelines.
        first_length: the shortest pipeline.
        link_over: the fastest link that can pace a reduction over so many workers.
    """
    numbers, held, ends = np.array(degrees), held_bytes(profile), profile.tie_groups[0]
    if ends[-1] < profile.num_layers - 1 or ends[-1] == 0 or first_length < 2:
        return ring_seconds([link_over(dp) for dp in degrees], numbers, held)
    tied = float(sum(profile.layers[layer].gradient_bytes for layer in ends))
    result = ring_seconds([link_over(dp) for dp in degrees], numbers, held - held[1])
    result[:, :2] = 0.0
    together = ring_seconds([link_over(2 * dp) for dp in degrees], 2 * numbers, np.array([tied]))
    result[:, 1:] += together
    result[:, -1:] += together
    return result


def tail_seconds(profile: Profile, link: LinkCost, dp: int) -> Floats:
    """Reduction of the first n layers over `dp` holders, which follows their last backward pass. Shape [layers + 1]."""
    result: Floats = ring_seconds([link], np.array([dp]), held_bytes(profile))[0]
    return result


def held_bytes(profile: Profile) -> Floats:
    """Gradients of the first n layers. Shape [layers + 1]."""
    return np.cumsum([0.0, *(layer.gradient_bytes for layer in profile.layers)])


def ring_seconds(links: Sequence[LinkCost], num_workers: Ints, num_bytes: Floats) -> Floats:
    """Ring all-reduces of several sizes over several numbers of workers, in seconds. Shape [links, sizes].

    Args:
        links: that pace the rings.
        num_workers: of the rings, shape [links].
        num_bytes: sizes.
    """
    alphas = np.array([link.alpha_seconds for link in links])[:, None]
    betas = np.array([link.beta_seconds_per_byte for link in links])[:, None]
    workers = num_workers[:, None]
    result: Floats = 2 * (workers - 1) * (alphas + num_bytes / workers * betas)
    return result
