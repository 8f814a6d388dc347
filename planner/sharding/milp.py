"""The papers' integer programs, solved by HiGHS (scipy): baselines that show what the closed form saves.

Times are scaled by the makespan of the even assignment, so that the solver's tolerances are relative ones. The program's
own objective counts neighbours that send nothing, as the papers write it; the makespan given back does not.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from kintsugi.core.errors import UnavailableError
from planner.sharding.baselines import even_assignment
from planner.sharding.problem import ExactTimes, ShardAssignment, ShardProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedProgram:
    """What the solver found, in which time, and whether it proved that nothing is better."""

    assignment: ShardAssignment
    solve_seconds: float
    """Time within the solver, building the program not included."""
    proven: bool


def solve_p3(problem: ShardProblem, *, time_limit_seconds: float = math.inf) -> SolvedProgram:
    """P3 with a binary x_uj per neighbour and shard (multi-party paper, equations 18-23): `K m + 1` variables.

    With a minimum of 0 it is the edge paper's P3 (equations 14-18). HiGHS looks at its time limit between its phases only;
    programs of more than a few ten thousand variables run over it.

    Raises:
        UnavailableError: no assignment was found within the time limit.
    """
    sources, shards = len(problem.neighbors), problem.num_shards
    totals = sparse.kron(sparse.eye_array(sources), np.ones((1, shards)), format="csr")  # row u sums x_uj over j
    once = sparse.kron(np.ones((1, sources)), sparse.eye_array(shards), format="csr")  # row j sums x_uj over u
    return _solve(problem, totals=totals, once=once, demand=1, time_limit_seconds=time_limit_seconds)


def solve_p4(problem: ShardProblem, *, time_limit_seconds: float = math.inf) -> SolvedProgram:
    """P4 with a whole number n_u per neighbour (multi-party paper, equations 24 and 25): `m + 1` variables.

    Raises:
        UnavailableError: no assignment was found within the time limit.
    """
    sources = len(problem.neighbors)
    totals = sparse.eye_array(sources, format="csr")
    once = sparse.csr_array(np.ones((1, sources)))
    return _solve(problem, totals=totals, once=once, demand=problem.num_shards, time_limit_seconds=time_limit_seconds)


def _solve(
    problem: ShardProblem, *, totals: sparse.csr_array, once: sparse.csr_array, demand: int, time_limit_seconds: float
) -> SolvedProgram:
    """Minimise theta over (x, theta) with `totals @ x` shards per neighbour and `once @ x == demand`."""
    times = ExactTimes.of(problem)
    scale = even_assignment(problem).makespan_seconds or 1.0
    offsets = np.array([offset / (1 << times.shift) for offset in times.offsets]) / scale
    costs = np.array([cost / (1 << times.shift) for cost in times.costs]) / scale
    num_variables = totals.shape[1]
    finish = sparse.hstack([sparse.diags_array(costs) @ totals, -np.ones((len(costs), 1))])
    constraints = [
        LinearConstraint(finish, ub=-offsets),
        LinearConstraint(_padded(once), lb=demand, ub=demand),
        LinearConstraint(_padded(totals), lb=problem.min_shards_per_neighbor),
    ]
    start = time.perf_counter()
    result = milp(
        np.append(np.zeros(num_variables), 1.0),
        integrality=np.append(np.ones(num_variables), 0),
        bounds=Bounds(0, np.append(np.full(num_variables, demand), np.inf)),
        constraints=constraints,
        options={"mip_rel_gap": 0.0} | ({"time_limit": time_limit_seconds} if math.isfinite(time_limit_seconds) else {}),
    )
    elapsed = time.perf_counter() - start
    if result.x is None:
        raise UnavailableError(f"the solver found no assignment: {result.message}", field="time_limit_seconds")
    counts = [round(count) for count in totals @ np.round(result.x[:-1])]
    return SolvedProgram(assignment=times.assignment(counts), solve_seconds=elapsed, proven=result.status == 0)


def _padded(matrix: sparse.csr_array) -> sparse.csr_array:
    """`matrix` with an empty column for theta."""
    return sparse.hstack([matrix, sparse.csr_array((matrix.shape[0], 1))], format="csr")
