"""Steps are atomic: an interrupted one is taken again by the workers that are left; strategies change alike on all of them."""

import threading
from contextlib import suppress

import pytest
import torch

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.synchronization import (
    ModelAveraging,
    PairwiseAveraging,
    PeerTransport,
    SchedulePolicy,
    SynchronizedOptimizer,
    SynchronousSGD,
    WorkerCountPolicy,
)
from kintsugi.runtime.synchronization.monitor import Totals
from kintsugi.runtime.synchronization.policies import Choice, Policy
from tests.patience import PATIENCE_SECONDS
from tests.runtime.synchronization.workers import (
    Loss,
    adam,
    backward,
    crew,
    entries,
    flat,
    is_equal,
    losing,
    model_of,
    together,
    train_step,
)

NUM_NUMBERS = len(Totals().tensor())
"""In a report."""


def interrupted(strategy, num_sums: int):
    """Three workers lose each other in a step, after some of its sums came to their end; two of them take it again."""

    def main(rank, link):
        loss = Loss(None)
        model = model_of()
        optimizer = SynchronizedOptimizer(adam(model), strategy(), link.transport("three", rank, 3, fail=loss), bucket_bytes=300)
        for step in range(3):
            train_step(model, optimizer, step, rank, 3)
        before, states = flat(model), entries(optimizer)
        if (begun := getattr(optimizer._strategy, "_summing", None)) is not None:
            begun.wait()
        loss.num_left = num_sums
        backward(model, optimizer, 3, rank, 3)
        with pytest.raises(CommunicationError):
            optimizer.step()
        assert torch.equal(before, flat(model)), "no parameter is touched"
        assert all(torch.equal(*pair) for pair in zip(states, entries(optimizer), strict=True))
        assert optimizer.num_steps == 3
        if rank == 2:
            optimizer.close()
            return None
        assert not optimizer.adopt(link.transport("two", rank, 2)), "nobody had committed it"
        optimizer.step()
        assert optimizer.num_steps == 4
        train_step(model, optimizer, 4, rank, 2)
        optimizer.finish()
        return model

    return crew(3, main)[:2]


@pytest.mark.parametrize(("strategy", "num_sums"), [(SynchronousSGD, 0), (SynchronousSGD, 2), (ModelAveraging, 0)])
def test_an_interrupted_step_touches_nothing_and_is_taken_again(strategy, num_sums):
    models = interrupted(strategy, num_sums)
    assert is_equal(models)
    assert not torch.equal(flat(models[0]), flat(model_of()))


def test_the_step_that_is_taken_again_uses_the_gradients_of_those_that_are_left():
    """The mean of the survivors' gradients, exactly, on what all three had before."""
    model = model_of()
    optimizer = adam(model)
    for step in range(3):
        train_step(model, optimizer, step)
    shares = []
    for rank in range(2):
        backward(model, optimizer, 3, rank, 3)
        shares.append([parameter.grad.clone() for parameter in model.parameters()])
    for parameter, *gradients in zip(model.parameters(), *shares, strict=True):
        parameter.grad = sum(gradients) / 2
    optimizer.step()
    train_step(model, optimizer, 4)
    found = interrupted(SynchronousSGD, 1)
    assert torch.allclose(flat(found[0]), flat(model), rtol=1e-12, atol=1e-14)


def trained(strategy, num_steps: int, *, fails_at: int | None = None):
    """Two workers; one of them loses the connection in the last step, once its part in a sum of so many numbers has gone out."""

    def main(rank, link):
        model = model_of()
        group, is_armed = link.group("both", rank, 2), []

        def all_reduce(tensor: torch.Tensor) -> None:
            group.allreduce([tensor]).wait()
            if is_armed and tensor.numel() == fails_at:
                raise RuntimeError("connection closed by peer")

        optimizer = SynchronizedOptimizer(adam(model), strategy(), PeerTransport(all_reduce, rank=rank, num_workers=2))
        for step in range(num_steps - 1):
            train_step(model, optimizer, step, rank, 2)
        is_armed += [True] * (rank == 1 and fails_at is not None)
        backward(model, optimizer, num_steps - 1, rank, 2)
        if is_armed:
            with pytest.raises(CommunicationError):
                optimizer.step()
            assert optimizer.num_steps == num_steps - 1
        else:
            optimizer.step()
        if fails_at is not None:
            assert optimizer.adopt(link.transport("again", rank, 2)) == (rank == 1)
        assert optimizer.num_steps == num_steps
        optimizer.finish()
        return model

    return crew(2, main)


