"""Write the analytical profiles and the example clusters: `scripts/make_profiles [DIRECTORY]`, by default profiles/.

Every constant stands here with its source; the formulas are those of `estimator.analytical`.
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from estimator.analytical import Accelerator, Decoder, decoder_layers, tensor_parallel
from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.codec import encode
from kintsugi.core.profile import Device, LinkCost, Network, Profile, Provenance, ProvenanceKind, Recovery

MEMORY_EFFICIENCY = 0.8
LINK_EFFICIENCY = 235 / 300
"""NCCL's cap for a ring over A100 NVLinks, 235 of 300 GB/s (src/graph/tuning.cc); assumed of the other links too."""
RING_SECONDS = 8.4e-6
NVLINK_SECONDS = 3.4e-6
NETWORK_SECONDS = 9.6e-6
"""Base and hop latencies of NCCL's own model (src/graph/tuning.cc, ring, simple protocol)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Data-sheet figures of a device and of the host it comes in, per device and direction."""

    device: str
    memory_bytes: int
    flops_per_second: float
    memory_bytes_per_second: float
    nvlink_bytes_per_second: float
    network_bytes_per_second: float


A100 = Machine(
    device="A100-80G",
    memory_bytes=80_000_000_000,
    flops_per_second=312e12,
    memory_bytes_per_second=2.039e12,
    nvlink_bytes_per_second=300e9,
    network_bytes_per_second=25e9,
)
H100 = Machine(
    device="H100-80G",
    memory_bytes=80_000_000_000,
    flops_per_second=989.4e12,
    memory_bytes_per_second=3.35e12,
    nvlink_bytes_per_second=450e9,
    network_bytes_per_second=50e9,
)

LLAMA2_7B = Decoder(
    num_blocks=32,
    hidden=4096,
    heads=32,
    feed_forward=11008,
    gated=True,
    vocabulary=32000,
    positions=0,
    tied_head=False,
    sequence=4096,
)
GPT2_124M = Decoder(
    num_blocks=12,
    hidden=768,
    heads=12,
    feed_forward=3072,
    gated=False,
    vocabulary=50257,
    positions=1024,
    tied_head=True,
    sequence=1024,
)
GPT2_MEDIUM = replace(GPT2_124M, num_blocks=24, hidden=1024, heads=16, feed_forward=4096)

LLAMA3_405B = replace(
    LLAMA2_7B, num_blocks=126, hidden=16384, heads=128, key_value_heads=8, feed_forward=53248, vocabulary=128256, sequence=8192
)

RECOVERY = Recovery(
    # Regrouping: what is left of Chameleon's 11.2 s when 3.0 s, 32.35 % of the transfer, are saved (section V-C, Weight
    # Transfer): 11.2 - 3.0 / 0.3235. Restart: checkpoint-restart takes "more than one minute" (Chaos, section II-A).
    detect_seconds=1.0,
    regroup_seconds=1.93,
    restart_seconds=60.0,
    checkpoint_interval_seconds=1800.0,
    checkpoint_read_bytes_per_second=1e9,
)

SOURCES = (
    "Analytical (estimator.analytical): seconds = FLOPs per layer / (peak * utilisation), or bytes / (memory bandwidth * "
    "{efficiency:g}) for the embedding and the optimizer; bytes per parameter = 2 bf16 weight + 2 bf16 gradient + 12 fp32 Adam "
    "(ZeRO, section 3.1); activations without checkpointing, with fused attention. Peak {peak:g} TFLOP/s dense bf16, "
    "{bandwidth:g} GB/s memory, {nvlink:g} GB/s NVLink and {network:g} GB/s network per device and direction (data sheets); "
    "utilisation {utilisation:g} ({source}). Links: NCCL's src/graph/tuning.cc, 78 % of the peak. Recovery: regrouping from "
    "Chameleon, section V-C; restart from Chaos, section II-A; detection (a 1 s heartbeat) and checkpoints assumed. See "
    "profiles/README.md."
)


def analytical_profile(
    name: str,
    model: Decoder,
    machine: Machine,
    *,
    microbatch_size: int,
    utilisation: float,
    source: str,
    tensor_parallel_degree: int = 1,
) -> Profile:
    """The profile of `model` on `machine` at a published utilisation (0..1)."""
    accelerator = Accelerator(
        flops_per_second=machine.flops_per_second * utilisation,
        memory_bytes_per_second=machine.memory_bytes_per_second * MEMORY_EFFICIENCY,
    )
    return Profile(
        name=name,
        microbatch_size=microbatch_size,
        tensor_parallel_degree=tensor_parallel_degree,
        provenance=Provenance(kind=ProvenanceKind.ANALYTICAL, detail=_provenance(machine, utilisation, source)),
        layers=tensor_parallel(decoder_layers(model, accelerator, microbatch_size=microbatch_size), tensor_parallel_degree),
        device=Device(name=machine.device, memory_bytes=machine.memory_bytes, reserved_bytes=2_000_000_000),
        network=Network(
            intra_host=_link(NVLINK_SECONDS, machine.nvlink_bytes_per_second),
            inter_host=_link(NETWORK_SECONDS, machine.network_bytes_per_second),
        ),
        recovery=RECOVERY,
    )


