"""A plan in any of the formats: one text for all pipelines that are alike."""

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum

from kintsugi.core.plan import Pipeline, Plan
from kintsugi.core.profile import PYDANTIC_CONFIG, Profile
from kintsugi.formats.megatron import layout
from kintsugi.formats.parts import alike, cuts
from kintsugi.formats.schedule_csv import schedule_csv
from kintsugi.formats.torchtitan import module_fqns


class ExportFormat(StrEnum):
    """Whose words."""

    MEGATRON = "megatron"
    """Megatron-LM's `--pipeline-model-parallel-layout`."""
    TORCHTITAN = "torchtitan"
    """TorchTitan's `module_fqns_per_model_part`, as JSON."""
    CSV = "csv"
    """The schedule as torch.distributed.pipelining reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPart:
    """What some pipelines of the plan are called."""

    __pydantic_config__ = PYDANTIC_CONFIG

    pipelines: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A plan in the words of another system."""

    __pydantic_config__ = PYDANTIC_CONFIG

    format: ExportFormat
    parts: tuple[ExportPart, ...]
    """One, or one per kind of pipeline where they differ."""
    note: str
    """What the other system does not take as it is; empty where it does."""


def exported(plan: Plan, profile: Profile, form: ExportFormat) -> Export:
    """`plan` in the words of another system.

    Raises:
        InvalidInputError: these cannot express it; the message says why and what can.
    """
    plan.require_layers(profile.num_layers)
    key, text = _WORDS[form]
    parts = tuple(ExportPart(pipelines=indices, text=text(plan, pipeline, profile)) for indices, pipeline in alike(plan, key))
    return Export(format=form, parts=parts, note=_note(plan, parts))


def _note(plan: Plan, parts: tuple[ExportPart, ...]) -> str:
    if len(parts) > 1:
        return "the pipelines differ: each text is for those it names, and a job of equal replicas can take one of them only"
    if len({pipeline.num_microbatches for pipeline in plan.pipelines}) > 1:
        counts = ", ".join(str(pipeline.num_microbatches) for pipeline in plan.pipelines)
        return f"the pipelines take different numbers of micro-batches ({counts}), which equal replicas do not"
    return ""


def _size(pipeline: Pipeline) -> Hashable:
    return pipeline.num_workers, len(pipeline.stages), pipeline.num_microbatches


_WORDS: dict[ExportFormat, tuple[Callable[[Pipeline], Hashable], Callable[[Plan, Pipeline, Profile], str]]] = {
    ExportFormat.MEGATRON: (cuts, layout),
    ExportFormat.TORCHTITAN: (cuts, lambda plan, pipeline, profile: json.dumps(module_fqns(plan, pipeline, profile))),
    ExportFormat.CSV: (_size, lambda plan, pipeline, _: schedule_csv(plan, pipeline)),
}
"""What tells pipelines apart, and the text of one."""
