"""The reader and the simulation of schedules that torch.distributed.pipelining has; to load it takes a second."""

from torch.distributed.pipelining.schedules import (
    REDUCE_GRAD,
    RESHARD,
    UNSHARD,
    _Action,
    _PipelineScheduleRuntime,
    _simulate_comms_compute,
)


class Runtime(_PipelineScheduleRuntime):
    """torch's runtime as far as reading a schedule goes: no stages, no processes."""

    def __init__(self, num_ranks, num_stages, num_microbatches):
        self.pipeline_order = {}
        self.pp_group_size = num_ranks
        self._num_stages = num_stages
        self._n_microbatches = num_microbatches
        self._stages = []
        self._defer_pp_recv = False


def kind(cell):
    """The kind of an action that is written in a cell."""
    return _Action.from_str(cell).computation_type.value


def simulate(actions, rank_of, num_stages):
    """Raises AssertionError where the actions would wait for ever."""
    return _simulate_comms_compute(actions, rank_of, num_stages)


def lowered(runtime):
    """With messages; torch's own simulation does not know the sharding and reduction actions that it adds."""
    return [
        (rank, [action for action in actions if action.computation_type not in (UNSHARD, RESHARD, REDUCE_GRAD)])
        for rank, actions in runtime.pipeline_order_with_comms.items()
    ]