@pytest.mark.parametrize(("strategy", "fails_at"), [(SynchronousSGD, NUM_NUMBERS), (ModelAveraging, 1)])
def test_a_step_that_one_worker_has_applied_is_applied_by_all(strategy, fails_at):
    """Under synchronous SGD it is shown what came of the step; else it has passed the commit point and does it itself."""
    models = trained(strategy, 3, fails_at=fails_at)
    assert is_equal(models)
    assert torch.equal(flat(models[0]), flat(trained(strategy, 3)[0]))


def test_a_job_shrinks_to_one_worker_and_goes_on():
    def main(rank, link):
        model = model_of(rank)
        optimizer = SynchronizedOptimizer(adam(model), SynchronousSGD(), link.transport("of 3", rank, 3))
        train_step(model, optimizer, 0, rank, 3)
        for size in (2, 1):
            if rank >= size:
                optimizer.close()
                return None
            optimizer.adopt(link.transport(f"of {size}", rank, size))
            train_step(model, optimizer, optimizer.num_steps, rank, size)
        optimizer.finish()
        return model

    reference = model_of()
    optimizer = adam(reference)
    for step in range(3):
        train_step(reference, optimizer, step)
    assert torch.allclose(flat(crew(3, main)[0]), flat(reference), rtol=1e-12, atol=1e-14)


def switching(num_steps: int = 60):
    """Three workers that go from synchronous to pairwise averaging and back by schedule."""

    def main(rank, link):
        model, switches = model_of(rank), []
        optimizer = SynchronizedOptimizer(
            adam(model),
            [SynchronousSGD(), PairwiseAveraging()],
            link.transport("all", rank, 3),
            policy=SchedulePolicy([(4, "pairwise_averaging"), (10, "synchronous_sgd")]),
            on_switch=switches.append,
            round_steps=2,
        )
        while len(switches) < 2 or optimizer.num_steps < num_steps:
            train_step(model, optimizer, optimizer.num_steps, rank, 3)
        same = flat(model)  # finish averages nothing here
        optimizer.finish()
        return model, same, switches

    return crew(3, main)


def test_replicas_are_made_equal_before_they_step_together_again():
    outcomes = switching()
    models = [model for model, _, _ in outcomes]
    assert is_equal(models)
    assert all(torch.equal(flat(model), same) for model, same, _ in outcomes), "also without the last averaging"
    told = [[(s.step, s.before, s.after, s.reason, s.num_workers) for s in switches] for _, _, switches in outcomes]
    assert told[0] == told[1] == told[2]
    assert told[0][0] == (
        4,
        "synchronous_sgd",
        "pairwise_averaging",
        "step 4 is reached, and pairwise_averaging is scheduled from step 4 on",
        3,
    )
    assert told[0][1][1:3] == ("pairwise_averaging", "synchronous_sgd")


class Reticent(WorkerCountPolicy):
    """Does not say beforehand what it may choose, as policies of others may not."""

    strategies = ()


def test_a_policy_without_its_strategy_is_told_so():
    def main(rank, link):
        model = model_of()
        optimizer = SynchronizedOptimizer(
            adam(model), SynchronousSGD(), link.transport("one", rank, 1), policy=Reticent({1: "pairwise_averaging"})
        )
        with pytest.raises(Exception, match="is none of those given: synchronous_sgd"):
            train_step(model, optimizer, 0)
        optimizer.close()

    crew(1, main)


