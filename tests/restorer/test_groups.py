"""Groups of real processes: built together, given up at once, and without harm to anything else."""

import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from kintsugi.core.errors import CommunicationError
from restorer.rendezvous import group_prefix, members_of
from restorer.transport import Receiving, Sending, TensorSpec
from tests.patience import eventually
from tests.restorer.crew import Crew, Member, build, close
from tests.runtime.runs import leaves_nothing

pytestmark = pytest.mark.processes


@pytest.fixture(name="crew")
def three():
    with leaves_nothing(), Crew("w0", "w1", "w2") as crew:
        yield crew


def reduce_over(member: Member, members: tuple[str, ...] | None, seed: int) -> bytes:
    generator = torch.Generator().manual_seed(seed + int(member.name[1:]))
    tensor = torch.randn(1000, generator=generator)
    member.groups.all_reduce(tensor, members)
    return tensor.numpy().tobytes()


def wait_for_message(member: Member, peer: str) -> None:
    member.connection.send(("publish", "said/", b""))
    member.transport.receive(TensorSpec((1000,), torch.float32), peer, 7).wait()


def wait_for_reduction(member: Member, _: str) -> None:
    member.connection.send(("publish", "said/", b""))
    member.groups.all_reduce(torch.ones(1000))


def wait_for_send(member: Member, peer: str) -> None:
    member.connection.send(("publish", "said/", b""))
    member.transport.send(torch.ones(10_000_000), peer, 7).wait()


WAITS = (wait_for_message, wait_for_reduction, wait_for_send)


def hear_from(crew: Crew, *names: str) -> None:
    """Until all of `names` said that they are about to wait."""
    silent = set(names)
    crew.on_publish = lambda name, _: silent.discard(name)
    while silent:
        crew.relay(10.0)


def assert_freed(answers) -> None:
    assert answers
    assert all(isinstance(answer, CommunicationError) for answer in answers.values()), answers


def test_reductions_over_all_and_over_some_are_bitwise_equal(crew):
    crew.build("g0", subgroups=[("w0", "w2"), ("w0", "w1", "w2"), ("w1",)])
    assert len(set(crew.call(reduce_over, None, 5).values())) == 1
    pair = crew.call(reduce_over, ("w0", "w2"), 6, on=("w0", "w2"))
    assert pair["w0"] == pair["w2"]
    expected = sum(torch.randn(1000, generator=torch.Generator().manual_seed(6 + n)) for n in (0, 2))
    assert torch.allclose(torch.frombuffer(bytearray(pair["w0"]), dtype=torch.float32), expected)


def reduce_alone(member: Member) -> tuple[list[float], list[str]]:
    """The sum over this member, and the threads that wait for something."""
    tensor = torch.arange(3.0)
    member.groups.all_reduce(tensor, (member.name,))
    return tensor.tolist(), [thread.name for thread in threading.enumerate() if thread.name.startswith("waiter")]


def test_who_is_alone_has_the_sum_and_waits_for_nobody_until_the_groups_are_given_up(crew):
    crew.build("g0", subgroups=[("w1",)])
    assert crew.call(reduce_alone, on=("w1",)) == {"w1": ([0.0, 1.0, 2.0], [])}
    crew.abort("w1")
    assert_freed(crew.call(reduce_alone, on=("w1",)))


def policies(_: Member) -> dict[str, set[int]]:
    """How this member's threads are scheduled: gloo's and torch's by their names, all others together."""
    found: dict[str, set[int]] = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # has ended
            name = (task / "comm").read_text().strip()
            found.setdefault(name if "gloo" in name else "", set()).add(os.sched_getscheduler(int(task.name)))
    return found


def schedule(_: Member, policy: int) -> None:
    """All threads that this member has."""
    for task in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # has ended
            os.sched_setscheduler(int(task), policy, os.sched_param(0))


