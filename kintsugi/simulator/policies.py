"""Every policy by name."""

from collections.abc import Callable, Sequence

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Policy, Schedule
from kintsugi.simulator.baselines.bamboo import Bamboo
from kintsugi.simulator.baselines.chameleon import Chameleon
from kintsugi.simulator.baselines.checkpoint_restart import CheckpointRestart
from kintsugi.simulator.baselines.hot_spares import HotSpares
from kintsugi.simulator.baselines.oobleck import Oobleck
from kintsugi.simulator.baselines.parcae import Parcae
from kintsugi.simulator.baselines.recycle import ReCycle
from kintsugi.simulator.baselines.varuna import Varuna
from kintsugi.simulator.job import Job
from kintsugi.simulator.planned import Planned
from kintsugi.simulator.running import Strategy

KINTSUGI = "kintsugi"

FREE_SCHEDULE = "kintsugi-auto"
"""The planner may choose the schedule of passes, too; all others keep the scenario's."""

PINNED: dict[str, Callable[[Job], Strategy]] = {
    "only-rerouting": lambda job: Planned(job, (Policy.SPARE_SUBSTITUTION, Policy.DATA_REROUTING), name="only-rerouting"),
    "only-dynamic": lambda job: Planned(job, (Policy.DYNAMIC_PARALLELISM,), name="only-dynamic"),
    "only-restart": lambda job: Planned(job, (Policy.CHECKPOINT_RESTART,), name="only-restart"),
}
"""Kintsugi's planner held to one kind of answer: what one could have settled for beforehand.

Rerouting fills dead slots when workers come.
"""

PUBLISHED: dict[str, Callable[[Job], Strategy]] = {
    "chameleon": Chameleon,
    "oobleck": Oobleck,
    "recycle": ReCycle,
    "bamboo": Bamboo,
    "varuna": Varuna,
    "parcae": Parcae,
    "checkpoint-restart": CheckpointRestart,
    "hot-spares": HotSpares,
}

_STAGE_EACH = frozenset({"chameleon", "oobleck", "recycle"})
"""Published for workers that hold one stage each, in the order of their pipeline."""

ALL: dict[str, Callable[[Job], Strategy]] = {
    KINTSUGI: Planned,
    FREE_SCHEDULE: lambda job: Planned(job, schedule=Schedule.AUTO, name=FREE_SCHEDULE),
    **PUBLISHED,
    **PINNED,
}
"""In the order of tables and figures."""


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The names of policies, in the order of `ALL`; "all", "published" and "pinned" stand for several.

    Raises:
        InvalidInputError: there is no such policy.
    """
    groups = {"all": tuple(ALL), "published": tuple(PUBLISHED), "pinned": tuple(PINNED)}
    wanted = {name for given in names for name in groups.get(given, (given,))}
    for name in sorted(wanted - set(ALL)):
        raise InvalidInputError(f"is no policy; known: {', '.join((*ALL, *groups))}", field="policies", value=name)
    return tuple(name for name in ALL if name in wanted)


def require_schedule(names: Sequence[str], schedule: Schedule) -> None:
    """Require policies that can be simulated under a schedule of passes.

    Raises:
        InvalidInputError: some are published for workers with one stage each alone, and under this one they may hold several.
    """
    others = [name for name in names if name in _STAGE_EACH]
    if others and (schedule.is_interleaved or schedule is Schedule.AUTO):
        message = f"are published for workers that hold one stage each, and are not simulated under schedule {schedule.value!r}"
        way_out = "name other policies, or another schedule"
        raise InvalidInputError(f"{', '.join(others)} {message}: {way_out}", field="policies", value=others)