def test_peers_that_die_are_skipped_by_pairwise_averaging():
    """Worker 1 ends without a word; the others go on, and agree on a membership without it later."""

    def main(rank, link):
        model, strategy = model_of(rank), PairwiseAveraging()
        optimizer = SynchronizedOptimizer(adam(model), strategy, link.transport("of 4", rank, 4, retry_seconds=60.0))
        if rank == 1:
            optimizer.close()
            return None
        while strategy.num_averaged < 8:
            train_step(model, optimizer, optimizer.num_steps, rank, 4)
        optimizer.adopt(link.transport("of 3", (0, 2, 3).index(rank), 3))
        train_step(model, optimizer, optimizer.num_steps, rank, 3)
        optimizer.finish()
        return model

    models = crew(4, main)
    assert is_equal([model for model in models if model is not None])


def test_members_that_a_loss_left_with_different_strategies_follow_one():
    """A loss in the middle of a change: one of two has changed already."""

    def main(rank, link):
        model = model_of(rank)
        strategies = [SynchronousSGD(), ModelAveraging()]
        first = strategies if rank == 0 else strategies[::-1]
        optimizer = SynchronizedOptimizer(adam(model), first[0], link.transport(f"alone {rank}", 0, 1))
        optimizer._strategies = {strategy.name: strategy for strategy in strategies}
        train_step(model, optimizer, 0)
        optimizer.adopt(link.transport("both", rank, 2))
        assert optimizer.strategy == "synchronous_sgd"
        train_step(model, optimizer, 1, rank, 2)
        return model, optimizer.finish()

    assert is_equal([model for model, _ in crew(2, main)])


def test_workers_wait_for_each_other_at_the_end():
    """Asynchronous workers that took different numbers of steps end with one model."""

    def main(rank, link):
        model = model_of(rank)
        optimizer = SynchronizedOptimizer(adam(model), PairwiseAveraging(), link.transport("both", rank, 2), round_steps=1)
        for step in range(3 + 20 * rank):
            train_step(model, optimizer, step, rank, 2)
        optimizer.finish()
        return model, optimizer.num_steps

    outcomes = crew(2, main)
    assert is_equal([model for model, _ in outcomes])
    assert [steps for _, steps in outcomes] == [23, 23]


def test_nobody_finishes_while_another_worker_lacks_the_last_step():
    """It lost the connection in a sum that the other one got to its end, who has applied the step."""
    optimizers: dict[int, SynchronizedOptimizer] = {}
    is_applied = threading.Event()

    def main(rank, link):
        is_armed, model = [], model_of()

        def lose(tensor: torch.Tensor) -> None:
            if rank == 1 and is_armed and tensor.numel() == NUM_NUMBERS:
                raise RuntimeError("connection closed by peer")

        optimizers[rank] = optimizer = SynchronizedOptimizer(adam(model), SynchronousSGD(), losing(link, "both", rank, 2, lose))
        train_step(model, optimizer, 0, rank, 2)
        is_armed.append(True)
        backward(model, optimizer, 1, rank, 2)
        if rank == 0:
            optimizer.step()
            is_applied.set()
        with pytest.raises(CommunicationError):
            (optimizer.finish if rank == 0 else optimizer.step)()
        assert is_applied.wait(PATIENCE_SECONDS)
        optimizers[0]._replica.transport.abort()  # as it finds rank 1 gone
        assert optimizer.adopt(link.transport("again", rank, 2)) == (rank == 1)
        optimizer.finish()
        return model

    assert is_equal(crew(2, main))


def test_who_finishes_synchronous_training_too_early_is_gone_for_the_others():
    """Sums that do not fit each other would end a process by force."""

    def main(rank, link):
        model = model_of()
        optimizer = SynchronizedOptimizer(adam(model), SynchronousSGD(), link.transport("both", rank, 2))
        train_step(model, optimizer, 0, rank, 2)
        if rank == 0:
            optimizer.finish()
            return
        with pytest.raises(CommunicationError):
            train_step(model, optimizer, 1, rank, 2)
        optimizer.close()

    crew(2, main)