def test_threads_of_gloo_preempt_nobody_and_all_others_are_scheduled_as_before(crew):
    crew.build("g0", subgroups=[("w0", "w1")])
    crew.call(reduce_over, None, 1)
    for found in crew.call(policies).values():
        assert found.pop("") == {os.SCHED_OTHER}
        assert "gloo_tcp_loop" in found
        assert set().union(*found.values()) == {os.SCHED_BATCH}


def test_who_is_scheduled_by_choice_has_threads_of_gloo_that_are_so_too(crew):
    crew.call(schedule, os.SCHED_IDLE)
    crew.build("g0")
    assert all(set().union(*found.values()) == {os.SCHED_IDLE} for found in crew.call(policies).values())


@pytest.mark.parametrize("action", WAITS)
def test_abort_frees_who_waits(crew, action):
    crew.build("g0")
    crew.begin({"w0": (action, ("w1",)), "w2": (action, ("w1",))})
    hear_from(crew, "w0", "w2")
    crew.abort("w0", "w2")
    assert_freed(crew.finish("w0", "w2"))


def abort_while_all_wait_for_the_frozen(crew: Crew, action) -> None:
    crew.build("g0")
    crew.strike("w1", signal.SIGSTOP)
    crew.begin({"w0": (action, ("w1",)), "w2": (action, ("w1",))})
    hear_from(crew, "w0", "w2")
    crew.abort("w0", "w2")
    assert_freed(crew.finish("w0", "w2"))


@pytest.mark.parametrize("action", [wait_for_message, wait_for_reduction])
def test_abort_frees_who_waits_for_a_frozen_peer(crew, action):
    abort_while_all_wait_for_the_frozen(crew, action)
    crew.build("g1", ("w0", "w2"))
    assert len(set(crew.call(reduce_over, None, 1, on=("w0", "w2")).values())) == 1


@pytest.mark.parametrize("action", [wait_for_message, wait_for_send])
def test_a_peer_killed_in_the_middle_breaks_the_message(crew, action):
    crew.build("g0")
    crew.begin({"w0": (action, ("w1",))})
    hear_from(crew, "w0")
    crew.strike("w1", signal.SIGKILL)
    assert_freed(crew.finish("w0"))


def test_the_survivors_build_the_next_generation(crew):
    crew.build("g0", subgroups=[("w0", "w1"), ("w1", "w2")])
    crew.strike("w1", signal.SIGKILL)
    crew.abort("w0", "w2")
    for generation in range(1, 4):
        crew.build(f"g{generation}", ("w0", "w2"))
        assert len(set(crew.call(reduce_over, None, generation, on=("w0", "w2")).values())) == 1


def test_a_member_that_never_comes_makes_building_time_out(crew):
    answers = crew.call(build, "g0", crew.names, (), 0.5, on=("w0", "w2"))
    assert_freed(answers)
    assert all("not connected within 0.5 s" in str(answer) for answer in answers.values())
    crew.build("g1", ("w0", "w2"))


def test_abort_frees_who_builds(crew):
    crew.begin(dict.fromkeys(("w0", "w2"), (build, ("g0", crew.names))))
    hear_from(crew, "w0", "w2")
    crew.abort("w0", "w2")
    assert_freed(crew.finish("w0", "w2"))


HALF_A_MESSAGE = TensorSpec((400_000_000,), torch.uint8)


def send_whole(member: Member, peer: str) -> None:
    member.transport.send(torch.ones(HALF_A_MESSAGE.shape, dtype=torch.uint8), peer, 7).wait()


def wait_for_the_rest(member: Member, peer: str, process_id: int) -> None:
    """Stop the sender as soon as the first bytes are there; gloo itself frees nobody who waits for the rest."""
    receiving = member.transport.receive(HALF_A_MESSAGE, peer, 7)
    deadline = time.monotonic() + 10.0
    while receiving.buffer[1000] == 0 and time.monotonic() < deadline:
        pass
    os.kill(process_id, signal.SIGSTOP)
    assert (receiving.buffer[1000], receiving.buffer[-1]) == (1, 0)
    member.connection.send(("publish", "said/", b""))
    receiving.wait()


