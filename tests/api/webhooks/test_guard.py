"""Where webhooks go: every address is judged, and the one that was judged is the one that is connected to."""

import socket
import threading
from contextlib import suppress
from ipaddress import ip_address, ip_network

import anyio
import httpcore2
import pytest

from api.webhooks.guard import Guard, GuardedBackend, TargetRefusedError
from api.webhooks.names import MOST_LOOK_UPS
from api.webhooks.sender import Sender
from tests.api.webhooks.receiver import PATIENCE_SECONDS, receiver
from tests.patience import eventually

pytestmark = pytest.mark.anyio

NEVER = ["169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "::ffff:169.254.1.1", "64:ff9b::a9fe:a9fe"]
PRIVATE = [
    "10.0.0.1",
    "192.168.1.1",
    "172.16.0.1",
    "100.64.0.1",
    "fd00:ec2::254",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
    "2002:a00:1::",
    "64:ff9b:1::a00:1",
    "fec0::1",
    "::10.0.0.1",
    "192.0.0.192",
    "192.88.99.1",
    "168.63.129.16",
    "3fff::1",
]
LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]
PUBLIC = ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"]
EVERYWHERE = (ip_network("0.0.0.0/0"), ip_network("::/0"))


def is_refused(guard, address):
    try:
        guard.check(ip_address(address))
    except TargetRefusedError:
        return True
    return False


def refused(guard, addresses):
    return [address for address in addresses if is_refused(guard, address)]


def test_by_default_only_public_addresses():
    guard = Guard(loopback=False)
    assert refused(guard, [*NEVER, *PRIVATE, *LOOPBACK, *PUBLIC]) == [*NEVER, *PRIVATE, *LOOPBACK]


def test_settings_allow_private_networks_but_never_link_local_ones():
    guard = Guard(loopback=False, networks=EVERYWHERE)
    assert refused(guard, [*NEVER, *PRIVATE, *LOOPBACK]) == [*NEVER, *LOOPBACK]
    one = Guard(loopback=False, networks=(ip_network("10.0.0.0/30"),))
    assert refused(one, ["10.0.0.1", "10.0.0.4", "::ffff:10.0.0.2"]) == ["10.0.0.4"]


def test_loopback_for_a_service_on_loopback():
    assert refused(Guard(loopback=True), [*LOOPBACK, *PRIVATE]) == PRIVATE


def resolving(monkeypatch, *addresses):
    """Every name leads to these addresses."""

    def found(*arguments, **named):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1.", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "::ffff:127.0.0.1", "localhost"]
)
async def test_whatever_spells_a_refused_address_is_refused_beforehand(host):
    with pytest.raises(TargetRefusedError, match="use an address that others reach"):
        await Guard(loopback=False).check_host(host)
    await Guard(loopback=True).check_host(host)


async def test_a_name_is_refused_beforehand_where_it_leads_to_a_refused_address(monkeypatch):
    resolving(monkeypatch, "93.184.215.14", "10.0.0.1")
    with pytest.raises(TargetRefusedError, match="KINTSUGI_WEBHOOK_NETWORKS") as refused:
        await Guard(loopback=False).check_host("receiver.example")
    assert refused.value.value == "10.0.0.1"


@pytest.fixture
def slow(monkeypatch):
    """Resolvers answer for no name that begins with slow before the end; gives those that were looked up."""
    asked, at_the_end, found = [], threading.Event(), socket.getaddrinfo

    def unanswered(host, *arguments, **named):
        if not host.startswith("slow"):
            return found(host, *arguments, **named)
        asked.append(host)
        at_the_end.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unanswered)
    yield asked
    at_the_end.set()


async def test_a_name_that_nobody_knows_yet_or_soon_enough_is_judged_later(monkeypatch, slow):
    guard = Guard(loopback=False)
    await guard.check_host("no-such-host.invalid")
    monkeypatch.setattr("api.webhooks.guard.LOOK_UP_SECONDS", 0.01)
    await guard.check_host("slow.example")


async def test_names_whose_resolvers_are_slow_hold_up_no_other(monkeypatch, slow):
    monkeypatch.setattr("api.webhooks.guard.LOOK_UP_SECONDS", 0.01)
    guard, names = Guard(loopback=True), [f"slow{number}.example" for number in range(MOST_LOOK_UPS)]
    for name in (*names[:-1], *names[:-1]):
        await guard.check_host(name)
    asked_once = sorted(names[:-1])  # whoever asks again waits for the same answer
    assert eventually(lambda: sorted(slow), lambda asked: asked == asked_once) == asked_once
    with receiver() as site:
        async with Sender(guard, timeout_seconds=PATIENCE_SECONDS, most_at_once=1) as sender:
            assert (await sender.send(site.url.replace("127.0.0.1", "localhost"), {}, "{}")).status == 204
    await guard.check_host(names[-1])
    with pytest.raises(httpcore2.ConnectError, match="other names"):
        await guard.addresses("slow.other.example")


async def test_the_judged_address_is_the_connected_one(monkeypatch):
    """A name that resolves differently a second time gains nothing: it is resolved once."""
    answers = iter([[(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]])

    def changing(*arguments, **named):
        return next(answers)

    with receiver() as site:
        monkeypatch.setattr(socket, "getaddrinfo", changing)
        async with Sender(Guard(loopback=True), timeout_seconds=10, most_at_once=1) as sender:
            attempt = await sender.send(site.url.replace("127.0.0.1", "changing.example"), {}, "{}")
        assert attempt.status == 204
        assert site.received[0].headers["Host"].startswith("changing.example:")


async def test_one_refused_address_among_several_is_enough(monkeypatch):
    resolving(monkeypatch, "93.184.215.14", "10.0.0.1")
    with pytest.raises(TargetRefusedError):
        await GuardedBackend(Guard(loopback=False)).connect_tcp("mixed.example", 443)


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "127.0.0.1.", "localhost"])
async def test_other_spellings_of_loopback_are_refused(host):
    async with Sender(Guard(loopback=False), timeout_seconds=10, most_at_once=1) as sender:
        attempt = await sender.send(f"http://{host}:9/", {}, "{}")
    assert attempt.status is None
    assert "127.0.0.1" in attempt.error or "::1" in attempt.error


async def test_a_name_that_nobody_knows():
    with pytest.raises(httpcore2.ConnectError, match="resolved"):
        await GuardedBackend(Guard(loopback=True)).connect_tcp("no-such-host.invalid", 80)


async def test_an_answer_that_is_no_http():
    with socket.create_server(("127.0.0.1", 0)) as server:

        async def answer():
            connection, _ = await anyio.to_thread.run_sync(server.accept)
            with connection:
                connection.sendall(b"SSH-2.0-nothing\r\n" * 10)

        async with Sender(Guard(loopback=True), timeout_seconds=10, most_at_once=1) as sender, anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            attempt = await sender.send(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, "{}")
    assert attempt.status is None
    assert attempt.error


async def test_a_receiver_that_says_for_ever_that_it_will_answer_is_hung_up_on_before_it_holds_up_others():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection, suppress(OSError):
                while True:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000)

        thread = threading.Thread(target=answer)
        thread.start()
        async with Sender(Guard(loopback=True), timeout_seconds=10, most_at_once=1) as sender:
            attempt = await sender.send(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, "{}")
        thread.join(PATIENCE_SECONDS)
    assert (attempt.status, attempt.error) == (None, "the receiver says more than 32768 bytes without an answer")
