"""Reads the planner's compiled loops before anybody waits for a plan: the first search of a process takes long for them alone.

Where they were not compiled before, all of them are: whoever installs the planner lets it warm up once.
"""

from contextlib import suppress
from dataclasses import replace

from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import Device, LayerProfile, LinkCost, Network, Profile, Provenance, ProvenanceKind, Recovery
from planner.replan import replan

_SETTINGS = JobSettings(num_microbatches=16)


def warm_up() -> None:
    """Plan small jobs before and after losses, so that every loop is called once.

    Layers equal or not, workers and links equal or not, few splits or many, and schedules take loops of their own, and so does what
    is told of a job that fits nowhere, or not in every order of its workers; the second of two losses lets state move.
    """
    equal_workers, equal_layers, unequal_layers = Cluster.uniform(6), _profile(6, (10,)), _profile(4, (10, 20, 30, 40))
    _plan(equal_layers, equal_workers, num_losses=2)
    _plan(equal_layers, Cluster.uniform(6, workers_per_host=2), num_losses=2)
    _plan(equal_layers, _with_a_slow_worker(6), num_losses=2)
    _plan(equal_layers, _with_a_slow_link(6))
    _plan(unequal_layers, _with_a_slow_worker(6))
    for schedule in Schedule:
        _plan(unequal_layers, equal_workers, replace(_SETTINGS, schedule=schedule))
    long = replace(_SETTINGS, ranges=Ranges(min_pp=7))
    _plan(_profile(16, (10, 20, 30, 40)), Cluster.uniform(8), long, num_losses=0)
    _plan(_profile(16, (10, 20, 30, 40)), _with_a_slow_worker(8), long, num_losses=0)
    _plan(equal_layers, _with_one_large_worker(6))
    for schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):
        with suppress(InfeasibleError):
            tiny = replace(equal_layers, device=Device(name="none", memory_bytes=10**6))
            _plan(tiny, equal_workers, replace(_SETTINGS, schedule=schedule))


def _plan(profile: Profile, cluster: Cluster, settings: JobSettings = _SETTINGS, num_losses: int = 1) -> None:
    everybody = tuple(worker.id for worker in cluster.workers)
    first = Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=everybody, generation=0)
    plan = replan(first).plan
    for generation in range(1, num_losses + 1):
        plan = replan(replace(first, plan=plan, alive=everybody[generation:], generation=generation)).plan


def _with_a_slow_worker(num_workers: int) -> Cluster:
    cluster = Cluster.uniform(num_workers)
    slow, *others = cluster.workers
    return cluster.with_workers((replace(slow, speed_ratio=0.5), *others))


def _with_a_slow_link(num_workers: int) -> Cluster:
    cluster = Cluster.uniform(num_workers)
    first, second, *_ = cluster.hosts
    link = HostLink(between=(first, second), alpha_seconds=1e-5, beta_seconds_per_byte=1e-8)
    return replace(cluster, links=(link,))


def _with_one_large_worker(num_workers: int) -> Cluster:
    cluster = Cluster.uniform(num_workers)
    *small, large = cluster.workers
    return cluster.with_workers((*(replace(worker, memory_bytes=10**6) for worker in small), large))


def _profile(num_layers: int, backward_weight_ms: tuple[int, ...]) -> Profile:
    layers = tuple(
        LayerProfile(
            name=f"layer{index}",
            forward_seconds=0.010,
            backward_input_seconds=0.010,
            backward_weight_seconds=backward_weight_ms[index % len(backward_weight_ms)] / 1e3,
            parameter_bytes=10**6,
            gradient_bytes=10**6,
            optimizer_bytes=4 * 10**6,
            activation_bytes=10**6,
            output_bytes=10**5,
        )
        for index in range(num_layers)
    )
    link = LinkCost(alpha_seconds=1e-5, beta_seconds_per_byte=1e-11)
    return Profile(
        name="warm-up",
        microbatch_size=1,
        provenance=Provenance(kind=ProvenanceKind.ANALYTICAL, detail="made up"),
        layers=layers,
        device=Device(name="none", memory_bytes=10**10),
        network=Network(intra_host=link, inter_host=link),
        recovery=Recovery(detect_seconds=1.0, regroup_seconds=1.0, restart_seconds=60.0),
    )
