"""The CSV of torch.distributed.pipelining: one row per pipeline rank, one cell per pass, such as `2F0`.

The `compute_only` form that `_PipelineScheduleRuntime._load_csv` reads; torch adds the messages by itself. Stages and
micro-batches count from 0 within the pipeline; `B` is a whole backward pass, `I` and `W` its input and its weight part.
"""

import csv
import io

from estimator.interleaved import worker_order
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Pipeline, Plan
from kintsugi.formats.parts import require_whole

SYSTEM = "torch.distributed.pipelining"


def schedule_csv(plan: Plan, pipeline: Pipeline) -> str:
    """The order of passes of one pipeline. O(stages * micro-batches).

    Raises:
        InvalidInputError: a slot is dead: torch knows one rank per stage.
    """
    require_whole(plan, SYSTEM)
    num_workers, num_stages = pipeline.num_workers, len(pipeline.stages)
    if num_workers == num_stages == 1:
        raise InvalidInputError(f"has one stage: there is nothing to schedule for {SYSTEM}", field="stages", value=1)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for rank in range(num_workers):
        order = worker_order(plan.schedule, rank, num_workers, num_stages, pipeline.num_microbatches)
        writer.writerow(step.text(stage) for stage, step in order)
    return text.getvalue()
