"""The churn benchmark's test bed: nodes in namespaces, every method for real, and nothing left behind."""

import multiprocessing
import socket
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from benchmarks.churn.baselines import Method
from benchmarks.churn.measure import Setting, scale_out
from benchmarks.churn.overlays import drawn
from benchmarks.churn.relay import relay_main
from benchmarks.churn.testbed import Testbed, unavailable_reason
from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.forking import forkserver

REASON = unavailable_reason()
pytestmark = [pytest.mark.processes, pytest.mark.skipif(REASON is not None, reason=str(REASON))]
PATIENCE_SECONDS = 120.0


def test_every_method_brings_the_state_over_real_links():
    """Digests, sums of gradients and counts of bytes are asserted by the nodes themselves."""
    setting = Setting(state_bytes=2 * 2**20 + 3, shard_bytes=64 * 1024, compute_seconds=0.005, gradient_bytes=4096)
    overlay = drawn(3, 1, num_neighbors=2)
    outcomes = scale_out(overlay, setting, tuple(Method), seed=1)
    assert sorted(outcome.method for outcome in outcomes) == sorted(Method)
    assert outcomes[-1].method is Method.CHECKPOINT
    for outcome in outcomes:
        assert outcome.idle_seconds >= outcome.delay_seconds > 0
        assert outcome.bound_seconds == overlay.bound_seconds(setting.state_bytes)
        if outcome.method is not Method.CHECKPOINT:
            assert outcome.delay_seconds > overlay.joiner_wires[0].latency_seconds / 2


@pytest.fixture(scope="module")
def bed():
    overlay = drawn(4, 2, num_neighbors=2)
    with Testbed(overlay.names, overlay.wires) as testbed:
        yield overlay, testbed


def connected(testbed: Testbed, one: str, other: str) -> tuple[socket.socket, socket.socket]:
    """A connection from one node to another."""
    with testbed.inside(other):
        server = socket.create_server((testbed.address(other), 0))
    server.settimeout(PATIENCE_SECONDS)
    with server:
        with testbed.inside(one):
            client = socket.create_connection(server.getsockname(), timeout=PATIENCE_SECONDS)
        accepted, _ = server.accept()
    accepted.settimeout(PATIENCE_SECONDS)
    return client, accepted


def echo_seconds(client: socket.socket, accepted: socket.socket) -> float:
    """There and back."""
    began = time.monotonic()
    client.sendall(b"x")
    accepted.sendall(accepted.recv(1))
    client.recv(1)
    return time.monotonic() - began


def test_links_are_as_late_as_drawn_and_as_redrawn(bed):
    overlay, testbed = bed
    wire = overlay.wires[0]
    client, accepted = connected(testbed, *wire.between)
    with client, accepted:
        assert min(echo_seconds(client, accepted) for _ in range(5)) >= 2 * wire.latency_seconds
        later = [replace(one, latency_seconds=0.080) for one in overlay.wires]
        testbed.redraw(later)
        assert min(echo_seconds(client, accepted) for _ in range(3)) >= 0.160
        testbed.redraw(overlay.wires)


def test_links_carry_no_more_than_was_drawn(bed):
    overlay, testbed = bed
    wire = overlay.wires[0]
    testbed.redraw([replace(one, bits_per_second=20e6) for one in overlay.wires])
    client, accepted = connected(testbed, *wire.between)
    with client, accepted:
        client.setblocking(False)
        left, began = 2**20, time.monotonic()
        while left:
            with suppress(BlockingIOError):
                client.send(bytes(65536))
            left -= len(accepted.recv(min(left, 65536)))
        seconds = time.monotonic() - began
    assert 2**20 / seconds <= 20e6 / 8 * 1.3, "a bucket's worth passes at once"
    testbed.redraw(overlay.wires)


def test_a_cut_link_carries_nothing_until_it_is_mended(bed):
    overlay, testbed = bed
    one, other = overlay.wires[0].between
    testbed.cut(one, other)
    with pytest.raises(OSError, match=r"unreachable|timed out"):
        connected(testbed, one, other)
    testbed.mend(one, other)
    client, accepted = connected(testbed, one, other)
    client.close()
    accepted.close()


def test_the_relay_ends_with_whoever_started_it():
    """However that ends: the connection is closed with it. Devices and namespaces go with the last process that holds them."""
    ours, theirs = forkserver().Pipe()
    relay = forkserver().Process(target=relay_main, args=({}, {}, theirs), daemon=True)
    relay.start()
    theirs.close()
    assert ours.poll(PATIENCE_SECONDS)
    ours.close()
    relay.join(PATIENCE_SECONDS)
    assert relay.exitcode == 0


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_test_bed_whose_relay_is_killed_says_so_and_ends(is_gone):
    overlay = drawn(2, 1, num_neighbors=1)
    others = set(multiprocessing.active_children())
    with Testbed(overlay.names, overlay.wires) as testbed:
        (relay,) = set(multiprocessing.active_children()) - others
        relay.kill()
        if is_gone:
            relay.join(PATIENCE_SECONDS)
        with pytest.raises(UnavailableError, match="relay: ended" if is_gone else "relay: ended|Cannot find device"):
            testbed.redraw(overlay.wires)
