"""Small simulations: what the service can afford to answer while others wait."""

import time

from api.schemas import SimulationReply, SimulationRequest
from kintsugi.core.errors import InvalidInputError, told_as
from kintsugi.simulator.policies import chosen, require_schedule
from kintsugi.simulator.scenario import Scenario, load, meant, names, varied
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
    scenario, policies = _scenario_of(request), chosen(request.policies)
    require_schedule(policies, scenario.settings.schedule)
    _require_small(scenario, request)
    end = time.monotonic() + limit_seconds

    def watch() -> None:
        if time.monotonic() > end:
            limit = f"the {limit_seconds:g} s of KINTSUGI_MAX_SIMULATION_SECONDS"
            message = f"takes longer than {limit}; ask for fewer seeds or policies, or {ELSEWHERE}"
            raise InvalidInputError(message, field="seeds", value=request.seeds)

    values = tuple(request.values.items())
    num_runs = request.seeds if scenario.is_by_chance() else 1
    results = []
    with told_as({"faults.num_failures": "values.faults.num_failures"}):
        for policy in policies:
            adviser = adviser_of(scenario, policy)
            for seed in range(num_runs):
                watch()
                results.append(Result(values, run_with(adviser, scenario, seed, watch)))
    return SimulationReply(scenario=request.scenario, rows=summarised(results))


def _scenario_of(request: SimulationRequest) -> Scenario:
    """The scenario with the request's values; what is wrong with one of them is told of it by name."""
    scenario = load(request.scenario)
    try:
        return varied(scenario, dict(request.values))
    except InvalidInputError as error:
        is_unknown = error.field == "vary"
        sent = str(error.value) if is_unknown else next((n for n in request.values if meant(n) == error.field), error.field)
        raise InvalidInputError(error.message, field=f"values.{sent}", value=request.values.get(sent, error.value)) from error


def _require_small(scenario: Scenario, request: SimulationRequest) -> None:
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
            message = f"makes {field} {value:g}, which is more than {most}; {ELSEWHERE}"
            raise InvalidInputError(message, field="values", value=dict(request.values))
