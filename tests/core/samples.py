"""Hypothesis strategies for the nouns, and small valid instances."""

import itertools
from dataclasses import replace

from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster, HostLink, Worker
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.membership import HOST_EVENTS, LINK_EVENTS, WORKER_EVENTS, Event, EventKind
from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Policy, Reduction, Route, Schedule, Stage
from kintsugi.core.profile import (
    Device,
    LayerMeasurement,
    LayerProfile,
    LinkCost,
    Network,
    OptimizerSharding,
    Profile,
    Provenance,
    ProvenanceKind,
    Recovery,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12)
SECONDS = st.floats(0, 3600) | st.integers(0, 3600)
BYTES = st.integers(0, 2**47)
RATES = st.none() | st.floats(1e3, 1e12)
LINKS = st.builds(LinkCost, alpha_seconds=st.floats(0, 10), beta_seconds_per_byte=st.floats(0, 1e-2))
LAYERS = st.builds(
    LayerProfile,
    name=NAMES,
    forward_seconds=SECONDS,
    backward_input_seconds=SECONDS,
    backward_weight_seconds=SECONDS,
    optimizer_seconds=SECONDS,
    parameter_bytes=BYTES,
    gradient_bytes=BYTES,
    optimizer_bytes=BYTES,
    activation_bytes=BYTES,
    output_bytes=BYTES,
)
RECOVERIES = st.builds(
    Recovery,
    detect_seconds=SECONDS,
    regroup_seconds=SECONDS,
    restart_seconds=SECONDS,
    checkpoint_interval_seconds=st.none() | st.floats(1, 1e6),
    checkpoint_read_bytes_per_second=RATES,
)
UNMEASURED = st.builds(
    Profile,
    name=NAMES,
    microbatch_size=st.integers(1, 64),
    tensor_parallel_degree=st.integers(1, 16),
    optimizer_sharding=st.sampled_from(OptimizerSharding),
    provenance=st.builds(Provenance, kind=st.sampled_from(ProvenanceKind), detail=st.text(max_size=20)),
    layers=st.lists(LAYERS, min_size=1, max_size=5, unique_by=lambda layer: layer.name)
    .map(tuple)
    .filter(lambda layers: any(layer.forward_seconds + layer.backward_seconds for layer in layers)),
    device=st.builds(Device, name=NAMES, memory_bytes=st.integers(10**9, 10**12), reserved_bytes=st.integers(0, 10**9 - 1)),
    network=st.builds(
        Network,
        intra_host=LINKS,
        inter_host=LINKS,
        host_ingress_bytes_per_second=RATES,
        host_egress_bytes_per_second=RATES,
    ),
    recovery=RECOVERIES,
)


@st.composite
def measured_profiles(draw: st.DrawFn) -> Profile:
    """That say what they were measured with."""
    profile = draw(UNMEASURED)
    ratios = st.lists(st.floats(0, 10), min_size=profile.num_layers, max_size=profile.num_layers).map(tuple)
    measurement = draw(
        st.builds(
            LayerMeasurement,
            driver=st.none() | NAMES,
            recomputes_activations=st.booleans(),
            num_samples=st.integers(1, 100),
            spread_ratios=ratios,
        )
    )
    return replace(profile, provenance=replace(profile.provenance, measurement=measurement))


