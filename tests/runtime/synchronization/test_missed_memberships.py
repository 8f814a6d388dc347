"""A worker that missed a membership, as one does that was frozen, goes on with the model of the others."""

import pytest

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.synchronization import ModelAveraging, SynchronizedOptimizer, SynchronousSGD
from tests.runtime.synchronization.workers import Loss, adam, backward, crew, is_equal, losing, model_of, train_step


@pytest.mark.parametrize("returns_as", [0, 2])
def test_a_member_that_missed_a_membership_goes_on_with_the_model_of_the_others(returns_as):
    """It had applied a step that the others took again without it, as one does that is frozen in that moment."""

    def main(rank, link):
        loss, model = Loss(None), model_of()
        optimizer = SynchronizedOptimizer(adam(model), SynchronousSGD(), losing(link, "three", rank, 3, loss))
        train_step(model, optimizer, 0, rank, 3)
        loss.num_left = None if rank == 2 else 0
        backward(model, optimizer, 1, rank, 3)
        if rank == 2:
            optimizer.step()
            optimizer._replica.transport.abort()
            backward(model, optimizer, 2, rank, 3)
        with pytest.raises(CommunicationError):
            optimizer.step()
        if rank != 2:
            assert not optimizer.adopt(link.transport("two", rank, 2))
            optimizer.step()
        assert optimizer.num_steps == 2
        place = {0: (1, 2, 0), 2: (0, 1, 2)}[returns_as][rank]
        assert optimizer.adopt(link.transport("again", place, 3)) == (rank == 2), "its gradients are of another model"
        train_step(model, optimizer, 2, rank, 3)
        return model, optimizer.finish()

    assert is_equal([model for model, _ in crew(3, main)])


def test_a_member_that_missed_steps_of_model_averaging_goes_on_from_another_members_model():
    def main(rank, link):
        model = model_of(rank)
        optimizer = SynchronizedOptimizer(adam(model), ModelAveraging(), link.transport("both", rank, 2))
        train_step(model, optimizer, 0, rank, 2)
        backward(model, optimizer, 1, rank, 2)
        if rank == 1:
            optimizer._replica.transport.abort()
            with pytest.raises(CommunicationError):
                optimizer.step()
        else:
            optimizer.adopt(link.transport("alone", 0, 1))
            for step in range(1, 4):
                train_step(model, optimizer, step, 0, 1)
        assert optimizer.adopt(link.transport("again", rank, 2)) == (rank == 1)
        assert optimizer.num_steps == 4
        train_step(model, optimizer, 4, rank, 2)
        return model, optimizer.finish()

    assert is_equal([model for model, _ in crew(2, main)])
