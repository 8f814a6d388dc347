"""Megatron-LM's `--pipeline-model-parallel-layout`: which layers each (virtual) pipeline stage holds.

The grammar, as `megatron/core/transformer/pipeline_parallel_layer_layout.py` reads it: `E` is the embedding, `t` a decoder
layer, `m` multi-token prediction, `L` the loss with all that stands before it after the last layer; `|` parts the stages;
`x*n` repeats a letter and `(...)*n` whatever the parentheses hold, which may not nest; commas are for the eye. Stage s is on
pipeline rank s mod P, as it is here.
"""

import re
from collections.abc import Sequence
from itertools import groupby

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Pipeline, Plan, Schedule
from kintsugi.core.profile import Profile
from kintsugi.formats.modules import ModuleKind, module_kinds
from kintsugi.formats.parts import require_whole

LETTERS = {ModuleKind.EMBEDDING: "E", ModuleKind.DECODER: "t", ModuleKind.PREDICTION: "m", ModuleKind.HEAD: "L"}
SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
_SHORTEST_RUN = 3


def layout(plan: Plan, pipeline: Pipeline, profile: Profile) -> str:
    """The layout of one pipeline; an embedding or head that is no layer of the profile belongs to its first or last stage.

    Raises:
        InvalidInputError: Megatron-LM cannot run the pipeline; the message says why.
    """
    require_whole(plan, "Megatron-LM")
    _require_schedule(plan, pipeline)
    letters = [LETTERS[kind] for kind in module_kinds(profile)]
    stages = [re.sub("L+", "L", "".join(letters[s.layer_start : s.layer_stop])) for s in pipeline.stages]
    stages[0] = stages[0] if stages[0].startswith("E") else f"E{stages[0]}"
    stages[-1] = stages[-1] if stages[-1].endswith("L") else f"{stages[-1]}L"
    text = _shortened(stages)
    require_valid(text, pipeline.num_workers)
    return text


def stages_of(text: str) -> tuple[str, ...]:
    """The letters of every stage that a layout names, repetitions carried out.

    Raises:
        InvalidInputError: the text is no layout.
    """
    plain = text.replace(",", "")
    plain = re.sub(r"\(([^()]+)\)\*(\d+)", lambda found: found[1] * int(found[2]), plain)
    plain = re.sub(r"([EtmL|])\*(\d+)", lambda found: found[1] * int(found[2]), plain)
    if unknown := re.search(r"[^EtmL|]", plain):
        raise InvalidInputError(f"has {unknown[0]!r} where one of E, t, m, L or | belongs", field="layout", value=text)
    return tuple(plain.split("|"))


def require_valid(text: str, num_workers: int) -> None:
    """Require what Megatron-LM does of a layout for `num_workers` pipeline ranks.

    Raises:
        InvalidInputError: it would refuse the layout.
    """
    stages = stages_of(text)
    whole = "".join(stages)
    last = len(stages) - num_workers
    predicting = [index for index, stage in enumerate(stages) if "m" in stage]
    problem = (
        f"has {len(stages)} stages, no multiple of {num_workers} pipeline ranks"
        if len(stages) % num_workers
        else "must begin with the embedding, and hold it once"
        if whole.find("E") != 0 or whole.count("E") != 1
        else "must end with the loss, and hold it once: norm, head and loss cannot be on different stages"
        if whole.find("L") != len(whole) - 1
        else "must have multi-token prediction after all decoder layers, within one stage that is the last of its rank"
        if "t" in whole.partition("m")[2] or len(predicting) > 1 or any(at < last for at in predicting)
        else None
    )
    if problem is not None:
        raise InvalidInputError(problem, field="layout", value=text)


def _require_schedule(plan: Plan, pipeline: Pipeline) -> None:
    if plan.schedule not in SCHEDULES:
        known = " and ".join(schedule.value for schedule in SCHEDULES)
        raise InvalidInputError(f"is no schedule of Megatron-LM, which has {known}", field="schedule", value=plan.schedule.value)
    if pipeline.stages_per_worker > 1 and pipeline.num_microbatches % pipeline.num_workers:
        raise InvalidInputError(
            f"must be a multiple of the {pipeline.num_workers} pipeline ranks for Megatron-LM's interleaved schedule",
            field="num_microbatches",
            value=pipeline.num_microbatches,
        )


def _shortened(stages: Sequence[str]) -> str:
    """Runs of letters as `t*4`, runs of equal stages as `(t*4|)*3`; the last stage is not followed by a bar."""
    parts = []
    for letters, run in groupby(stages[:-1]):
        count, text = len(list(run)), f"{_repeated(letters)}|"
        parts.append(f"({text})*{count}" if count > 1 else text)
    return "".join((*parts, _repeated(stages[-1])))


def _repeated(letters: str) -> str:
    runs = [(letter, len(list(run))) for letter, run in groupby(letters)]
    return "".join(f"{letter}*{count}" if count >= _SHORTEST_RUN else letter * count for letter, count in runs)