def _link(hop_seconds: float, bytes_per_second: float) -> LinkCost:
    beta = float(f"{1 / (bytes_per_second * LINK_EFFICIENCY):.6g}")
    return LinkCost(alpha_seconds=round(RING_SECONDS + hop_seconds, 9), beta_seconds_per_byte=beta)


def _provenance(machine: Machine, utilisation: float, source: str) -> str:
    return SOURCES.format(
        efficiency=MEMORY_EFFICIENCY,
        peak=machine.flops_per_second / 1e12,
        bandwidth=machine.memory_bytes_per_second / 1e9,
        nvlink=machine.nvlink_bytes_per_second / 1e9,
        network=machine.network_bytes_per_second / 1e9,
        utilisation=utilisation,
        source=source,
    )


def llama3_405b() -> Profile:
    """Llama 3.1 405B on tensor-parallel groups of 8."""
    return analytical_profile(
        "llama3-405b.h100-80g-tp8",
        LLAMA3_405B,
        H100,
        microbatch_size=1,
        utilisation=0.41,
        source=(
            "The Llama 3 Herd of Models, table 4: 16,384 GPUs, sequence 8192, 41 % of the peak with bubbles, taken as that of the "
            "layers; that run shards its state, this profile does not, so it fits no H100: the scenario sets its memory"
        ),
        tensor_parallel_degree=8,
    )


def profiles() -> tuple[Profile, ...]:
    """The analytical profiles; utilisations are those of MosaicML's llm-foundry for the nearest model and sequence."""
    foundry = "MosaicML llm-foundry, scripts/train/benchmarking/README.md, 8 devices, bf16, no checkpointing: {}".format
    return (
        analytical_profile(
            "llama2-7b.a100-80g",
            LLAMA2_7B,
            A100,
            microbatch_size=1,
            utilisation=0.6423,
            source=foundry("7b, sequence 2048, A100 80GB"),
        ),
        analytical_profile(
            "llama2-7b.h100-80g",
            LLAMA2_7B,
            H100,
            microbatch_size=1,
            utilisation=0.4644,
            source=foundry("7b, sequence 2048, H100 80GB"),
        ),
        analytical_profile(
            "llama2-7b.a100-80g-tp8",
            LLAMA2_7B,
            A100,
            microbatch_size=1,
            utilisation=0.6423,
            source=foundry("7b, sequence 2048, A100 80GB; without tensor parallelism"),
            tensor_parallel_degree=8,
        ),
        llama3_405b(),
        analytical_profile(
            "gpt2-124m.a100-80g",
            GPT2_124M,
            A100,
            microbatch_size=8,
            utilisation=0.4315,
            source=foundry("125m, sequence 1024, A100 80GB"),
        ),
        analytical_profile(
            "gpt2-medium.a100-80g",
            GPT2_MEDIUM,
            A100,
            microbatch_size=8,
            utilisation=0.5051,
            source=foundry("350m, sequence 1024, A100 80GB"),
        ),
    )


def clusters() -> tuple[Cluster, ...]:
    """Four hosts of eight workers in two racks; and eight hosts with a slow worker and a slow link."""
    hosts = Cluster.uniform(32, workers_per_host=8)
    racked = tuple(replace(w, failure_domains=(f"rack{index // 16}",)) for index, w in enumerate(hosts.workers))
    alone = Cluster.uniform(8)
    uneven = tuple(replace(w, speed_ratio=0.7) if w.id == "w05" else w for w in alone.workers)
    slow_link = HostLink(between=("h02", "h03"), alpha_seconds=1e-4, beta_seconds_per_byte=8e-10)
    return (
        Cluster(name="4-hosts-32-workers", workers=racked),
        Cluster(name="8-hosts-slow-worker-slow-link", workers=uneven, links=(slow_link,)),
    )


def rendered(noun: Profile | Cluster) -> str:
    """JSON with one line per field, and one line per layer, worker or link."""
    lines = []
    for field, value in encode(noun).items():
        if isinstance(value, list) and value:
            text = "[\n    " + ",\n    ".join(json.dumps(item) for item in value) + "\n  ]"
        else:
            text = json.dumps(value)
        lines.append(f"  {json.dumps(field)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def files() -> dict[str, str]:
    """Text of every generated file by its path under profiles/."""
    return {
        **{f"models/{profile.name}.json": rendered(profile) for profile in profiles()},
        **{f"clusters/{cluster.name}.json": rendered(cluster) for cluster in clusters()},
    }


def main(directory: Path) -> None:
    """Write every file under `directory`."""
    for name, text in files().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "profiles"))
