"""Where a request comes from, and by which names this machine is called."""

import pytest

from api.access.addresses import address_of, is_loopback, neighbourhood, require_own_name, scheme_of
from api.settings import Settings
from kintsugi.core.errors import ForbiddenError


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8000", "127.0.0.1:8000", "127.8.8.8", "[::1]:8000", "", None])
def test_this_machine_may_be_called_by_its_own_names(host):
    require_own_name(scope("127.0.0.1", **({} if host is None else {"host": host})), ())


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1@evil.example", "[", "0"])
def test_a_site_that_pretends_to_be_this_machine_is_refused(host):
    with pytest.raises(ForbiddenError, match="no name of this machine"):
        require_own_name(scope("127.0.0.1", host=host), ())
    require_own_name(scope("127.0.0.1", host=host), Settings(trusted_proxies=["127.0.0.1/32"]).trusted_proxies)
    require_own_name(scope("203.0.113.9", host=host), ())


def scope(peer, **headers):
    encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "scheme": "http", "client": (peer, 1), "headers": encoded}


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("10.0.0.5", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.5", "1.1.1.1, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.5", "1.1.1.1, 198.51.100.1, 10.0.0.6", "198.51.100.1"),
        ("10.0.0.5", "nonsense", "10.0.0.5"),
        ("10.0.0.5", "", "10.0.0.5"),
        ("::ffff:10.0.0.5", "2001:db8::1", "2001:db8::1"),
    ],
)
def test_only_trusted_proxies_say_where_a_request_comes_from(peer, forwarded, address):
    proxies = Settings(trusted_proxies=["10.0.0.0/24"]).trusted_proxies
    assert address_of(scope(peer, x_forwarded_for=forwarded), proxies) == address
    trusted = peer.endswith("10.0.0.5")
    assert scheme_of(scope(peer, x_forwarded_proto="https"), proxies) == ("https" if trusted else "http")
    assert scheme_of(scope(peer, x_forwarded_proto="gopher"), proxies) == "http"


def test_an_ipv6_subscriber_has_one_rate():
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff") != neighbourhood("2001:db8:0:1::1")
    assert neighbourhood("192.0.2.1") != neighbourhood("192.0.2.2")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("kintsugi.example", False),
        ("", False),
    ],
)
def test_what_is_loopback(host, expected):
    assert is_loopback(host) is expected