def test_abort_frees_who_received_half_a_message(crew):
    crew.build("g0")
    crew.begin({"w1": (send_whole, ("w0",))})
    crew.begin({"w0": (wait_for_the_rest, ("w1", crew.process_id("w1")))})
    hear_from(crew, "w0")
    crew.abort("w0", "w2")
    assert_freed(crew.finish("w0"))
    crew.strike("w1", signal.SIGKILL)
    crew.build("g1", ("w0", "w2"))


def test_abort_frees_who_sent_half_a_message(crew):
    crew.build("g0")
    crew.begin({"w1": (wait_for_the_rest, ("w0", crew.process_id("w0"))), "w0": (send_whole, ("w1",))})
    hear_from(crew, "w1")
    crew.abort("w0", "w1", "w2")
    assert_freed(crew.finish("w1"))
    crew.strike("w0", signal.SIGCONT)
    assert_freed(crew.finish("w0"))


def count_waiters(_: Member) -> int:
    return sum(thread.name.startswith("waiter") for thread in threading.enumerate())


def assert_nobody_is_left_behind(crew: Crew, *names: str) -> None:
    crew.call(close, on=names)
    nobody = dict.fromkeys(names, 0)
    assert eventually(lambda: crew.call(count_waiters, on=names), lambda now: now == nobody) == nobody


@pytest.mark.parametrize("action", [wait_for_message, wait_for_reduction])
def test_threads_that_wait_for_one_who_died_end_soon_after_abort(crew, action):
    abort_while_all_wait_for_the_frozen(crew, action)
    assert_nobody_is_left_behind(crew, "w0", "w2")


UNDER_WAY = TensorSpec((300_000_000,), torch.uint8)


def send_and_wait(member: Member, peer: str) -> None:
    member.transport.send(torch.ones(UNDER_WAY.shape, dtype=torch.uint8), peer, 7).wait()


def receiving_of(member: Member, peer: str) -> Receiving:
    """A message of which the first bytes are there; says so."""
    receiving = member.transport.receive(UNDER_WAY, peer, 7)
    deadline = time.monotonic() + 10.0
    while receiving.buffer[1000] != 1 and time.monotonic() < deadline:
        pass
    member.connection.send(("publish", "said/", b""))
    return receiving


def receive_and_say(member: Member, peer: str) -> None:
    receiving_of(member, peer).wait()


def leave(member: Member, message: Sending | Receiving) -> None:
    """Have nobody wait for a message when the step is called off, and let go of it."""
    deadline = time.monotonic() + 10.0
    while not member.groups._is_aborted and time.monotonic() < deadline:
        time.sleep(0.0005)
    del message


def send_and_leave(member: Member, peer: str) -> None:
    leave(member, member.transport.send(torch.ones(UNDER_WAY.shape, dtype=torch.uint8), peer, 7))


def receive_and_leave(member: Member, peer: str) -> None:
    leave(member, receiving_of(member, peer))


def test_a_message_that_is_under_way_between_survivors_leaves_no_thread_behind(crew):
    """Its threads and buffers would be kept by gloo for ten minutes if the connection were shut down in the middle of it."""
    pairs = ((send_and_wait, receive_and_say), (send_and_leave, receive_and_say), (send_and_wait, receive_and_leave))
    for generation, (send, receive) in enumerate(pairs):
        crew.build(f"g{generation}")
        crew.begin({"w1": (send, ("w0",)), "w0": (receive, ("w1",))})
        hear_from(crew, "w0")
        crew.abort("w0", "w1", "w2")
        crew.finish("w0", "w1")
        assert_nobody_is_left_behind(crew, "w0", "w1")
        crew.call(close, on=("w2",))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_that_dies_after_it_published_its_address(crew, how):
    """The constructor hangs in the others; abort frees them, and the next generation is not disturbed."""
    silent = set(crew.names)

    def strike(name: str, _: str) -> None:
        if name == "w1" and name in silent:
            crew.strike(name, how)
        silent.discard(name)

    crew.on_publish = strike
    crew.begin(dict.fromkeys(crew.names, (build, ("g0", crew.names))))
    while silent:
        crew.relay(10.0)
    crew.abort("w0", "w2")
    assert_freed(crew.finish("w0", "w2"))
    crew.build("g1", ("w0", "w2"))
    assert len(set(crew.call(reduce_over, None, 1, on=("w0", "w2")).values())) == 1


