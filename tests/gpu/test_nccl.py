"""Tensors by NCCL, as far as the devices go: alone on one, between several what the other transports keep and survive, too."""

import itertools
import os
import signal
import time
from collections.abc import Sequence
from functools import cache, partial

import pytest
import torch

from kintsugi.core.errors import CommunicationError, InvalidInputError
from kintsugi.core.plan import Policy
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import JobRequest, LocalDecisions
from kintsugi.runtime.devices import job_on
from kintsugi.runtime.faults import Fault, fail_at
from kintsugi.runtime.options import AgentOptions, TransportKind, WorkerOptions
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.train import train
from restorer.channels import ChannelGroups
from restorer.groups import Groups
from restorer.nccl import NcclLibrary
from restorer.nccl_requirements import prepare_environment
from restorer.ordered import OrderedTransport
from restorer.transport import TensorSpec, Transport
from tests.gpu.devices import DEVICE, NUM_DEVICES, assert_same, device_of, needs_nccl, needs_ranks
from tests.restorer.crew import Crew, Member, close
from tests.restorer.test_groups import assert_freed, hear_from
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request, leaves_nothing, run, survivors

pytestmark = [pytest.mark.processes, needs_nccl]

SECONDS = 60.0
LONG_CYCLES = 3_000_000_000
"""Of a device's clock: over a second on any."""


def build_nccl(
    member: Member,
    attempt: str,
    members: Sequence[str],
    sums: Sequence[tuple[str, ...]] = (),
    *,
    missing: Sequence[str] = (),
    seconds: float = SECONDS,
    rank: int | None = None,
) -> str:
    """Channels between all members, and to those that are missing."""
    prepare_environment()
    torch.cuda.set_device(device_of(int(member.name[1:]) if rank is None else rank))
    library = NcclLibrary(torch.device("cuda"), timeout_seconds=SECONDS)
    everybody = (*members, *missing)
    pairs = itertools.permutations(everybody, 2)
    channels = ChannelGroups(member.name, everybody, pairs, sums, library=library, name=attempt)
    member.groups = Groups(member.name, members, (), member.rendezvous, attempt, channels=channels)
    member.groups.build(address="127.0.0.1", timeout_seconds=seconds, operation_timeout_seconds=SECONDS)
    return "built"


def build(crew: Crew, attempt: str, *members: str, sums: Sequence[tuple[str, ...]] = ()) -> None:
    assert set(crew.call(build_nccl, attempt, members, sums, on=members).values()) == {"built"}


# One rank


def sum_alone(member: Member) -> bool:
    tensor = torch.randn(1000, device="cuda", dtype=torch.float64)
    before = tensor.clone()
    member.groups.begin_all_reduce(tensor, (member.name,)).wait()
    return torch.equal(tensor, before)


def sum_behind_a_long_pass(member: Member) -> tuple[bool, bool]:
    """Whether the host went on while the device computed, and whether the sum had waited for what was computed."""
    tensor = torch.zeros(1000, device="cuda")
    tensor += 0  # a kernel's first use may wait for the device
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_CYCLES)
    computed = torch.cuda.Event()
    tensor += 1
    computed.record()
    reducing = member.groups.begin_all_reduce(tensor, (member.name,))
    is_beside = not computed.query()
    reducing.wait()
    return is_beside, computed.query() and bool((tensor == 1).all())


def give_up_behind_a_long_pass(member: Member) -> str:
    """Who waits is free although the device is not."""
    tensor = torch.zeros(1000, device="cuda")
    torch.cuda._sleep(LONG_CYCLES)
    reducing = member.groups.begin_all_reduce(tensor, (member.name,))
    member.groups.abort()
    try:
        reducing.wait()
    except CommunicationError as error:
        return str(error)
    finally:
        torch.cuda.synchronize()
    return "it was waited for"


def test_one_rank_builds_sums_gives_up_and_builds_again():
    with leaves_nothing(), Crew("w0") as crew:
        build(crew, "g0", "w0", sums=[("w0",)])
        assert crew.call(sum_alone) == {"w0": True}
        assert crew.call(sum_behind_a_long_pass) == {"w0": (True, True)}
        assert crew.call(give_up_behind_a_long_pass) == {"w0": "the groups were given up"}
        for generation in range(1, 4):
            build(crew, f"g{generation}", "w0", sums=[("w0",)])
            assert crew.call(sum_alone) == {"w0": True}
            crew.call(close)


def build_without_the_other(member: Member) -> str:
    return build_nccl(member, "g0", ("w0",), missing=("w1",), seconds=5.0)


def test_a_member_that_never_comes_makes_connecting_time_out_and_the_next_generation_builds():
    with leaves_nothing(), Crew("w0") as crew:
        assert_freed(crew.call(build_without_the_other))
        build(crew, "g1", "w0", sums=[("w0",)])
        assert crew.call(sum_alone) == {"w0": True}


def test_two_workers_on_one_device_are_refused_with_the_way_out():
    with leaves_nothing(), Crew("w0", "w1") as crew:
        answers = crew.call(build_on_one_device, crew.names)
        assert all("share" in answer and "take transport='gloo'" in answer for answer in answers.values())


def build_on_one_device(member: Member, members: Sequence[str]) -> str:
    os.environ.pop("NCCL_MULTI_RANK_GPU_ENABLE", None)
    try:
        build_nccl(member, "g0", members, rank=0)
    except InvalidInputError as error:
        return str(error)
    return "built"


def with_nccl(*faults: Fault, num_workers: int) -> AgentOptions:
    devices = {f"w{rank:02d}": device_of(rank) for rank in range(num_workers)}
    return AgentOptions(worker=WorkerOptions(transport=TransportKind.NCCL, devices=devices, faults=faults))


