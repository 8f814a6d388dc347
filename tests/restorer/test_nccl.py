"""What of the NCCL transport needs no device: its environment, who is refused, and how the end of its operations is awaited.

The rest is in tests/gpu.
"""

import os
import signal
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch._C._distributed_c10d import WorkResult

from kintsugi.core.errors import CommunicationError, InvalidInputError
from restorer import nccl
from restorer.nccl import NcclLibrary, NcclMovement
from restorer.nccl_requirements import ENVIRONMENT, prepare_environment, require_nccl, require_own_device
from restorer.rendezvous import Rendezvous
from restorer.transport import TensorSpec
from tests.restorer.crew import Crew, Member, build_nccl
from tests.restorer.test_channels import wait_for_sum
from tests.restorer.test_groups import assert_freed, hear_from
from tests.restorer.test_transfers import begin_reductions
from tests.restorer.test_transport import EXCHANGES
from tests.runtime.runs import leaves_nothing


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_the_environment_is_set_where_it_is_not_set_already():
    prepare_environment()
    assert {name: os.environ[name] for name in ENVIRONMENT} == ENVIRONMENT
    prepare_environment()


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_another_environment_is_refused_with_the_way_out(monkeypatch, name):
    monkeypatch.setenv(name, "7")
    with pytest.raises(InvalidInputError, match="unset it, or take transport='gloo'") as caught:
        prepare_environment()
    assert (caught.value.field, caught.value.value) == (name, "7")


def test_jobs_for_processors_and_builds_without_nccl_are_refused(monkeypatch):
    with pytest.raises(InvalidInputError, match="the job computes on cpu"):
        NcclLibrary(torch.device("cpu"), timeout_seconds=1.0)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(InvalidInputError, match="not part of this build of torch"):
        require_nccl(torch.device("cuda", 0))


