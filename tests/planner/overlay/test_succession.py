"""Who may go on in the scheduler's place: never two in one term, and never behind what a majority saw in effect."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.overlay import UNHEARD_RESTARTS
from planner.overlay.succession import Ballot, granted, is_elected, is_newer, next_term
from tests.planner.overlay.world import World, mesh


def test_a_vote_is_given_once_a_term():
    first = granted(Ballot(), 1, "w00", 2, is_silent=True)
    assert first == Ballot(term=2, candidate="w00")
    assert granted(first, 1, "w01", 2, is_silent=True) is None
    assert granted(first, 1, "w00", 2, is_silent=True) == first
    assert granted(first, 1, "w01", 3, is_silent=True) == Ballot(term=3, candidate="w01")


def test_nobody_takes_over_while_the_scheduler_is_heard_or_ahead():
    assert granted(Ballot(), 1, "w00", 2, is_silent=False) is None
    assert granted(Ballot(), 2, "w00", 2, is_silent=True) is None
    assert next_term(Ballot(term=4, candidate="w01"), 2) == 5


def test_a_majority_is_of_those_who_count():
    overlay = mesh("w00", "w01", "w02", "w03").overlay
    assert not is_elected(overlay, {"w00", "w01"})
    assert is_elected(overlay, {"w00", "w01", "w02"})
    assert not is_elected(overlay, {"w00", "w01", "w09"})


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.integers(1, 3)), max_size=40))
def test_no_term_is_won_twice(asked):
    voters = dict.fromkeys(range(5), Ballot())
    votes: dict[tuple[int, str], set[int]] = {}
    for voter, candidate, term in asked:
        ballot = granted(voters[voter], 0, candidate, term, is_silent=True)
        if ballot is not None:
            assert ballot.term >= voters[voter].term
            voters[voter] = ballot
            votes.setdefault((term, candidate), set()).add(voter)
    won = [term for (term, _), of in votes.items() if len(of) > 2]
    assert len(won) == len(set(won))


def test_the_new_scheduler_goes_on_from_the_newest_overlay_that_was_seen():
    world = mesh("w00", "w01", "w02")
    behind = World(overlay=world.overlay, log=list(world.log))
    ahead = world.tell("worker_draining", worker="w02")
    assert is_newer(ahead, behind.overlay)
    overlay = behind.tell("scheduler_changed", worker="w00", term=2, address="http://w00:1", overlay=ahead)
    assert (overlay.term, overlay.generation) == (2, ahead.generation + 1)
    assert (overlay.restarts, overlay.restarted) == (ahead.restarts + UNHEARD_RESTARTS, overlay.synchronization)
    began = {"restarts": ahead.restarts, "restarted": ahead.restarted, "restarted_generation": ahead.restarted_generation}
    assert replace(overlay, term=1, generation=ahead.generation, scheduler="", **began) == ahead
    assert behind.replayed() == overlay
    older = World(overlay=world.overlay, log=[])
    kept = older.tell("scheduler_changed", worker="w00", term=2, address="http://w00:1", overlay=mesh("w00").overlay)
    assert set(kept.synchronization.order) == set(ahead.synchronization.order)
