"""Reductions since the copy of a state: kept by its sources within a bound, and told to who joins, whole and in order."""

import threading
from queue import SimpleQueue

import numpy as np
import pytest
import torch

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.overlay.committed import Committed, Sum
from kintsugi.runtime.overlay.following import FORGOTTEN, Telling, messages
from kintsugi.runtime.overlay.history import History
from kintsugi.runtime.overlay.trail import Trail
from kintsugi.runtime.overlay.vectors import VectorPool

KEY = ("x", 7)


def committed(number: int, num_elements: int | None = 4) -> Committed:
    vector = None if num_elements is None else np.full(num_elements, float(number))
    return Committed(which=Sum(number, 2), vector=vector, weights={"a": 1.0}, agreed={"generation": number})


def test_nothing_is_kept_for_nobody():
    history = History(1024, 60.0)
    history.add(committed(1))
    assert history.num_bytes == 0
    with pytest.raises(CommunicationError, match="nothing is kept"):
        history.next(KEY, Sum(0, 0), 0.0)


def test_what_somebody_follows_is_kept_until_everybody_has_it():
    history = History(1024, 60.0)
    history.follow(KEY, Sum(4, 2), is_told=True)
    history.follow(("y", 8), Sum(5, 2), is_told=False)
    history.add(committed(5))
    history.add(committed(6, None))
    kept = history.next(KEY, Sum(4, 2), 0.0)
    assert kept is not None
    assert kept.vector.tolist() == [5.0] * 4
    assert history.next(KEY, Sum(5, 2), 0.0) == committed(6, None)
    assert history.next(KEY, Sum(6, 2), 0.0) is None
    assert history.num_bytes == 0
    history.leave(("y", 8))
    history.leave(KEY)
    assert history.followers == ()


def test_what_is_kept_stays_as_it_was_whatever_is_reduced_later():
    history, pool = History(1024, 60.0), VectorPool(4, torch.float64)
    history.follow(KEY, Sum(4, 2), is_told=True)
    for number in (5, 6, 7):
        vector = pool.take()
        vector.fill(number)
        history.add(Committed(which=Sum(number, 2), vector=vector, weights={"a": 1.0}, agreed=None))
        del vector
        pool.take().fill(-1.0)
    for number in (5, 6, 7):
        assert history.next(KEY, Sum(number - 1, 2), 0.0).vector.tolist() == [number] * 4


def test_training_waits_for_who_is_told_and_for_nobody_else():
    history = History(32, 60.0)
    history.follow(KEY, Sum(0, 0), is_told=False)
    for number in (1, 2):
        history.add(committed(number))
    with pytest.raises(CommunicationError, match="not kept any more"):
        history.next(KEY, Sum(0, 0), 0.0)
    history.follow(KEY, Sum(2, 2), is_told=True)
    history.add(committed(3))
    adding = threading.Thread(target=history.add, args=(committed(4),), daemon=True)
    adding.start()
    assert history.next(KEY, Sum(2, 2), 60.0).number == 3
    assert history.next(KEY, Sum(3, 2), 60.0).number == 4
    adding.join(120.0)
    assert not adding.is_alive()
    waiting = threading.Thread(target=history.add, args=(committed(5),), daemon=True)
    waiting.start()
    history.leave(KEY)
    waiting.join(120.0)
    assert not waiting.is_alive()


def test_who_has_another_sum_is_told_nothing_more():
    history = History(1024, 60.0)
    history.follow(KEY, Sum(4, 2), is_told=True)
    assert history.next(KEY, Sum(5, 1), 0.0) is None
    history.add(committed(5))
    history.add(committed(6))
    with pytest.raises(CommunicationError, match="reduction 5 was summed again"):
        history.next(KEY, Sum(5, 1), 0.0)
    assert history.next(KEY, Sum(5, 2), 0.0).number == 6


def test_training_goes_on_once_another_source_is_asked():
    history = History(32, 60.0)
    history.follow(KEY, Sum(0, 0), is_told=True)
    history.add(committed(1))
    waiting = threading.Thread(target=history.add, args=(committed(2),), daemon=True)
    waiting.start()
    history.spare(KEY)
    waiting.join(120.0)
    assert not waiting.is_alive()


def always(_: Committed) -> bool:
    """Takes a reduction that may be its teller's alone."""
    return True


def never(_: Committed) -> bool:
    """Takes none that may be its teller's alone."""
    return False


def test_what_a_teller_said_last_is_told_again_by_another():
    trail = Trail(7, Sum(4, 2), lambda: np.zeros(4), lambda: None)
    trail.begin("a")
    for number in (5, 6):
        for part in messages(committed(number), 7, 1024):
            trail.take("a", part)
    first = trail.pop(never)
    assert first is not None
    assert (first.number, trail.heard) == (5, (6, 2))
    assert trail.pop(never) is None
    trail.begin("b")
    assert trail.heard == (5, 2)
    for part in messages(committed(6, None), 7, 1024):
        trail.take("b", part)
    assert trail.pop(never) is None
    assert trail.pop(always) == committed(6, None)


@pytest.mark.parametrize("num_elements", [3, 5])
def test_a_reduction_of_another_length_ends_no_link(num_elements):
    trail = Trail(7, Sum(4, 2), lambda: np.zeros(4), lambda: None)
    trail.begin("a")
    for part in messages(committed(5, num_elements), 7, 16):
        trail.take("a", part)
    assert trail.pop(always) is None
    assert trail.heard == (4, 2)


def test_a_trail_is_whole_and_in_order_whoever_tells_it():
    changes: list[int] = []
    trail = Trail(7, Sum(4, 2), lambda: np.zeros(4), lambda: changes.append(1))
    trail.begin("a")
    parts = messages(committed(5), 7, 16)
    assert len(parts) == 2
    for stray in (*messages(committed(6), 7, 16), *messages(committed(5), 6, 16), parts[1]):
        trail.take("a", stray)
    trail.take("b", parts[0])
    trail.take("a", parts[0])
    assert trail.pop(always) is None
    trail.begin("b")
    for part in parts:
        trail.take("b", part)
    for part in messages(committed(6, None), 7, 16):
        trail.take("b", part)
    assert (trail.heard, len(changes)) == ((6, 2), 2)
    first, second = trail.pop(always), trail.pop(always)
    assert first.vector.tolist() == [5.0] * 4
    assert (first.number, first.weights, first.agreed) == (5, {"a": 1.0}, {"generation": 5})
    assert second == committed(6, None)
    assert trail.pop(always) is None


class Posts:
    """The links of a source: what it sends can be taken from a queue."""

    def __init__(self) -> None:
        self.sent: SimpleQueue = SimpleQueue()

    def send(self, worker, message):
        self.sent.put((worker, message.kind, message.fields))

    def tell(self, worker, kind, fields):
        self.sent.put((worker, kind, fields))
        return True


def test_no_more_is_told_than_there_is_room_for():
    history, posts = History(1024, 60.0), Posts()
    history.follow(KEY, Sum(0, 0), is_told=True)
    telling = Telling(KEY, history, posts, after=Sum(0, 0), chunk_bytes=1024)
    for number in (1, 2, 3):
        history.add(committed(number))
    telling.allow(2)
    assert [posts.sent.get(timeout=240.0)[2]["number"] for _ in range(2)] == [1, 2]
    assert posts.sent.empty()
    telling.allow(4)
    assert posts.sent.get(timeout=240.0)[2]["number"] == 3
    history.leave(KEY)
    worker, kind, fields = posts.sent.get(timeout=240.0)
    assert (worker, kind, fields["replication"]) == ("x", FORGOTTEN, 7)
    telling.close()
