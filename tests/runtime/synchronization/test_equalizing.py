"""Before workers step together, their optimizers keep the same, whatever each of them kept."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from kintsugi.runtime.synchronization import (
    ModelAveraging,
    PairwiseAveraging,
    SchedulePolicy,
    SynchronizedOptimizer,
    SynchronousSGD,
)
from tests.core.refusals import refuses
from tests.runtime.synchronization.workers import crew, is_equal, model_of, train_step


class Forked(nn.Module):
    """Uses one of two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model_of()
        self.ways = nn.ParameterList(torch.ones(4, dtype=torch.float64) for _ in range(2))
        self.way = 0

    def forward(self, inputs):
        return self.net(inputs * self.ways[self.way])


def states(optimizer, model) -> list[dict]:
    return [dict(optimizer.state.get(parameter, {})) for parameter in model.parameters()]


def are_same(one: list[dict], other: list[dict]) -> bool:
    return [sorted(state) for state in one] == [sorted(state) for state in other] and all(
        torch.equal(torch.as_tensor(here[key]), torch.as_tensor(there[key]))
        for here, there in zip(one, other, strict=True)
        for key in here
    )


@pytest.mark.parametrize("way_of", [lambda rank, _: rank, lambda rank, step: rank * step % 2])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam, torch.optim.Rprop])
def test_a_parameter_that_not_every_worker_used_has_the_state_of_those_that_did(kind, way_of):
    """Used by one worker each, then the one by both and the other by one."""

    def main(rank, link):
        model = Forked()
        inner = kind(model.parameters(), lr=0.01)
        optimizer = SynchronizedOptimizer(
            inner,
            [ModelAveraging(), SynchronousSGD()],
            link.transport("both", rank, 2),
            policy=SchedulePolicy([(3, "synchronous_sgd")]),
        )
        for step in range(6):
            model.way = way_of(rank, step) if step < 3 else step % 2
            train_step(model, optimizer, step, rank, 2)
        optimizer.finish()
        return model, states(inner, model)

    (one, kept), (other, also_kept) = crew(2, main)
    assert is_equal([one, other])
    assert are_same(kept, also_kept)


def test_state_that_one_worker_alone_has_is_not_diluted():
    def main(rank, link):
        model = Forked()
        model.way = rank
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = SynchronizedOptimizer(inner, ModelAveraging(), link.transport("both", rank, 2))
        train_step(model, optimizer, 0, rank, 2)
        own = {key: value.clone() for key, value in inner.state[model.ways[rank]].items()}
        optimizer.finish()
        return own, [dict(inner.state[way]) for way in model.ways]

    (zero, found), (one, also_found) = crew(2, main)
    assert are_same([zero, one], found)
    assert are_same([zero, one], also_found)


class Peculiar(torch.optim.Optimizer):
    """Counts in numbers of Python's, in its group too, and keeps what has no mean."""

    def __init__(self, parameters, keep) -> None:
        super().__init__(parameters, {"lr": 0.01, "count": 0})
        self._keep = keep

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] / group["count"])
                self.state[parameter] |= {"step": group["count"], **self._keep(group["count"])}


def finished(keep, expecting=nullcontext):
    """What two workers keep that took 3 and 5 steps."""

    def main(rank, link):
        model = model_of()
        inner = Peculiar(model.parameters(), lambda step: keep(rank, step))
        optimizer = SynchronizedOptimizer(inner, PairwiseAveraging(), link.transport("both", rank, 2))
        for step in range((3, 5)[rank]):
            train_step(model, optimizer, step, rank, 2)
        with expecting():
            optimizer.finish()
        return inner.param_groups[0], states(inner, model)[0]

    return crew(2, main)


def test_what_has_no_mean_is_as_the_worker_with_the_most_steps_has_it():
    def keep(rank, step):
        return {
            "codes": torch.full((3,), step, dtype=torch.int8),
            "scale": torch.full((), float(step)),
            "recent": [(rank, torch.ones(2) * step)],
        }

    for group, state in finished(keep):
        assert (group["count"], state["step"], float(state["scale"]), state["codes"].tolist()) == (5, 5, 5.0, [5] * 3)
        assert state["recent"][0][0] == 1
        assert state["recent"][0][1].tolist() == [5.0, 5.0]


def test_numbers_that_have_a_mean_have_it():
    for _, state in finished(lambda _, step: {"sum": torch.full((2,), float(step)), "none": None}):
        assert state["sum"].tolist() == [4.0, 4.0]
        assert state["none"] is None


def test_learning_rates_stay_each_workers_own():
    def main(rank, link):
        inner = torch.optim.SGD(model_of().parameters(), lr=0.1)
        optimizer = SynchronizedOptimizer(inner, PairwiseAveraging(), link.transport("both", rank, 2))
        inner.param_groups[0]["lr"] /= rank + 1
        optimizer.finish()
        return inner.param_groups[0]["lr"]

    assert crew(2, main) == [0.1, 0.05]


@pytest.mark.parametrize(
    "odd", [(torch.zeros(1), torch.zeros(2)), (torch.zeros(2), torch.zeros(2, dtype=torch.float64)), (1, torch.zeros(2))]
)
def test_different_things_of_one_name_are_refused_by_all_workers(odd):
    finished(lambda rank, _: {"odd": odd[rank], "even": 1}, lambda: refuses("optimizer", "odd", "keeps 'odd' of parameter 0"))


def test_what_cannot_be_sent_is_refused_by_name():
    finished(lambda *_: {"odd": {1, 2}}, lambda: refuses("optimizer.odd", fragment="holds a set"))
