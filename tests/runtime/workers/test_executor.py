"""The executor trains what a plain loop over the whole model trains."""

import math
from dataclasses import replace

import pytest
import torch
from structlog.testing import capture_logs

from estimator.message_windows import windows
from estimator.program import Program, compile_program
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import CommunicationError, ReconfigurationError
from kintsugi.core.plan import Plan
from kintsugi.runtime.llama import llama_job
from kintsugi.runtime.models import Activations, Batch, Dataset, TrainingJob, collate, model_shape, run_layer, seed_for
from kintsugi.runtime.sampler import Sampler
from kintsugi.runtime.workers.commit import CommitRecord, StepStatus
from kintsugi.runtime.workers.executor import Executor
from kintsugi.runtime.workers.state import ModelState
from restorer.transport import Fetched, TensorSpec, Transport
from tests.builders import grid_plan
from tests.core.refusals import refuses
from tests.runtime.jobs import NUM_MICROBATCHES, TINY_LLAMA, counted_job, frozen_job, odd_job, profile_for, tiny_gpt

JOBS = {"gpt": tiny_gpt, "odd": odd_job, "frozen": frozen_job, "counted": counted_job}


class Alone:
    """The groups of a worker without peers; may break at an all-reduce."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self.count = 0
        self.breaks_at = breaks_at

    def all_reduce(self, tensor: torch.Tensor, members: tuple[str, ...] | None = None) -> None:
        self.count += 1
        if self.count == self.breaks_at:
            tensor.fill_(math.nan)
            raise CommunicationError("a peer is gone")


class Nobody:
    """The transport of a worker without peers: it sends and receives nothing."""

    def settle(self) -> None:
        pass


def executor_of(
    job: TrainingJob, groups: Alone, before_action=lambda *_: None, *, num_stages: int = 1, transport: Transport | None = None
) -> Executor:
    """Of the last stage."""
    plan: Plan = grid_plan(len(job.layers), [num_stages], [NUM_MICROBATCHES])
    program: Program = compile_program(plan, profile_for(job), Cluster.uniform(num_stages))
    worker = plan.workers[-1]
    return Executor(
        worker=worker,
        job=job,
        shape=model_shape(job),
        state=ModelState.initial(job, plan.layers_of[worker]),
        plan=plan,
        actions=program.actions[worker],
        windows=windows(program.actions[worker], program.places[worker]),
        reductions=program.reductions,
        groups=groups,
        transport=transport or Nobody(),
        before_action=before_action,
    )


def plain_training(job: TrainingJob) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and parameters of a loop as one would write it without any of this."""
    state = ModelState.initial(job, range(len(job.layers)))
    sampler = Sampler(
        num_samples=len(job.dataset),
        microbatch_size=job.microbatch_size,
        num_microbatches=job.num_microbatches,
        seed=seed_for(job, 1),
    )
    trained = [p for p in state.parameters.values() if p.requires_grad]
    losses = []
    for step in range(job.num_steps):
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        sums, counts = [], []
        for microbatch in range(job.num_microbatches):
            batch = collate([job.dataset[i] for i in sampler.indices(step, microbatch)], job.device)
            values = ()
            for index, layer in enumerate(job.layers):
                torch.manual_seed(seed_for(job, 2, step, microbatch, index))
                values = run_layer(layer, state.modules[index], values, batch)
            made = job.loss(values, batch)
            sums.append(made[0] if isinstance(made, tuple) else made)
            counts.append(float(made[1]) if isinstance(made, tuple) else 1.0)
        loss = torch.stack(sums).sum() / sum(counts)
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(trained, job.max_grad_norm)
        state.set_learning_rate(step)
        state.update(step)
    return losses, {name: p.detach() for name, p in state.parameters.items()}


@pytest.mark.parametrize("name", JOBS)
def test_trains_as_a_plain_loop(name):
    job = JOBS[name]()
    losses, parameters = plain_training(job)
    executor = executor_of(job, Alone())
    records = [executor.run(step) for step in range(job.num_steps)]
    assert [record.loss for record in records] == pytest.approx(losses, rel=1e-12)
    assert [record.step for record in records] == list(range(job.num_steps))
    for key, value in parameters.items():
        assert torch.allclose(executor.state.parameters[key], value, rtol=1e-11, atol=1e-13), key
    assert executor.status == StepStatus(step=job.num_steps, last_record=records[-1])


def snapshot(executor: Executor) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in executor.state.parameters.items()}


def is_as(executor: Executor, values: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(p, values[name]) for name, p in executor.state.parameters.items())


def test_nothing_is_applied_before_the_commit_point_and_the_step_can_be_rolled_forward():
    job = odd_job()
    whole, broken = executor_of(job, Alone()), executor_of(job, Alone(breaks_at=2))
    records = [whole.run(step) for step in range(2)]
    first = broken.run(0)
    before = snapshot(broken)
    with pytest.raises(CommunicationError):
        broken.run(1)
    assert is_as(broken, before)
    assert broken.status == StepStatus(step=1, is_reduced=True, last_record=first)
    broken.roll_forward(records[1])
    assert is_as(broken, snapshot(whole))
    assert broken.status == StepStatus(step=2, last_record=records[1])


