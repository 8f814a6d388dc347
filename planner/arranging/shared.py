"""What searches of one decision share: all that is known for certain, whoever the workers are that they ask about."""

from dataclasses import dataclass, field

from estimator.costs import Costs
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.arranging.stepping import Stepper
from planner.pipelines.partition import Partitioner
from planner.pipelines.zero_bubble import partitioner_for


@dataclass(frozen=True, slots=True)
class Shared:
    """Each is made when it is first asked for."""

    _partitioners: dict[tuple[Costs, Schedule, LinkCost, int], Partitioner] = field(default_factory=dict)
    _steppers: dict[tuple[Costs, Schedule, LinkCost], Stepper] = field(default_factory=dict)

    def partitioner(self, costs: Costs, schedule: Schedule, link: LinkCost, num_replicas: int) -> Partitioner:
        """One for another search: it does not know the splits that others have come upon (`Partitioner.afresh`).

        Args:
            costs: of the job's layers.
            schedule: order of passes.
            link: between neighbouring stages.
            num_replicas: holders of each layer, for optimizer state that is shared between them.
        """
        key = costs, schedule, link, num_replicas
        if key not in self._partitioners:
            self._partitioners[key] = partitioner_for(schedule)(costs.sums, schedule, link, num_replicas)
        return self._partitioners[key].afresh()

    def stepper(self, costs: Costs, schedule: Schedule, link: LinkCost) -> Stepper:
        """What steps take over such links between neighbouring stages."""
        key = costs, schedule, link
        if key not in self._steppers:
            self._steppers[key] = Stepper(*key)
        return self._steppers[key]
