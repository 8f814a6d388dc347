"""Reads the planner's compiled loops before anybody waits for a plan: the first search of a process takes long for them alone."""

import gc
from dataclasses import replace

from kintsugi.core.cluster import Cluster
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.profile import Device, LayerProfile, LinkCost, Network, Profile, Provenance, ProvenanceKind, Recovery
from planner.replan import replan

_NUM_WORKERS = 6
_NUM_MICROBATCHES = 12


def warm_up() -> None:
    """Plan small jobs before and after a loss: layers equal or not, workers equal or not take loops of their own.

    What the process holds then is left out wherever garbage is sought later: that takes as long as there is to look at.
    """
    equal_workers = Cluster.uniform(_NUM_WORKERS)
    slow, *others = equal_workers.workers
    unequal_workers = equal_workers.with_workers((replace(slow, speed_ratio=0.5), *others))
    equal_layers, unequal_layers = _profile(backward_weight_ms=(10, 10, 10, 10)), _profile(backward_weight_ms=(10, 20, 30, 40))
    _plan(equal_layers, equal_workers)
    _plan(unequal_layers, equal_workers)
    _plan(unequal_layers, unequal_workers)
    gc.collect()
    gc.freeze()


def _plan(profile: Profile, cluster: Cluster) -> None:
    everybody = tuple(worker.id for worker in cluster.workers)
    settings = JobSettings(num_microbatches=_NUM_MICROBATCHES)
    snapshot = Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=everybody, generation=0)
    plan = replan(snapshot).plan
    replan(replace(snapshot, plan=plan, alive=everybody[1:], generation=1))


def _profile(backward_weight_ms: tuple[int, ...]) -> Profile:
    layers = tuple(
        LayerProfile(
            name=f"layer{index}",
            forward_seconds=0.010,
            backward_input_seconds=0.010,
            backward_weight_seconds=milliseconds / 1e3,
            parameter_bytes=10**6,
            gradient_bytes=10**6,
            optimizer_bytes=4 * 10**6,
            activation_bytes=10**6,
            output_bytes=10**5,
        )
        for index, milliseconds in enumerate(backward_weight_ms)
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