def test_a_step_may_be_left_before_any_of_its_actions():
    job, place = odd_job(), {"leave_at": 0, "count": 0}

    def leave(_: int, __: object) -> None:
        place["count"] += 1
        if place["count"] == place["leave_at"]:
            raise CommunicationError("called off")

    whole, executor = executor_of(job, Alone()), executor_of(job, Alone(), leave)
    expected = [whole.run(step) for step in range(2)]
    assert executor.run(0) == expected[0]
    before = snapshot(executor)
    for leave_at in range(1, 2 * NUM_MICROBATCHES + 2):
        place.update(leave_at=leave_at, count=0)
        with pytest.raises(CommunicationError):
            executor.run(1)
        assert is_as(executor, before)
        assert executor.status == StepStatus(step=1, last_record=expected[0])
    place.update(leave_at=0)
    assert executor.run(1) == expected[1]
    assert is_as(executor, snapshot(whole))


@pytest.mark.parametrize("limit", [None, 1e-3, 1e3])
def test_gradients_are_clipped_by_the_norm_of_the_whole_model(limit):
    job = replace(tiny_gpt(num_steps=1), max_grad_norm=limit)
    executor = executor_of(job, Alone())
    record = executor.run(0)
    squares = sum(float(p.grad.square().sum()) for p in executor.state.parameters.values() if p.grad is not None)
    norm = math.sqrt(record.squared_norm)
    expected = norm if limit is None or norm <= limit else limit * norm / (norm + 1e-6)
    assert math.sqrt(squares) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("breaks_at", [1, 2, 3])
def test_sums_are_divided_by_the_count_of_the_whole_step_also_where_it_is_rolled_forward(breaks_at):
    job = counted_job()
    whole, broken = executor_of(job, Alone()), executor_of(job, Alone(breaks_at=breaks_at))
    records = [whole.run(step) for step in range(breaks_at)]
    for step in range(breaks_at - 1):
        broken.run(step)
    with pytest.raises(CommunicationError):
        broken.run(breaks_at - 1)
    broken.roll_forward(records[-1])
    assert is_as(broken, snapshot(whole))
    assert {1.0, 12.0}.isdisjoint(record.divisor for record in records)


def nothing_counts(outputs: Activations, _: Batch) -> tuple[torch.Tensor, int]:
    return outputs[0].sum() * 0.0, 0


def test_a_step_of_which_nothing_counts_changes_nothing():
    executor = executor_of(replace(odd_job("stateless"), loss=nothing_counts, learning_rate_factor=None), Alone())
    before = snapshot(executor)
    assert executor.run(0).loss == 0.0
    assert is_as(executor, before)


def test_a_sum_of_nothing_that_is_not_0_is_warned_of_once():
    job = replace(odd_job(), loss=lambda outputs, _: (outputs[0].square().mean(), 0))
    executor = executor_of(job, Alone())
    with capture_logs() as logs:
        losses = [executor.run(step).loss for step in range(2)]
    assert [(log["log_level"], log["step"], log["loss"]) for log in logs] == [("warning", 0, losses[0])]


@pytest.mark.parametrize("count", [-1.0, math.nan, math.inf])
def test_counts_that_are_none_are_refused_before_anything_is_applied(count):
    executor = executor_of(replace(odd_job(), loss=lambda outputs, _: (outputs[0].sum(), count)), Alone())
    before = snapshot(executor)
    with refuses("loss", ..., "counts of a step's sums must be finite and not negative"):
        executor.run(0)
    assert is_as(executor, before)


def test_rolling_forward_follows_the_record_not_the_own_reckoning():
    job = replace(odd_job("stateless"), max_grad_norm=1.0, learning_rate_factor=None)
    executor = executor_of(job, Alone(breaks_at=1))
    with pytest.raises(CommunicationError):
        executor.run(0)
    before = snapshot(executor)
    gradients = {name: p.grad.clone() for name, p in executor.state.parameters.items() if p.grad is not None}
    executor.roll_forward(CommitRecord(step=0, squared_norm=10_000.0, loss=0.0))
    for name, gradient in gradients.items():
        moved = before[name] - executor.state.parameters[name].detach()
        assert torch.allclose(moved, 0.05 * gradient / 100, rtol=1e-6), name


class Beside(Alone):
    """The groups of a worker beside which another one trained the last micro-batch, too."""

    def all_reduce(self, tensor: torch.Tensor, members: tuple[str, ...] | None = None) -> None:
        tensor[-1] += 1


def test_nobody_applies_a_step_in_which_a_microbatch_was_trained_twice():
    executor = executor_of(tiny_gpt(), Beside())
    before = snapshot(executor)
    with pytest.raises(ReconfigurationError, match=f"micro-batch {NUM_MICROBATCHES - 1} of step 0 was trained 2 times"):
        executor.run(0)
    assert is_as(executor, before)


class Noted:
    """Samples, and a transport of random numbers, that note when they are asked for and waited for."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.seen: list[str] = []

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int):
        self.seen.append("sample")
        return self._dataset[index]

    def receive(self, spec: TensorSpec, peer: str, tag: int) -> Fetched:
        return Fetched(lambda: self._arrived(spec))

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> "Noted":
        return self

    def wait(self) -> None:
        pass

    def acknowledged(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def _arrived(self, spec: TensorSpec) -> torch.Tensor:
        self.seen.append("activation")
        return torch.randn(spec.shape, dtype=spec.dtype)


def test_samples_are_collected_before_what_the_stage_before_sends_is_waited_for():
    """Whose loss looks at them."""
    job = llama_job(TINY_LLAMA, dtype=torch.float64, num_microbatches=NUM_MICROBATCHES)
    noted = Noted(job.dataset)
    executor = executor_of(replace(job, dataset=noted), Alone(), num_stages=2, transport=noted)
    noted.seen.clear()
    assert executor.run(0).microbatches == (1,) * NUM_MICROBATCHES
    assert noted.seen == ["sample", "activation"] * NUM_MICROBATCHES
