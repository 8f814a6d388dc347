"""Groups of channels and sums of real processes: given up at once, and built anew by those who are left."""

import itertools
import signal

import pytest
import torch

from restorer.channels import in_turns
from restorer.transport import TensorSpec
from tests.patience import eventually
from tests.restorer.crew import Crew, Member, build_channels, close
from tests.restorer.test_groups import assert_freed, assert_nobody_is_left_behind, count_descriptors, hear_from
from tests.restorer.test_transfers import GROUPS, begin_reductions
from tests.runtime.runs import leaves_nothing

pytestmark = pytest.mark.processes

SUMS = (("w0", "w1"), ("w1", "w2"), ("w0", "w2"), ("w0", "w1", "w2"))


@pytest.mark.parametrize("length", [2, 3, 16, 17])
def test_channels_of_a_pipeline_are_connected_side_by_side_however_long_it_is(length):
    members = [f"w{number}" for number in range(length)]
    pairs = list(itertools.pairwise(members))
    channels = [*pairs, *((receiver, sender) for sender, receiver in pairs)]
    ends_at = dict.fromkeys(members, 0)
    for channel in in_turns(reversed(channels), members):
        ends_at |= dict.fromkeys(channel, 1 + max(ends_at[end] for end in channel))
    assert max(ends_at.values()) == min(4, 2 * (length - 1))


@pytest.fixture(name="crew")
def three():
    with leaves_nothing(), Crew("w0", "w1", "w2") as crew:
        yield crew


def wait_for_message(member: Member, peer: str) -> None:
    member.connection.send(("publish", "said/", b""))
    member.groups.channel_transport().receive(TensorSpec((1000,), torch.float32), peer, 0).wait()


def wait_for_send(member: Member, peer: str) -> None:
    member.connection.send(("publish", "said/", b""))
    member.groups.channel_transport().send(torch.ones(10_000_000), peer, 0).wait()


def wait_for_sum(member: Member, peer: str) -> None:
    member.connection.send(("publish", "said/", b""))
    member.groups.begin_all_reduce(torch.ones(1000), tuple(sorted((member.name, peer)))).wait()


def sum_over_all(member: Member) -> bytes:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(int(member.name[1:])))
    members = ("w0", "w1", "w2")
    member.groups.begin_all_reduce(tensor, members).wait()
    return tensor.numpy().tobytes()


def test_sums_are_bitwise_equal(crew):
    crew.build("g0", subgroups=SUMS, has_channels=True)
    assert len(set(crew.call(sum_over_all).values())) == 1


@pytest.mark.parametrize("action", [wait_for_message, wait_for_send, wait_for_sum])
def test_giving_up_frees_who_waits_for_a_frozen_peer_and_the_others_go_on(crew, action):
    crew.build("g0", subgroups=SUMS, has_channels=True)
    crew.strike("w1", signal.SIGSTOP)
    crew.begin({"w0": (action, ("w1",)), "w2": (action, ("w1",))})
    hear_from(crew, "w0", "w2")
    crew.abort("w0", "w2")
    assert_freed(crew.finish("w0", "w2"))
    if action is not wait_for_send:
        assert_nobody_is_left_behind(crew, "w0", "w2")
    crew.build("g1", ("w0", "w2"), has_channels=True)


def test_giving_up_frees_who_connects(crew):
    crew.begin(dict.fromkeys(("w0", "w2"), (build_channels, ("g0", crew.names, SUMS))))
    hear_from(crew, "w0", "w2")
    crew.abort("w0", "w2")
    assert_freed(crew.finish("w0", "w2"))
    crew.build("g1", ("w0", "w2"), has_channels=True)


def test_overlapping_sums_begun_in_one_order_end():
    with leaves_nothing(), Crew("a", "b", "c") as crew:
        crew.build("one", subgroups=GROUPS, has_channels=True)
        assert set(crew.call(begin_reductions, GROUPS * 20).values()) == {" ".join(["4"] * 40)}


def test_generations_that_were_closed_leave_no_descriptors(crew):
    crew.build("g0", subgroups=SUMS, has_channels=True)
    crew.call(close)
    before = crew.call(count_descriptors)

    def is_no_more(now: dict[str, int]) -> bool:
        return all(now[worker] <= before[worker] for worker in before)

    for generation in range(1, 4):
        crew.build(f"g{generation}", subgroups=SUMS, has_channels=True)
        crew.call(close)
    assert is_no_more(eventually(lambda: crew.call(count_descriptors), is_no_more))
