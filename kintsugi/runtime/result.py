"""What a run came to."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kintsugi.core.decision import Decision, StateKind
from kintsugi.runtime.checkpoints.advice import CheckpointRecord, IntervalAdvice
from kintsugi.runtime.checkpoints.keeper import Keeper
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.control.recovery import RecoveryTimeline
from kintsugi.runtime.messages import Collect, Collected
from kintsugi.runtime.workers.state import ModelState
from restorer.packing import pack, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Losses, times, the trained parameters, and how every failure was mended."""

    losses: tuple[float, ...]
    """Mean over the global batch, by step. Shape [steps]."""
    step_seconds: tuple[float, ...]
    """Of the slowest worker, by step. Shape [steps]."""
    parameters: dict[str, Tensor]
    """By canonical name, on the CPU."""
    digests: dict[int, dict[str, str]]
    """SHA-256 of each layer's state (parameters, buffers, optimizer) by holder: equal where replicas are bitwise equal."""
    recoveries: tuple[RecoveryTimeline, ...]
    decisions: tuple[Decision, ...]
    microbatches: tuple[tuple[int, ...], ...] = ()
    """How often the loss of each micro-batch counted, by step: once each. Shape [steps][micro-batches]."""
    checkpoints: tuple[CheckpointRecord, ...] = ()
    """What every checkpoint of this life cost."""
    interval: IntervalAdvice | None = None
    """How often checkpoints are best written, from what was measured."""

    @property
    def has_equal_replicas(self) -> bool:
        """Whether all holders of every layer hold bitwise the same state."""
        return all(len(set(by_holder.values())) == 1 for by_holder in self.digests.values())


def run_result(
    progress: Progress,
    collected: Mapping[str, Collected],
    recoveries: Sequence[RecoveryTimeline],
    decisions: Sequence[Decision],
    keeper: Keeper,
) -> RunResult:
    """What came of a run whose steps are all done."""
    steps = range(len(progress.losses))
    return RunResult(
        losses=tuple(progress.losses[step] for step in steps),
        step_seconds=tuple(progress.seconds(step) for step in steps),
        parameters=merged_parameters(collected),
        digests=merged_digests(collected),
        recoveries=tuple(recoveries),
        decisions=tuple(decisions),
        microbatches=tuple(progress.microbatches[step] for step in steps),
        checkpoints=tuple(keeper.costs.records),
        interval=keeper.costs.advice,
    )


def collected(state: ModelState | None, message: Collect) -> Collected:
    """What a worker holds: a digest of each layer's whole state, and its packed parameters where asked."""
    digests, parameters = {}, {}
    for layer in state.modules if state is not None else ():
        assert state is not None
        header, payload = pack(state.export(layer, StateKind.PARAMETER))
        moments_header, moments = pack(state.export(layer, StateKind.OPTIMIZER))
        values = payload.numpy().tobytes()
        digests[layer] = hashlib.sha256(b"".join((header, values, moments_header, moments.numpy().tobytes()))).hexdigest()
        if layer in message.layers:
            parameters[layer] = (header, values)
    return Collected(message.attempt, digests, parameters)


def merged_parameters(collected: Mapping[str, Collected]) -> dict[str, Tensor]:
    """All workers' parameters and buffers by canonical name."""
    parameters: dict[str, Tensor] = {}
    for answer in collected.values():
        for header, payload in answer.parameters.values():
            flat = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else torch.empty(0, dtype=torch.uint8)
            parameters |= {name: value for (name, _), value in unpack(header, flat).items()}
    return parameters


def merged_digests(collected: Mapping[str, Collected]) -> dict[int, dict[str, str]]:
    """Digests by layer and holder."""
    digests: dict[int, dict[str, str]] = {}
    for worker, answer in collected.items():
        for layer, digest in answer.digests.items():
            digests.setdefault(layer, {})[worker] = digest
    return digests