def test_threads_report_their_errors():
    with pytest.raises(ZeroDivisionError):
        together(lambda: 1 // 0)


def test_a_worker_whose_joining_failed_joins_again():
    """A member was lost while the joiner was being told: nothing of the first attempt takes part in later steps."""

    def main(rank, link):
        model = model_of(rank)
        with pytest.raises(CommunicationError):
            SynchronizedOptimizer(adam(model), SynchronousSGD(), link.transport("lost", rank, 2, fail=Loss(2)))
        optimizer = SynchronizedOptimizer(adam(model), SynchronousSGD(), link.transport("both", rank, 2))
        for step in range(3):
            train_step(model, optimizer, step, rank, 2)
        optimizer.finish()
        return model

    assert is_equal(crew(2, main))


def test_a_step_that_was_rolled_forward_is_committed_for_those_who_still_lack_it():
    """The one that had committed it is lost once a second one has followed, and before the third one could."""

    def main(rank, link):
        model, loss = model_of(), Loss(None)
        transport = losing(link, "three", rank, 3, loss)
        optimizer = SynchronizedOptimizer(adam(model), ModelAveraging(), transport)
        train_step(model, optimizer, 0, rank, 3)
        optimizer._strategy._summing.wait()
        loss.num_left = None if rank == 0 else 1  # the report is heard, and of the commit point only that all others are there
        backward(model, optimizer, 1, rank, 3)
        if rank == 0:
            optimizer.step()
        else:
            with pytest.raises(CommunicationError):
                optimizer.step()
        roll_call = Loss(1) if rank == 2 else Loss(2)
        again = losing(link, "again", rank, 3, roll_call) if rank == 2 else link.transport("again", rank, 3, fail=roll_call)
        with pytest.raises(CommunicationError):
            optimizer.adopt(again)
        assert optimizer.num_steps == (1 if rank == 2 else 2)
        if rank == 0:
            optimizer.close()
            return None
        assert optimizer.adopt(link.transport("two", rank - 1, 2))
        assert optimizer.num_steps == 2
        optimizer.finish()
        return model

    assert is_equal(crew(3, main)[1:])


def test_a_change_of_strategy_that_a_worker_finds_at_its_end_is_made_alike_by_all():
    """One worker trains no further when the round ends in which both agree to sum models beside every step."""

    def main(rank, link):
        model = model_of(rank)
        optimizer = SynchronizedOptimizer(
            adam(model),
            [PairwiseAveraging(), ModelAveraging()],
            link.transport("both", rank, 2),
            policy=SchedulePolicy([(1, "model_averaging")]),
            round_steps=1,
        )
        train_step(model, optimizer, 0, rank, 2)  # both give their parts in a round, whose end rank 0 sees when it finishes
        while rank == 1 and optimizer.strategy == "pairwise_averaging":
            train_step(model, optimizer, 1, rank, 2)
        optimizer.finish()
        return model

    assert is_equal(crew(2, main))


class Counting(Policy):
    """Wants another strategy each time that it is asked, and counts."""

    def choose(self, seen):
        self.memory["num_asked"] = self.memory.get("num_asked", 0) + 1
        return Choice("synchronous_sgd", "it is its turn")


def test_policies_remember_the_same_after_a_loss_in_the_middle_of_a_change():
    """One worker has asked its policy after a round whose end the other one did not see."""

    def main(rank, link):
        model, loss, policy = model_of(), Loss(None), Counting()
        optimizer = SynchronizedOptimizer(
            adam(model),
            [PairwiseAveraging(), SynchronousSGD()],
            losing(link, "both", rank, 2, loss) if rank == 1 else link.transport("both", rank, 2, fail=loss),
            policy=policy,
            round_steps=1,
        )
        loss.num_left = 1 - rank
        train_step(model, optimizer, 0, rank, 2)
        with suppress(CommunicationError):
            optimizer._rounds._summing.wait()
        backward(model, optimizer, 1, rank, 2)
        if rank == 0:
            with pytest.raises(CommunicationError):
                optimizer.step()
        else:
            optimizer.step()
        assert policy.memory == ({"num_asked": 1} if rank == 0 else {})
        optimizer.adopt(link.transport("again", rank, 2))
        optimizer.close()
        return policy.memory

    memories = crew(2, main)
    assert memories[0] == memories[1]
