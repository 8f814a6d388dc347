"""A worker asks the agent for the lease, and waits for the answer to its own question."""

import pytest

from kintsugi.core import codec
from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.ring.messages import Agreement
from kintsugi.runtime.selfgoverned import leasing
from kintsugi.runtime.selfgoverned.leasing import AgentLease, HeldLeases
from kintsugi.runtime.selfgoverned.words import Asked, Leased

WANTED, HELD, NEXT = Agreement(3, ("w00",)), Agreement(3, ("w01",)), Agreement(4, ("w01",))


def lease_of(*answers: Leased) -> tuple[AgentLease, list[Asked]]:
    """A lease whose agent gives these answers to its only question, which is number 0."""
    asked: list[Asked] = []

    def answer(question: Asked) -> None:
        asked.append(question)
        for given in answers:
            lease.take(given)

    lease = AgentLease(answer)
    return lease, asked


def test_the_lease_decides():
    lease, asked = lease_of(Leased(0, HELD))
    assert lease.decide(WANTED) == HELD
    assert asked == [Asked(0, 3, WANTED)]


def test_looking_asks_for_nothing():
    lease, asked = lease_of(Leased(0, None))
    assert lease.held(3) is None
    assert asked == [Asked(0, 3, None)]


def test_an_agent_that_is_silent_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(leasing, "TIMEOUT_SECONDS", 0.01)
    lease, _ = lease_of()
    with pytest.raises(UnavailableError, match="generation"):
        lease.decide(WANTED)


def test_an_answer_that_came_too_late_answers_no_other_question(monkeypatch):
    monkeypatch.setattr(leasing, "TIMEOUT_SECONDS", 0.01)
    asked: list[Asked] = []
    lease, leases = AgentLease(asked.append), HeldLeases(lambda *_: None)
    with pytest.raises(UnavailableError, match="generation"):
        lease.held(3)
    lease.take(leases.answer(asked[0]))
    with pytest.raises(UnavailableError, match="generation"):  # not that nothing was held when it was looked at
        lease.decide(WANTED)


def test_the_agent_holds_the_first_and_tells_of_it_once():
    told: list[tuple[int, str]] = []
    leases = HeldLeases(lambda generation, text: told.append((generation, text)))
    assert leases.answer(Asked(0, 3, None)) == Leased(0, None)
    assert leases.answer(Asked(1, 3, HELD)) == Leased(1, HELD)
    assert leases.answer(Asked(2, 3, WANTED)) == Leased(2, HELD)
    assert leases.answer(Asked(3, 1, None)) == Leased(3, HELD)
    assert leases.answer(Asked(4, 4, None)) == Leased(4, None)
    leases.hold(WANTED)
    assert told == [(3, codec.dumps(HELD))]
    leases.hold(NEXT)
    assert leases.answer(Asked(5, 3, None)) == Leased(5, NEXT)
    assert told[1:] == [(4, codec.dumps(NEXT))]
