"""What torchrun is told of the service is looked at before anybody is asked, and refused by its name."""

import httpx2
import pytest

from api import rendezvous
from kintsugi.client.connection import CA_VARIABLE, TOKEN_VARIABLE
from kintsugi.core.errors import NotFoundError, UnauthenticatedError
from kintsugi.runtime.torchrun import rendezvous_store
from kintsugi.runtime.torchrun.options import LONGEST_ID_BYTES, OPTIONS, check, token_of, url_of
from kintsugi.runtime.torchrun.rendezvous_store import Keys
from tests.runtime.torchrun.test_rendezvous import parameters


@pytest.mark.parametrize(
    ("endpoint", "config", "url"),
    [
        ("host:9000", {}, "http://host:9000"),
        ("host", {"scheme": "https"}, "https://host:8000"),
        ("[::1]", {}, "http://[::1]:8000"),
        ("http://host:9000/", {}, "http://host:9000"),
        ("https://host", {"scheme": "https"}, "https://host"),
        ("https://host/behind/proxy", {}, "https://host/behind/proxy"),
    ],
)
def test_the_endpoint_is_the_service(endpoint, config, url):
    assert url_of(parameters(endpoint, **config)) == url


@pytest.mark.parametrize(
    ("endpoint", "config", "why"),
    [
        ("", {}, "--rdzv-endpoint: must be HOST:PORT or the URL of a Kintsugi service, such as 127.0.0.1:8000, not ''"),
        ("host:abc", {}, "--rdzv-endpoint: .* not 'host:abc'"),
        ("::1", {}, "--rdzv-endpoint: .* not '::1'"),
        ("http://", {}, "--rdzv-endpoint: .* not 'http://'"),
        ("host", {"scheme": "ftp"}, "--rdzv-conf scheme: must be http or https, .* not 'ftp'"),
        ("ftp://host", {}, "--rdzv-endpoint: must be http or https, .* not 'ftp'"),
        ("https://host", {"scheme": "http"}, "--rdzv-conf scheme: .* the same that --rdzv-endpoint begins with"),
    ],
)
def test_an_endpoint_that_is_no_address_is_refused(endpoint, config, why):
    with pytest.raises(ValueError, match=why):
        url_of(parameters(endpoint, **config))


def test_options_that_there_are_not_are_refused_and_those_of_torch_are_not():
    check(parameters("host", **dict.fromkeys(OPTIONS, "1"), timeout=900, is_host="0", read_timeout="60"))
    with pytest.raises(ValueError, match=r"--rdzv-conf jion_timeout: is no option; there are close_timeout, .*, token_file"):
        check(parameters("host", jion_timeout="60"))


def test_an_id_that_everybody_has_or_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="--rdzv-id: is 'none' where none is given, for everybody"):
        check(parameters("host", run="none"))
    check(parameters("host", run="x" * LONGEST_ID_BYTES))
    with pytest.raises(ValueError, match="--rdzv-id: must have at most 150 bytes, not 152"):
        check(parameters("host", run="ü" * 76))


def test_no_name_has_more_letters_than_the_service_takes():
    paths = []

    def answer(request):
        paths.append(request.url.path)
        document = {"type": "urn:kintsugi:problem:not-found", "error": NotFoundError("nothing is there").as_dict()}
        return httpx2.Response(404, json=document)

    keys = Keys("http://host", "x" * LONGEST_ID_BYTES, transport=httpx2.MockTransport(answer))
    names = ["state", *(f"torch.rendezvous.{'x' * LONGEST_ID_BYTES}.0/{key}" for key in ("MASTER_ADDR", "MASTER_PORT"))]
    assert [keys.get(name) for name in names] == [None] * 3
    assert len(set(paths)) == 3
    assert all(1 <= len(part) <= rendezvous.MOST_LETTERS for path in paths for part in path.split("/")[3:])
    assert rendezvous_store.MOST_LETTERS == rendezvous.MOST_LETTERS


def test_the_token_is_that_of_the_file_or_the_one_that_all_clients_take(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "kgi_variable")
    path = tmp_path / "token"
    path.write_text("kgi_file\n")
    assert token_of(parameters("host", token_file=str(path))) == "kgi_file"
    assert token_of(parameters("host")) == "kgi_variable"
    monkeypatch.delenv(TOKEN_VARIABLE)
    assert token_of(parameters("host")) is None
    path.write_text("\n")
    with pytest.raises(ValueError, match=r"--rdzv-conf token_file: .* is empty"):
        token_of(parameters("host", token_file=str(path)))
    path.unlink()
    with pytest.raises(ValueError, match=r"--rdzv-conf token_file: .* cannot be read .No such file or directory.*KINTSUGI_TOKEN"):
        token_of(parameters("host", token_file=str(path)))


def test_certificates_are_trusted_as_by_all_clients(monkeypatch):
    monkeypatch.setenv(CA_VARIABLE, "absent.pem")
    with pytest.raises(ValueError, match="ca_file: is no file of certificates that can be read"):
        Keys("https://host", "run")


def test_who_lacks_a_token_is_told_in_words_where_to_put_it():
    document = {"type": "urn:kintsugi:problem:unauthenticated", "error": UnauthenticatedError("no usable token came").as_dict()}
    keys = Keys("http://host", "run", transport=httpx2.MockTransport(lambda _: httpx2.Response(401, json=document)))
    with pytest.raises(PermissionError, match=r"refuses: no usable token came .*token_file=FILE names, or from KINTSUGI_TOKEN\)$"):
        keys.get("state")
