"""Small simulations: what the service can afford to answer while others wait."""

import time

from api.schemas import SimulationReply, SimulationRequest
from kintsugi.core.errors import InvalidInputError
from kintsugi.simulator.policies import chosen
from kintsugi.simulator.scenario import Scenario, load, names, varied
from kintsugi.simulator.summary import summarised
from kintsugi.simulator.sweep import Result, adviser_of, run_with

MOST_WORKERS, MOST_MICROBATCHES, MOST_FAILURES = 4_096, 65_536, 10_000
"""Limits on a job that the service simulates."""

ELSEWHERE = "run `kintsugi simulate` for larger ones"


def simulated(request: SimulationRequest, limit_seconds: float) -> SimulationReply:
    """What becomes of the job under each policy.

    Raises:
        InvalidInputError: there is no such scenario, policy or number, the job is too large, or it takes longer than the limit.
    """
    if request.scenario not in names():
        raise InvalidInputError(f"must be one of {', '.join(names())}", field="scenario", value=request.scenario)
    scenario = varied(load(request.scenario), dict(request.values))
    _require_small(scenario)
    end = time.monotonic() + limit_seconds

    def watch() -> None:
        if time.monotonic() > end:
            message = f"takes longer than {limit_seconds:g} s; ask for fewer seeds or policies, or {ELSEWHERE}"
            raise InvalidInputError(message, field="seeds", value=request.seeds)

    values = tuple(request.values.items())
    results = []
    for policy in chosen(request.policies):
        adviser = adviser_of(scenario, policy)
        for seed in range(request.seeds):
            watch()
            results.append(Result(values, run_with(adviser, scenario, seed, watch)))
    return SimulationReply(scenario=request.scenario, rows=summarised(results))


def _require_small(scenario: Scenario) -> None:
    workers, duration = scenario.num_workers + scenario.spares, scenario.duration_seconds
    failures = duration / scenario.faults.mtbf_seconds(workers, scenario.workers_per_host, duration)
    if scenario.faults.straggler_mtbf_seconds is not None:
        failures += workers * duration / scenario.faults.straggler_mtbf_seconds
    sizes = {
        "num_workers": (workers, MOST_WORKERS),
        "settings.num_microbatches": (scenario.settings.num_microbatches, MOST_MICROBATCHES),
        "faults": (failures, MOST_FAILURES),
    }
    for field, (value, most) in sizes.items():
        if value > most:
            raise InvalidInputError(f"is more than {most}; {ELSEWHERE}", field=field, value=value)
