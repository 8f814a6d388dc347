"""`kintsugi token`, and a guarded service that listens: over HTTPS, to clients and to trainers."""

import json
import re
import ssl
from functools import partial

import httpx2
import pytest
import trustme

from api.access.tokens import SECRET, NewToken, Scope, TokenPage
from kintsugi.cli import main
from kintsugi.client import Client, Patience
from kintsugi.client.answers import answer_of
from kintsugi.core.errors import ForbiddenError, UnauthenticatedError, UnavailableError, error_from
from kintsugi.runtime.train import train
from tests.api.access.world import issued
from tests.runtime.jobs import profile_for, tiny_gpt
from tests.services import outcome_of, service

JSON = ("--format", "json")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('tokens')}/kintsugi.sqlite3"


def run(capsys, *arguments, status=0):
    """What the command said on standard output."""
    with pytest.raises(SystemExit) as left:
        main(["token", *arguments])
    told = capsys.readouterr()
    assert left.value.code == status, told.err
    return told.out


def created(capsys, url, name, *arguments):
    return run(capsys, "create", "--name", name, "--database-url", url, *arguments).strip()


def listed(capsys, url):
    return json.loads(run(capsys, "list", "--database-url", url, "--format", "json"))["tokens"]


def test_a_token_from_its_creation_to_its_end(capsys, url):
    secret = created(capsys, url, "night shift", "--scope", "report", "--job", "llama", "--expires-in-days", "30")
    assert SECRET.fullmatch(secret)
    (token,) = listed(capsys, url)
    assert (token["name"], token["scope"], token["job"], token["revoked_at"]) == ("night shift", "report", "llama", None)
    assert token["id"] == secret.split("_")[1]
    table = run(capsys, "list", "--database-url", url)
    assert "night" in table
    assert token["id"] in table
    assert token["expires_at"][:10] in table
    assert secret not in table
    run(capsys, "revoke", token["id"], "--database-url", url)
    run(capsys, "revoke", token["id"], "--database-url", url)
    assert listed(capsys, url)[0]["revoked_at"] is not None


def test_a_created_token_as_json_and_what_cannot_be(capsys, url):
    document = json.loads(created(capsys, url, "looker", "--format", "json"))
    assert document["token"]["scope"] == "read"
    assert SECRET.fullmatch(document["secret"])
    run(capsys, "revoke", "nobody", "--database-url", url, status=2)
    run(capsys, "create", "--name", " ", "--database-url", url, status=2)
    run(capsys, "create", "--name", "x", "--expires-in-days", "-1", "--database-url", url, status=2)
    run(capsys, "create", "--name", "x", "--scope", "everything", "--database-url", url, status=2)


@pytest.mark.parametrize("days", ["-1", "0", "nan", "1e300", "37038"])
def test_a_life_that_cannot_be_is_told_in_days(capsys, url, days):
    document = json.loads(run(capsys, "create", "--name", "x", "--expires-in-days", days, "--database-url", url, *JSON, status=2))
    error = document["error"]
    assert (error["field"], str(float(error["value"]))) == ("expires_in_days", str(float(days)))
    assert "second" not in error["message"]


@pytest.mark.parametrize("command", [("list",), ("revoke", "0123456789abcdef")])
def test_a_database_that_is_not_there_is_not_made_to_be_looked_at(capsys, tmp_path, command):
    path = tmp_path / "absent.sqlite3"
    with pytest.raises(SystemExit) as left:
        main(["token", *command, "--database-url", f"sqlite:///{path}"])
    assert left.value.code == 2
    assert "database_url: there is no such file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_token_for_a_job_that_is_not_there_is_made_with_a_word(capsys, url):
    with pytest.raises(SystemExit) as left:
        main(["token", "create", "--name", "early", "--job", "nope", "--database-url", url])
    assert left.value.code == 0
    told = capsys.readouterr()
    assert SECRET.fullmatch(told.out.strip())
    assert "there is no job nope yet" in told.err


@pytest.mark.processes
def test_nothing_listens_beyond_this_machine_without_a_token(tmp_path):
    where = f"sqlite:///{tmp_path}/empty.sqlite3"
    result = outcome_of("serve", "--host", "0.0.0.0", "--port", "0", "--database-url", where)
    assert result.returncode == 2
    assert re.search(r"require_tokens: .*listens on 0\.0\.0\.0.*`kintsugi token create .*127\.0\.0\.1", result.stderr)
    assert "listening on http" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.processes