PROFILES = UNMEASURED | measured_profiles()
WORKERS = st.builds(
    Worker,
    id=NAMES,
    host=st.sampled_from(["h00", "h01", "h02"]),
    speed_ratio=st.floats(0.01, 100),
    memory_bytes=st.none() | st.integers(10**6, 10**12),
    failure_domains=st.lists(NAMES, max_size=2, unique=True).map(tuple),
)
CLUSTERS = st.builds(
    Cluster, name=NAMES, workers=st.lists(WORKERS, min_size=1, max_size=6, unique_by=lambda worker: worker.id).map(tuple)
)
SETTINGS = st.builds(
    JobSettings,
    num_microbatches=st.integers(1, 65_536),
    ranges=st.builds(
        Ranges,
        min_dp=st.integers(1, 4),
        max_dp=st.none() | st.integers(4, 64),
        min_pp=st.integers(1, 4),
        max_pp=st.none() | st.integers(4, 64),
    ),
    schedule=st.sampled_from(Schedule),
    mtbf_seconds=st.floats(1, 1e9),
    policy=st.none() | st.sampled_from(Policy),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Valid plans: some asymmetric, some with a dead slot that its peers of the same layers stand in for."""
    num_layers = draw(st.integers(1, 6))
    schedule = draw(st.sampled_from(Schedule))
    pipelines, number = [], 0
    for _ in range(draw(st.integers(1, 3))):
        cuts = draw(st.sets(st.integers(1, max(1, num_layers - 1)), max_size=num_layers - 1)) if num_layers > 1 else set()
        edges = [0, *sorted(cuts), num_layers]
        lengths = [n for n in range(1, len(edges)) if (len(edges) - 1) % n == 0]
        length = draw(st.sampled_from(lengths)) if schedule is Schedule.INTERLEAVED else len(edges) - 1
        stages = [
            Stage(layer_start=start, layer_stop=stop, worker=f"w{number + n % length:02d}")
            for n, (start, stop) in enumerate(itertools.pairwise(edges))
        ]
        number += length
        pipelines.append(Pipeline(num_microbatches=draw(st.integers(1, 4)), stages=tuple(stages)))
    idle = draw(st.lists(st.sampled_from(["spare0", "spare1"]), unique=True))
    healthy = Plan(
        generation=draw(st.integers(0, 100)),
        policy=draw(st.sampled_from(Policy)),
        schedule=schedule,
        pipelines=tuple(pipelines),
        idle_workers=tuple(IdleWorker(worker=worker, reason="slower with it") for worker in idle),
    )
    rounds = tuple(
        (Reduction(layers=(layer,), workers=healthy.holders[layer], num_bytes=draw(BYTES)),) for layer in range(num_layers)
    )
    return Plan(
        generation=healthy.generation,
        policy=healthy.policy,
        schedule=healthy.schedule,
        pipelines=healthy.pipelines,
        rounds=rounds,
        idle_workers=healthy.idle_workers,
    )


def rerouted(num_microbatches: int = 2) -> Plan:
    """Two pipelines of two stages; the second pipeline's first stage is dead and w00 stands in."""

    def pipeline(*workers: str | None) -> Pipeline:
        stages = (Stage(layer_start=2 * n, layer_stop=2 * n + 2, worker=worker) for n, worker in enumerate(workers))
        return Pipeline(num_microbatches=num_microbatches, stages=tuple(stages))

    routes = (Route(microbatch=num_microbatches + n, pipeline=1, stage=0, worker="w00") for n in range(num_microbatches))
    return Plan(policy=Policy.DATA_REROUTING, pipelines=(pipeline("w00", "w01"), pipeline(None, "w03")), routes=tuple(routes))


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Valid events of every kind about the hosts and workers of `Cluster.uniform(6, workers_per_host=2)`."""
    kind = draw(st.sampled_from(EventKind))
    subject: dict[str, object] = {}
    if kind in WORKER_EVENTS:
        subject["worker"] = f"w{draw(st.integers(0, 5)):02d}"
    if kind in HOST_EVENTS:
        subject["host"] = f"h{draw(st.integers(0, 2)):02d}"
    if kind in LINK_EVENTS:
        subject["link"] = tuple(draw(st.permutations(["h00", "h01", "h02"]))[:2])
        subject["alpha_seconds"] = draw(st.none() | st.floats(0, 1))
        subject["beta_seconds_per_byte"] = draw(st.none() | st.floats(0, 1e-3))
    speed = st.floats(0.1, 10) if kind is EventKind.STRAGGLER else st.none() | st.floats(0.1, 10)
    return Event(kind=kind, id=draw(NAMES), generation=draw(st.integers(0, 10)), speed_ratio=draw(speed), **subject)


LINK = HostLink(between=("h00", "h01"), alpha_seconds=1e-4, beta_seconds_per_byte=1e-9)
