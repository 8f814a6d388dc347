"""What follows last backward passes at least: the reductions of stages' layers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
    numbers, held, tied = np.array(degrees), held_bytes(profile), _tied_ends(profile, first_length)
    if not tied:
        return ring_seconds([link_over(dp) for dp in degrees], numbers, held)
    result = ring_seconds([link_over(dp) for dp in degrees], numbers, held - held[1])
    result[:, :2] = 0.0
    together = _together_seconds(profile, tied, degrees, link_over)
    result[:, 1:] += together
    result[:, -1:] += together
    return result


class Reductions(NamedTuple):
    """What reducing the layers [a, b) of a stage takes: until[b] - since[a], in seconds."""

    until: Floats
    """Shape [layers + 1]."""
    since: Floats
    """Shape [layers + 1]."""
    together: float
    """What both ends of all pipelines reduce together, where these are tied; 0 where they are not."""


def no_reductions(num_layers: int) -> Reductions:
    """Where nothing is reduced."""
    return Reductions(np.zeros(num_layers + 1), np.zeros(num_layers + 1), 0.0)


def stage_reductions(profile: Profile, dp: int, num_workers: int, link_over: Callable[[int], LinkCost]) -> Reductions:
    """The least that reducing a stage's layers takes, in one of `dp` pipelines of so many workers with several stages.

    Where the last layer is tied to the first, both ends of every pipeline reduce them together, apart from the rest.

    Args:
        profile: of the job.
        dp: number of pipelines.
        num_workers: of each.
        link_over: the fastest link that can pace a reduction over so many workers.
    """
    tied = _tied_ends(profile, num_workers)
    apart = [0 if index in tied else layer.gradient_bytes for index, layer in enumerate(profile.layers)]
    until = ring_seconds([link_over(dp)], np.array([dp]), np.cumsum([0.0, *apart]))[0]
    latency = until[0]
    since, together = until - latency, 0.0
    if tied:
        together = float(_together_seconds(profile, tied, [dp], link_over)[0, 0])
        until[1] = 0.0  # the first layer alone, and the last one, are reduced with nothing else
        since[-2] += latency
        until[1:] += together
        until[-1] += together
        since[1:] += together
    return Reductions(until, since, together)


def _tied_ends(profile: Profile, num_workers: int) -> tuple[int, ...]:
    """Layers that share parameters, the first and the last among them, where these are on two workers; empty where none do."""
    group = profile.tie_groups[0]
    return group if group[-1] == profile.num_layers - 1 > 0 and num_workers > 1 else ()


def _together_seconds(
    profile: Profile, tied: Sequence[int], degrees: Sequence[int], link_over: Callable[[int], LinkCost]
) -> Floats:
    """Reduction of what both ends of so many pipelines share. Shape [degrees, 1]."""
    num_bytes = np.array([float(sum(profile.layers[layer].gradient_bytes for layer in tied))])
    return ring_seconds([link_over(2 * dp) for dp in degrees], 2 * np.array(degrees), num_bytes)


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