def test_the_token_of_a_jobs_workers_is_enough_for_a_scheduler_beyond_this_machine(tmp_path, monkeypatch):
    new = NewToken(name="workers", scope=Scope.REPORT, job="llama")
    monkeypatch.setenv("KINTSUGI_OVERLAY_LOG_JOB", "llama")
    monkeypatch.setenv("KINTSUGI_OVERLAY_LOG_TOKEN", issued(f"sqlite:///{tmp_path}/first.sqlite3", new)["workers"])
    with service(tmp_path / "second.sqlite3", "--host", "0.0.0.0") as running:
        assert running.url.startswith("http://0.0.0.0:")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A service over HTTPS with few requests for each token; its URL, its authority's file, and how to get a token."""
    folder, authority = tmp_path_factory.mktemp("guarded"), trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    database = folder / "kintsugi.sqlite3"
    secrets = issued(f"sqlite:///{database}", *(NewToken(name=name, scope=Scope.REPORT) for name in ("trainer", "hurried")))
    files = ("--tls-certificate", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINTSUGI_MAX_REQUESTS_PER_SECOND", "1")
        patch.setenv("KINTSUGI_MAX_REQUEST_BURST", "30")
        with service(database, *files) as running:
            yield running.url, str(folder / "authority.pem"), secrets


@pytest.mark.processes
def test_clients_speak_https_and_send_their_token(guarded):
    url, authority, secrets = guarded
    assert url.startswith("https://")
    with Client(url, ca_file=authority, token=secrets["trainer"]) as client:
        assert client.jobs().jobs == ()
        with pytest.raises(ForbiddenError, match="administer"):
            client._connection.send("GET", "/v1/tokens", answer_of(TokenPage))
    with Client(url, ca_file=authority) as stranger, pytest.raises(UnauthenticatedError, match="Bearer"):
        stranger.jobs()
    once = Patience(attempts=1)
    with Client(url, patience=once) as distrustful, pytest.raises(UnavailableError, match=r"certificate.*KINTSUGI_CA_FILE"):
        distrustful.jobs()
    with Client(url.replace("https", "http"), patience=once) as open_book, pytest.raises(UnavailableError, match=f"write {url}"):
        open_book.jobs()


@pytest.mark.processes
def test_a_client_that_speaks_https_to_a_service_without_is_told_how_to_write_it(tmp_path):
    with (
        service(tmp_path / "kintsugi.sqlite3") as running,
        Client(running.url.replace("http", "https"), patience=Patience(attempts=1)) as client,
        pytest.raises(UnavailableError, match=f"speaks no TLS there: write {running.url}"),
    ):
        client.jobs()


@pytest.mark.processes
def test_a_client_that_asks_too_often_comes_again_when_it_is_told_to(guarded):
    url, authority, secrets = guarded
    headers = {"Authorization": f"Bearer {secrets['hurried']}"}
    with httpx2.Client(base_url=url, headers=headers, verify=ssl.create_default_context(cafile=authority)) as http:
        answers = (http.get("/v1/jobs") for _ in range(1_000))
        refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["Retry-After"] == "1"
    assert error_from(refused.json()["error"]).retry_seconds == 1
    with Client(url, ca_file=authority, token=secrets["hurried"]) as client:
        assert client.jobs().jobs is not None


@pytest.mark.processes
def test_trainers_take_their_token_from_the_environment(guarded, monkeypatch):
    url, authority, secrets = guarded
    monkeypatch.setenv("KINTSUGI_CA_FILE", authority)
    monkeypatch.setenv("KINTSUGI_TOKEN", secrets["trainer"])
    short = partial(tiny_gpt, num_steps=1)
    result = train(short, workers=1, dp=1, pp=1, name="guarded", profile=profile_for(short()), service=url)
    assert len(result.losses) == 1
    with Client(url) as client:
        assert client.job("guarded").summary.applied_generation == 0
    monkeypatch.delenv("KINTSUGI_TOKEN")
    with pytest.raises(UnauthenticatedError):
        train(short, workers=1, dp=1, pp=1, name="stranger", profile=profile_for(short()), service=url)


def test_a_token_that_is_not_there_is_told_with_a_way_out(capsys, url):
    created(capsys, url, "somebody")
    with pytest.raises(SystemExit):
        main(["token", "revoke", "admin", "--database-url", url])
    assert "there is no token of this id; `kintsugi token list` shows those that there are" in capsys.readouterr().err
