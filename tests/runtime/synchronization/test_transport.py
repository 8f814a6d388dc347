"""Workers find each other: all of one version, at addresses of their machines."""

import threading

import pytest
import torch

from kintsugi.core.errors import CommunicationError, InvalidInputError
from kintsugi.core.version import PROTOCOL
from kintsugi.runtime.synchronization import PeerTransport
from tests.runtime.synchronization.workers import crew


@pytest.mark.parametrize("odd", [0, 2])
def test_a_worker_of_another_version_is_told_so_and_the_others_find_it_gone(odd):
    def main(rank, link):
        def speak_another_version(told: torch.Tensor) -> None:
            told[rank, -1] = PROTOCOL + 1

        expected = InvalidInputError if rank == odd else CommunicationError
        with pytest.raises(expected, match=f"version {PROTOCOL + 1}") as refused:
            link.transport("mixed", rank, 3, fail=speak_another_version if rank == odd else None)
        return refused.value.field

    assert crew(3, main) == ["protocol"] * 3


@pytest.mark.parametrize("address", ["192.0.2.1", "no..host", "a" * 70])
def test_an_address_that_is_none_of_this_machine_is_refused_and_nothing_is_left_running(address):
    before = set(threading.enumerate())
    with pytest.raises(InvalidInputError, match="address of this machine") as refused:
        PeerTransport(lambda _: None, rank=0, num_workers=1, address=address)
    assert (refused.value.field, refused.value.value) == ("address", address)
    assert set(threading.enumerate()) <= before
