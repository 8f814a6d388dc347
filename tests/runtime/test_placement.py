"""Which worker gets which device, and who is told that there are too few."""

import pytest
import torch

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.options import AgentOptions, TransportKind, WorkerOptions
from kintsugi.runtime.placement import placed, workers_per_device
from kintsugi.runtime.train import train
from tests.runtime.jobs import tiny_gpt

WORKERS = ("w00", "w01", "w02")
NCCL = WorkerOptions(transport=TransportKind.NCCL)


@pytest.fixture(autouse=True)
def with_nccl(monkeypatch):
    """As in a build of torch for CUDA; nothing here asks the device for more."""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)


def test_each_worker_gets_the_next_device():
    assert placed(NCCL, "cuda", WORKERS, 4).devices == {"w00": "cuda:0", "w01": "cuda:1", "w02": "cuda:2"}


def test_what_was_said_holds_and_the_others_get_what_is_left():
    options = WorkerOptions(transport=TransportKind.NCCL, devices={"w01": "cuda:0", "w09": "cuda:3"})
    assert placed(options, "cuda", WORKERS, 3).devices == {"w00": "cuda:1", "w01": "cuda:0", "w02": "cuda:2", "w09": "cuda:3"}


def test_other_transports_share_devices():
    for kind in (TransportKind.GLOO, TransportKind.GLOO_CHANNELS):
        options = WorkerOptions(transport=kind)
        assert placed(options, "cuda:0", WORKERS, 1) is options
        assert placed(options, "cpu", WORKERS, 0) is options


@pytest.mark.parametrize(
    ("device", "num_devices", "devices"),
    [("cuda", 2, {}), ("cuda:0", 4, {}), ("cuda", 4, {"w00": "cuda:1", "w02": "cuda:1"})],
)
def test_too_few_devices_are_told_with_the_way_out(device, num_devices, devices):
    options = WorkerOptions(transport=TransportKind.NCCL, devices=devices)
    with pytest.raises(InvalidInputError, match=r"3 workers would have .* take transport='gloo'") as caught:
        placed(options, device, WORKERS, num_devices)
    assert (caught.value.field, caught.value.value) == ("transport", "nccl")


def test_one_worker_keeps_the_jobs_own_device():
    assert placed(NCCL, "cuda:2", WORKERS[:1], 4).devices == {"w00": "cuda:2"}


def test_where_nccl_allows_it_workers_share(monkeypatch):
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 3))
    assert set(placed(NCCL, "cuda", WORKERS, 1).devices.values()) == {"cuda:0"}
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    with pytest.raises(InvalidInputError, match="needs a device for each worker"):
        placed(NCCL, "cuda", WORKERS, 1)


def test_a_job_for_processors_is_refused_before_anything_starts():
    with pytest.raises(InvalidInputError, match="the job computes on cpu; give it device='cuda', or take transport='gloo'"):
        placed(NCCL, "cpu", WORKERS, 0)


def test_a_transport_may_be_written_as_text():
    assert WorkerOptions(transport="nccl").transport is TransportKind.NCCL
    with pytest.raises(InvalidInputError, match="known ones: gloo, gloo-channels, nccl") as caught:
        WorkerOptions(transport="mpi")
    assert (caught.value.field, caught.value.value) == ("transport", "mpi")


def test_training_is_refused_with_the_reason():
    with pytest.raises(InvalidInputError, match="carries tensors between CUDA devices"):
        train(tiny_gpt, workers=2, dp=1, pp=2, options=AgentOptions(worker=NCCL))


@pytest.mark.parametrize(
    ("device", "devices", "most"),
    [
        ("cuda", {}, 3),
        ("cuda:1", {}, 3),
        ("cuda", {"w00": "cuda:0", "w01": "cuda:1", "w02": "cuda:2"}, 1),
        ("cuda", {"w02": "cuda:1", "w09": "cuda:0"}, 2),
    ],
)
def test_workers_of_one_device_are_counted(device, devices, most):
    assert workers_per_device(WorkerOptions(devices=devices), device, WORKERS) == most
