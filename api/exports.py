"""A stored plan for other tools: its schedule as a trace, and itself in the words of other systems."""

from api.decisions import planning
from api.records import Records
from estimator.trace import dumps, predicted_group, trace_document
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.job import Snapshot
from kintsugi.core.plan import Plan
from kintsugi.formats.exports import Export, ExportFormat, exported

MOST_PASSES = 100_000
"""Forward and backward passes in one trace: some 100 MB of it."""


def plan_trace(records: Records, job: str, generation: int) -> str:
    """The predicted schedule of a generation's plan as a Chrome trace.

    Raises:
        NotFoundError: there is no such job or generation.
        InvalidInputError: the plan is too large for one answer.
    """
    plan, snapshot = _decided(records, job, generation)
    passes = 2 * sum(pipeline.num_microbatches * len(pipeline.stages) for pipeline in plan.pipelines)
    if passes > MOST_PASSES:
        message = f"has a plan of {passes} passes, more than {MOST_PASSES}: run `kintsugi trace` on the plan and the profile"
        raise InvalidInputError(message, field="generation", value=generation)
    group = predicted_group(plan, snapshot.profile, snapshot.cluster)
    return dumps(trace_document([group], job=job, generation=str(generation), kind="predicted"))


def plan_export(records: Records, job: str, generation: int, form: ExportFormat) -> Export:
    """A generation's plan in the words of another system.

    Raises:
        NotFoundError: there is no such job or generation.
        InvalidInputError: these words cannot express the plan.
    """
    plan, snapshot = _decided(records, job, generation)
    return exported(plan, snapshot.profile, form)


def _decided(records: Records, job: str, generation: int) -> tuple[Plan, Snapshot]:
    """The plan of a generation, and what it was decided from."""
    decision = records.decision(job, generation)
    return decision.wording.plan(), planning.restored(records.store, records.state(job).job, generation)
