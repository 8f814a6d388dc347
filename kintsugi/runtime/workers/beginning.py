"""That all holders of a layer begin with the same values: nothing would bring together later on what begins apart."""

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Plan
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.workers.replicas import Comparison, slots_of
from kintsugi.runtime.workers.state import ModelState
from restorer.groups import Groups


def require_alike(worker: str, job: TrainingJob, state: ModelState, plan: Plan, groups: Groups) -> None:
    """Require that the layers held here are what they are on their other holders; all workers of the plan ask at once.

    Raises:
        InvalidInputError: with the first layer that is not, on all workers alike.
        CommunicationError: a worker is gone, or the attempt was called off.
    """
    comparison = Comparison(worker, plan.workers, slots_of(plan))
    for layer in comparison.verdict(comparison.heard(state, groups)).layers:
        raise _apart(job.layers[layer].name)


def _apart(layer: str) -> InvalidInputError:
    return InvalidInputError(
        f"layer {layer!r} does not begin with the same values on all of its workers: draw them from the generators of torch, "
        "Python or NumPy, which are seeded before it is built, and leave no memory as it comes (torch.empty)",
        field="layers",
        value=layer,
    )
