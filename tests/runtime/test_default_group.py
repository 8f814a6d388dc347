"""Plain scripts are told at once that their process group cannot sum what they sum."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.default_group import require_sums_in_host_memory
from kintsugi.runtime.plain import PlainRun
from kintsugi.runtime.synchronization import PeerTransport

ON_DEVICES_ALONE = "cuda:gloo"
"""A real group without a backend for host memory, as NCCL's is."""
REFUSED = r"backend: cuda:gloo sums nothing in host memory; .*init_process_group\('cpu:gloo,cuda:nccl'\)"


@pytest.fixture(autouse=True)
def group(request) -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group(getattr(request, "param", "gloo"), store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def plain_run(folder) -> PlainRun:
    return PlainRun(folder, num_samples=4, global_batch_size=2, num_steps=2)


@pytest.mark.parametrize("group", ["gloo", "cpu:gloo,cuda:gloo", "cpu:gloo"], indirect=True)
def test_a_group_that_sums_in_host_memory_is_accepted(tmp_path):
    PeerTransport.of_process_group().close()
    plain_run(tmp_path).close()


@pytest.mark.parametrize("group", [ON_DEVICES_ALONE], indirect=True)
def test_a_group_of_devices_alone_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(1))
    with pytest.raises(InvalidInputError, match=REFUSED) as refusal:
        plain_run(tmp_path)
    assert refusal.value.value == ON_DEVICES_ALONE
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInputError, match=REFUSED):
        PeerTransport.of_process_group()


@pytest.mark.parametrize("backends", ["nccl", "undefined", "cpu:gloo,cuda:nccl"])
def test_what_torch_makes_of_a_backend_is_judged(monkeypatch, backends):
    """On a machine with CUDA devices, where "undefined" stands for none given; up to torch 2.13 it is asked for the first way."""
    for asked in ("torch._C._get_accelerator", "torch.accelerator.current_accelerator"):
        monkeypatch.setattr(asked, lambda **_: torch.device("cuda"))
    config = str(dist.distributed_c10d.BackendConfig(dist.Backend(backends)))
    monkeypatch.setattr(dist, "get_backend_config", lambda: config)
    if "cpu" in backends:
        require_sums_in_host_memory()
        return
    with pytest.raises(InvalidInputError, match="backend: cuda:nccl sums nothing in host memory"):
        require_sums_in_host_memory()
