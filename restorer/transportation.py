"""The transportation problem between kinds of workers and kinds of slots, exactly and in whole numbers."""

from typing import TypeAlias

import numpy as np
from ortools.graph.python.min_cost_flow import SimpleMinCostFlow
from scipy.optimize import linear_sum_assignment

from estimator.arrays import Ints, Mask

Costs: TypeAlias = Ints
Counts: TypeAlias = Ints

UNREACHED = np.int64(2**61)
"""Above every cost: the distance of what no path leads to."""


def transport(costs: Costs, supply: Counts, demand: Counts, allowed: Mask) -> Counts | None:
    """How many of each row go to each column at the least total cost, all demand met; None where that cannot be.

    A minimum-cost flow, so the counts are whole numbers and the cost is exact.

    Args:
        costs: of one from row i in column j, at least 0, shape [rows, columns].
        supply: how many there are of each row, shape [rows].
        demand: how many each column takes, shape [columns].
        allowed: whether row i may go to column j, shape [rows, columns].
    """
    rows, columns = np.nonzero(allowed)
    flow = SimpleMinCostFlow()
    most = np.minimum(supply[rows], demand[columns])
    arcs = flow.add_arcs_with_capacity_and_unit_cost(rows, columns + len(supply), most, costs[rows, columns])
    flow.set_nodes_supplies(np.arange(len(supply) + len(demand)), np.concatenate([supply, -demand]))
    status = flow.solve_max_flow_with_min_cost()
    if status == SimpleMinCostFlow.BAD_COST_RANGE:
        return _one_by_one(costs, supply, demand, allowed)
    if flow.maximum_flow() < demand.sum():
        return None
    counts = np.zeros(costs.shape, dtype=np.int64)
    counts[rows, columns] = flow.flows(arcs)
    return counts


def tight_pairs(costs: Costs, counts: Counts, allowed: Mask) -> Mask:
    """The pairs that least-cost answers may use: any answer within them that uses up all rows and columns costs the least.

    Shortest paths from `counts` give prices (Bellman-Ford); a pair is tight where its cost is the difference of its prices,
    and by complementary slackness nothing else is ever used.

    Args:
        costs: as given to `transport`.
        counts: a least-cost answer that uses up all rows and columns.
        allowed: as given to `transport`.
    """
    forward = np.where(allowed, costs, UNREACHED)
    backward = np.where(counts > 0, -costs, UNREACHED)
    rows, columns = np.zeros(costs.shape[0], dtype=np.int64), np.zeros(costs.shape[1], dtype=np.int64)
    while True:
        nearer_columns = np.minimum(columns, (rows[:, None] + forward).min(axis=0))
        nearer_rows = np.minimum(rows, (nearer_columns[None, :] + backward).min(axis=1))
        if np.array_equal(nearer_columns, columns) and np.array_equal(nearer_rows, rows):
            result: Mask = allowed & (rows[:, None] + costs == columns[None, :])
            return result
        rows, columns = nearer_rows, nearer_columns


def _one_by_one(costs: Costs, supply: Counts, demand: Counts, allowed: Mask) -> Counts | None:
    """The same by assignment of single workers, for costs beyond the range of the flow's whole numbers."""
    singles, slots = np.repeat(np.arange(len(supply)), supply), np.repeat(np.arange(len(demand)), demand)
    prices = np.where(allowed, costs.astype(np.float64), np.inf)[singles][:, slots]
    try:
        chosen, taken = linear_sum_assignment(prices)
    except ValueError:  # no assignment avoids what is not allowed
        return None
    counts = np.zeros(costs.shape, dtype=np.int64)
    np.add.at(counts, (singles[chosen], slots[taken]), 1)
    return counts