def open_connections(member: Member, when: str) -> None:
    """A TCP connection, a socket pair and a listening socket that have nothing to do with the groups."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    member.kept[when] = [(client, accepted), socket.socketpair(), (server, server)]


def use_connections(member: Member, when: str) -> bool:
    *pairs, (server, _) = member.kept[when]
    with socket.create_connection(server.getsockname()) as late:
        accepted, _ = server.accept()
        pairs.append((late, accepted))
        for one, other in pairs:
            one.sendall(b"there")
            other.sendall(b"back")
            if (other.recv(5), one.recv(4)) != (b"there", b"back"):
                return False
        accepted.close()
    return True


def build_while_others_connect(member: Member, attempt: str, members: tuple[str, ...]) -> str:
    """As a thread that loads samples does."""
    publish = member.rendezvous._publish

    def open_and_publish(key: str, value: bytes) -> None:
        if "meanwhile" not in member.kept:
            open_connections(member, "meanwhile")
        publish(key, value)

    member.rendezvous._publish = open_and_publish
    return build(member, attempt, members)


@pytest.mark.parametrize("is_built", [True, False])
def test_abort_touches_no_socket_that_others_opened_while_groups_were_connected(crew, is_built):
    members = ("w0", "w1", "w2")
    crew.begin({"w0": (build_while_others_connect, ("g0", members))})
    if is_built:
        crew.begin(dict.fromkeys(("w1", "w2"), (build, ("g0", members))))
        assert set(crew.finish(*members).values()) == {"built"}
        crew.begin({"w0": (wait_for_message, ("w1",))})
        hear_from(crew, "w0")
    else:
        crew.relay(10.0)
    crew.abort("w0")
    assert_freed(crew.finish("w0"))
    eventually(lambda: crew.call(count_drains, on=("w0",))["w0"], lambda num_drains: num_drains == 0)
    assert crew.call(use_connections, "meanwhile", on=("w0",)) == {"w0": True}


def count_drains(_: Member) -> int:
    return sum(thread.name.startswith("drain") for thread in threading.enumerate())


def test_abort_touches_no_foreign_socket(crew):
    crew.call(open_connections, "before", on=("w0",))
    crew.build("g0")
    crew.call(open_connections, "after", on=("w0",))
    crew.begin({"w0": (wait_for_message, ("w1",))})
    hear_from(crew, "w0")
    crew.abort("w0")
    assert_freed(crew.finish("w0"))
    assert crew.call(use_connections, "before", on=("w0",)) == {"w0": True}
    assert crew.call(use_connections, "after", on=("w0",)) == {"w0": True}


def count_descriptors(_: Member) -> int:
    return len(os.listdir("/proc/self/fd"))


def test_generations_that_were_closed_leave_no_descriptors(crew):
    crew.build("g0")
    crew.call(close)
    before = crew.call(count_descriptors)  # the first generation may still be there: groups are torn down a little later

    def is_no_more(now: dict[str, int]) -> bool:
        return all(now[worker] <= before[worker] for worker in before)

    for generation in range(1, 6):
        crew.build(f"g{generation}", subgroups=[("w0", "w1"), ("w1", "w2")])
        crew.call(close)
    assert is_no_more(eventually(lambda: crew.call(count_descriptors), is_no_more))


def test_names_may_hold_any_character():
    names = ("rack 0/w,1", "rack%2F0")
    assert members_of(group_prefix("attempt3", names) + "/store/key") == list(names)
    with leaves_nothing(), Crew(*names) as crew:
        crew.build("g0")


def test_a_member_alone_is_a_group():
    with leaves_nothing(), Crew("w0") as crew:
        crew.build("g0")
        assert crew.call(reduce_over, None, 1)
