"""Synthetic profiles, plans and snapshots for the tests of every package."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from kintsugi.core.cluster import Cluster, worker_name
from kintsugi.core.job import DEFAULT_MTBF_SECONDS, JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Pipeline, Plan, Policy, Schedule, Stage
from kintsugi.core.profile import (
    Device,
    LayerProfile,
    LinkCost,
    Network,
    OptimizerSharding,
    Profile,
    Provenance,
    ProvenanceKind,
    Recovery,
)

FREE = LinkCost(alpha_seconds=0.0, beta_seconds_per_byte=0.0)
FAST = LinkCost(alpha_seconds=5e-6, beta_seconds_per_byte=4e-12)
ETHERNET = LinkCost(alpha_seconds=2e-5, beta_seconds_per_byte=4e-11)
RECOVERY = Recovery(detect_seconds=1.0, regroup_seconds=2.0, restart_seconds=60.0)


def layer(name: str, **changes: Any) -> LayerProfile:
    """A layer of 10 ms forward and 20 ms backward, 100 MB of parameters."""
    values: dict[str, Any] = {
        "forward_seconds": 0.010,
        "backward_input_seconds": 0.010,
        "backward_weight_seconds": 0.010,
        "optimizer_seconds": 0.001,
        "parameter_bytes": 100_000_000,
        "gradient_bytes": 100_000_000,
        "optimizer_bytes": 400_000_000,
        "activation_bytes": 50_000_000,
        "output_bytes": 8_000_000,
    }
    return LayerProfile(name=name, **{**values, **changes})


def profile_of(
    layers: Sequence[LayerProfile],
    *,
    memory_bytes: int = 80_000_000_000,
    inter_host: LinkCost = ETHERNET,
    intra_host: LinkCost = FAST,
    recovery: Recovery = RECOVERY,
    optimizer_sharding: OptimizerSharding = OptimizerSharding.NONE,
    tensor_parallel_degree: int = 1,
) -> Profile:
    """A profile of the given layers."""
    return Profile(
        name="synthetic",
        microbatch_size=2,
        tensor_parallel_degree=tensor_parallel_degree,
        optimizer_sharding=optimizer_sharding,
        provenance=Provenance(kind=ProvenanceKind.ANALYTICAL, detail="made up for tests"),
        layers=tuple(layers),
        device=Device(name="test", memory_bytes=memory_bytes),
        network=Network(intra_host=intra_host, inter_host=inter_host),
        recovery=recovery,
    )


def uniform_profile(num_layers: int, *, layer_changes: Mapping[str, Any] | None = None, **settings: Any) -> Profile:
    """`num_layers` equal layers; `layer_changes` are fields of every layer, `settings` go to `profile_of`."""
    return profile_of([layer(f"block{n}", **(layer_changes or {})) for n in range(num_layers)], **settings)


def transformer_profile(num_blocks: int, *, tied: bool = True, **settings: Any) -> Profile:
    """Embedding, `num_blocks` equal blocks and a head of 1.5 blocks, tied to the embedding unless told otherwise."""
    embedding = layer(
        "embedding", forward_seconds=0.001, backward_input_seconds=0.0, backward_weight_seconds=0.002, activation_bytes=2_000_000
    )
    head = layer(
        "head",
        forward_seconds=0.015,
        backward_input_seconds=0.015,
        backward_weight_seconds=0.015,
        parameter_bytes=0 if tied else 100_000_000,
        gradient_bytes=0 if tied else 100_000_000,
        optimizer_bytes=0 if tied else 400_000_000,
        tied_to="embedding" if tied else None,
    )
    return profile_of([embedding, *(layer(f"block{n}") for n in range(num_blocks)), head], **settings)


def even_cuts(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Stage boundaries of an even split, larger stages first: num_stages + 1 layer indices."""
    base, extra = divmod(num_layers, num_stages)
    cuts = [0]
    for stage in range(num_stages):
        cuts.append(cuts[-1] + base + (stage < extra))
    return tuple(cuts)


def grid_plan(
    num_layers: int,
    lengths: Sequence[int],
    microbatches: Sequence[int],
    *,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
    generation: int = 0,
    stages_per_worker: int = 1,
) -> Plan:
    """Pipelines of the given lengths over evenly split layers, workers w00, w01, ... place by place; without rounds."""
    names = iter(worker_name(n) for n in range(sum(lengths)))
    pipelines = []
    for length, count in zip(lengths, microbatches, strict=True):
        cuts = even_cuts(num_layers, length * stages_per_worker)
        workers = [next(names) for _ in range(length)] * stages_per_worker
        stages = tuple(
            Stage(layer_start=a, layer_stop=b, worker=worker)
            for (a, b), worker in zip(itertools.pairwise(cuts), workers, strict=True)
        )
        pipelines.append(Pipeline(num_microbatches=count, stages=stages))
    return Plan(generation=generation, policy=Policy.FAULT_FREE, schedule=schedule, pipelines=tuple(pipelines))


def snapshot_of(
    profile: Profile,
    cluster: Cluster,
    num_microbatches: int,
    *,
    plan: Plan | None = None,
    lost: Sequence[str] = (),
    ranges: Ranges | None = None,
    policy: Policy | None = None,
    mtbf_seconds: float = DEFAULT_MTBF_SECONDS,
    stateless: Sequence[str] = (),
) -> Snapshot:
    """A snapshot in which every worker of the cluster but those in `lost` lives."""
    settings = JobSettings(num_microbatches=num_microbatches, ranges=ranges or Ranges(), policy=policy, mtbf_seconds=mtbf_seconds)
    return Snapshot(
        profile=profile,
        cluster=cluster,
        settings=settings,
        plan=plan,
        alive=tuple(worker.id for worker in cluster.workers if worker.id not in lost),
        generation=0 if plan is None else plan.generation + 1,
        stateless=tuple(stateless),
    )