def trained(request: JobRequest, *faults: Fault) -> RunResult:
    options = with_nccl(*faults, num_workers=len(request.cluster.workers))
    with leaves_nothing(), Agent(job, request, LocalDecisions(), options=options) as agent:
        return agent.run()


job = partial(job_on, tiny_gpt, "cuda", None)


@cache
def reference() -> RunResult:
    """The uninterrupted run on one device, over gloo."""
    return run(partial(job_on, tiny_gpt, DEVICE, None), gpt_request(1, 1))


def test_one_worker_trains_with_nccl_as_without():
    assert_same(trained(gpt_request(1, 1)), reference())


@pytest.mark.skipif(NUM_DEVICES > 1, reason=f"{NUM_DEVICES} CUDA devices are found: there are enough for two workers")
def test_training_says_that_there_are_too_few_devices(monkeypatch):
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    options = AgentOptions(worker=WorkerOptions(transport=TransportKind.NCCL))
    with pytest.raises(InvalidInputError, match="2 workers would have 1 of the 1 here"):
        train(job, workers=2, dp=1, pp=2, options=options)


# Several ranks


def transport_of(member: Member, order: Sequence[int]) -> tuple[Transport, str]:
    peer = {"w0": "w1", "w1": "w0"}[member.name]
    return OrderedTransport(member.groups.channel_transport(), {peer: order}, {peer: order}), peer


def value(tag: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(tag), dtype=torch.float64)


def exchange(member: Member, shape: tuple[int, ...], count: int) -> bool:
    """Both ways at once, wanted in another order than sent, computed with on the device before the host knows of them."""
    order = range(count - 1, -1, -1)
    transport, peer = transport_of(member, order)
    receivings = [transport.receive(TensorSpec(shape, torch.float64), peer, tag) for tag in range(count)]
    sendings = [transport.send(value(tag, shape).cuda() * 2, peer, tag) for tag in order]
    arrived = [receiving.wait() / 2 for receiving in receivings]
    transport.settle()
    for sending in sendings:
        sending.wait()
    return all(torch.equal(tensor.cpu(), value(tag, shape)) for tag, tensor in enumerate(arrived))


def wait_for_message(member: Member, peer: str) -> None:
    """As a step does: the host goes on, and finds out at the commit point."""
    transport, _ = transport_of(member, range(1))
    receiving = transport.receive(TensorSpec((1000,), torch.float32), peer, 0)
    member.connection.send(("publish", "said/", b""))
    receiving.wait().sum()
    transport.settle()


def wait_on_the_device(member: Member, peer: str) -> None:
    """The host waits for the device, which waits for a message."""
    transport, _ = transport_of(member, range(1))
    receiving = transport.receive(TensorSpec((1000,), torch.float32), peer, 0)
    member.connection.send(("publish", "said/", b""))
    receiving.wait().sum().cpu()
    transport.settle()


def wait_for_sum(member: Member, peer: str) -> None:
    tensor = torch.ones(1000, device="cuda")
    member.connection.send(("publish", "said/", b""))
    member.groups.begin_all_reduce(tensor, tuple(sorted((member.name, peer)))).wait()


def sum_of(member: Member, members: tuple[str, ...]) -> bytes:
    tensor = value(int(member.name[1:]), (10_000,)).cuda()
    member.groups.begin_all_reduce(tensor, members).wait()
    return tensor.cpu().numpy().tobytes()


@needs_ranks(2)
def test_messages_and_sums_between_devices():
    pair = ("w0", "w1")
    with leaves_nothing(), Crew(*pair) as crew:
        build(crew, "g0", *pair, sums=[pair])
        for shape, count in (((), 3), ((0,), 2), ((7, 5), 20), ((1000, 1000), 6)):
            assert crew.call(exchange, shape, count) == {"w0": True, "w1": True}
        assert len(set(crew.call(sum_of, pair).values())) == 1


@needs_ranks(2)
@pytest.mark.parametrize("action", [wait_for_message, wait_on_the_device, wait_for_sum])
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_giving_up_frees_who_waits_for_a_peer_that_is_gone(action, how):
    pair = ("w0", "w1")
    with leaves_nothing(), Crew(*pair) as crew:
        build(crew, "g0", *pair, sums=[pair])
        crew.strike("w1", how)
        crew.begin({"w0": (action, ("w1",))})
        hear_from(crew, "w0")
        time.sleep(0.5)  # until the host is where it waits; that it were not yet would make the test easier, not wrong
        crew.abort("w0")
        assert_freed(crew.finish("w0"))
        build(crew, "g1", "w0", sums=[("w0",)])
        assert crew.call(sum_alone, on=("w0",)) == {"w0": True}


@needs_ranks(2)
@pytest.mark.parametrize(("dp", "pp"), [(1, 2), (2, 1)])
def test_two_workers_train_what_one_does(dp, pp):
    assert_same(trained(gpt_request(dp, pp, min_dp=1)), reference())


@needs_ranks(2)
@pytest.mark.parametrize("point", ["forward", "reduce", "commit"])
def test_one_of_two_is_killed_in_a_step(point):
    result = trained(gpt_request(2, 1, Policy.DYNAMIC_PARALLELISM, min_dp=1), fail_at(2, "w01", point))
    assert_same(result, reference())
    assert survivors(result).workers == ("w00",)


@needs_ranks(4)
@pytest.mark.parametrize("policy", [Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM])
@pytest.mark.parametrize("point", ["forward", "backward", "reduce", "commit"])
def test_one_of_four_is_killed_in_a_step(policy, point):
    result = trained(gpt_request(2, 2, policy, min_dp=1), fail_at(2, "w03", point))
    assert_same(result, reference())
    assert "w03" not in survivors(result).workers