def meeting(devices: dict[str, str]) -> dict[str, Exception | None]:
    """What comes of each worker's look at the others' devices."""
    stores: dict[str, Rendezvous] = {}

    def publish(key: str, value: bytes) -> None:
        for store in stores.values():
            store.deliver(key, value)

    outcomes: dict[str, Exception | None] = {}

    def meet(worker: str) -> None:
        try:
            require_own_device(stores[worker], "attempt0/all/meet", worker, list(devices), devices[worker])
            outcomes[worker] = None
        except InvalidInputError as error:
            outcomes[worker] = error

    stores |= {worker: Rendezvous(publish) for worker in devices}
    threads = [threading.Thread(target=meet, args=(worker,), daemon=True) for worker in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    return outcomes


def test_workers_with_devices_of_their_own_pass():
    assert meeting({"w0": "GPU-a", "w1": "GPU-b", "w/2": "GPU-c"}) == {"w0": None, "w1": None, "w/2": None}


def test_both_who_share_a_device_are_told_so():
    outcomes = meeting({"w0": "GPU-a", "w1": "GPU-b", "w2": "GPU-a"})
    assert outcomes["w1"] is None
    for worker, other in (("w0", "w2"), ("w2", "w0")):
        assert f"{worker} and {other} share GPU-a; give each its own in devices" in str(outcomes[worker])


@dataclass
class Kernel:
    """What torch tells of an operation on a device: that it is over after some looks, and whether it failed."""

    num_looks: int
    failure: str = ""
    can_hand_errors_over: bool = True

    def is_completed(self) -> bool:
        self.num_looks -= 1
        return self.num_looks < 0

    def get_future_result(self) -> SimpleNamespace:
        return SimpleNamespace(done=lambda: bool(self.failure), value=lambda: WorkResult.COMM_ERROR.value)

    def exception(self) -> Exception | None:
        if not self.can_hand_errors_over:
            raise TypeError("Unable to convert function return value to a Python type!")
        return RuntimeError(self.failure) if self.failure else None


def movement(kernel: Kernel, seconds: float = 60.0) -> NcclMovement:
    return NcclMovement(kernel, torch.ones(3), seconds)


def test_a_movement_is_waited_for_until_it_is_over_and_then_lets_go(monkeypatch):
    monkeypatch.setattr(nccl, "POLL_SECONDS", 0.0)
    own = movement(Kernel(5))
    assert not own.is_over()
    own.wait()
    assert own.is_over()
    assert own.content is None
    own.wait()


def test_a_movement_that_failed_says_so_before_its_group_is_aborted():
    """The way of torch, `wait`, would abort the group first, and so stand still until the groups beside it are given up."""
    with pytest.raises(RuntimeError, match="remote process exited"):
        movement(Kernel(0, "remote process exited")).wait()


def test_a_movement_that_failed_says_so_also_where_torch_cannot_hand_its_error_over():
    """As in 2.11, which raises what no caller takes for an error of communication."""
    with pytest.raises(RuntimeError, match="NCCL told an error"):
        movement(Kernel(0, "remote process exited", can_hand_errors_over=False)).wait()


def test_success_is_what_torch_calls_so():
    assert WorkResult.SUCCESS.value == nccl.SUCCESS


def test_a_movement_has_its_time():
    with pytest.raises(RuntimeError, match="not over within 0 s"):
        movement(Kernel(10**9), seconds=0.0).wait()


def test_nobody_asks_torch_about_groups_that_were_given_up():
    kernel = Kernel(10**9)
    own = movement(kernel)
    assert not own.is_over()
    own.end.say("given up")
    looks = kernel.num_looks
    with pytest.raises(RuntimeError, match="given up"):
        own.wait()
    assert kernel.num_looks == looks


def test_nobody_gives_groups_up_while_torch_is_asked_about_them():
    """The answer would keep the interpreter until the abort is done, and be that of a message that was ended before its time."""
    is_given_up = threading.Event()
    own = movement(Kernel(0))

    def give_up() -> None:
        own.end.say("given up")
        is_given_up.set()

    def look() -> bool:
        threading.Thread(target=give_up, daemon=True).start()
        assert not is_given_up.wait(0.2), "they were given up beside the look"
        return True

    own.work.is_completed = look
    assert own.is_over()
    assert is_given_up.wait(120.0)
    with pytest.raises(RuntimeError, match="given up"):
        own.is_over()


# With what stands in for torch's NCCL


@pytest.fixture(scope="module", name="pair")
def pair_with_stand_in():
    with leaves_nothing(), Crew("w0", "w1") as crew:
        assert set(crew.call(build_nccl, "g0", crew.names, (crew.names,)).values()) == {"built"}
        yield crew


@pytest.mark.processes
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_the_contract_of_a_transport(pair, exchange):
    assert pair.call(exchange, "over channels") == {"w0": True, "w1": True}


@pytest.mark.processes
def test_sums_are_carried_out_in_order(pair):
    assert set(pair.call(begin_reductions, (pair.names,) * 20).values()) == {" ".join(["4"] * 20)}


def receive_from_all(member: Member, peers: tuple[str, ...]) -> float:
    """All receives are begun before the first message is sent."""
    transport = member.groups.channel_transport()
    receivings = [transport.receive(TensorSpec((1000,), torch.float32), peer, 0) for peer in peers]
    member.groups.begin_all_reduce(torch.ones(1000), (member.name, *peers)).wait()
    total = sum(receiving.wait().sum().item() for receiving in receivings)
    transport.settle()
    return total


def send_after_the_sum(member: Member, peer: str, members: tuple[str, ...]) -> float:
    transport = member.groups.channel_transport()
    member.groups.begin_all_reduce(torch.ones(1000), members).wait()
    transport.send(torch.ones(1000), peer, 0).wait()
    return 0.0


@pytest.mark.processes
def test_who_waits_for_many_others_leaves_room_on_the_device_for_what_they_wait_for():
    names = ("w0", "w1", "w2", "w3", "w4", "w5")
    with leaves_nothing(), Crew(*names) as crew:
        assert set(crew.call(build_nccl, "g0", names, (names,)).values()) == {"built"}
        calls = dict.fromkeys(names[1:], (send_after_the_sum, ("w0", names)))
        crew.begin({"w0": (receive_from_all, (names[1:],)), **calls})
        assert crew.finish(*names)["w0"] == 5000.0


def wait_in_vain(member: Member, peer: str) -> None:
    """Nobody calls it off: the host waits for the device, and the device for a message that is never sent."""
    member.groups._channels._library._timeout_seconds = 0.2
    transport = member.groups.channel_transport()
    transport.receive(TensorSpec((1000,), torch.float32), peer, 0).wait().sum()
    transport.settle()


@pytest.mark.processes
def test_a_message_that_never_comes_ends_by_its_timeout():
    with leaves_nothing(), Crew("w0", "w1") as crew:
        assert set(crew.call(build_nccl, "g0", crew.names).values()) == {"built"}
        answer = crew.call(wait_in_vain, "w1", on=("w0",))["w0"]
        assert isinstance(answer, CommunicationError)
        assert "not over within 0.2 s" in str(answer)


def learn_later(member: Member, peer: str) -> str:
    """As in a step: the host learns at the end that what it computed with was not what was sent."""
    transport = member.groups.channel_transport()
    receiving = transport.receive(TensorSpec((1000,), torch.float32), peer, 0)
    member.connection.send(("publish", "said/", b""))
    receiving.wait().sum()
    transport.settle()
    return "nothing was amiss"


@pytest.mark.processes
@pytest.mark.parametrize("action", [learn_later, wait_for_sum])
def test_giving_up_frees_who_waits_and_nothing_counts_that_came_of_it(action):
    names = ("w0", "w1", "w2")
    sums = (("w0", "w1"), ("w1", "w2"))
    with leaves_nothing(), Crew(*names) as crew:
        assert set(crew.call(build_nccl, "g0", names, sums).values()) == {"built"}
        crew.strike("w1", signal.SIGSTOP)
        crew.begin({"w0": (action, ("w1",)), "w2": (action, ("w1",))})
        hear_from(crew, "w0", "w2")
        crew.abort("w0", "w2")
        assert_freed(crew.finish("w0", "w2"))
        assert set(crew.call(build_nccl, "g1", ("w0", "w2"), (("w0", "w2"),), on=("w0", "w2")).values()) == {"built"}
        assert set(crew.call(begin_reductions, (("w0", "w2"),), on=("w0", "w2")).values()) == {"4"}
