"""Entity tags: on everything that is read, equal exactly where the bytes are; 304 instead of what the client has."""

import pytest

from api.http.conditional import entity_tag, is_known, require_match
from api.problems import PreconditionFailedError
from tests.api.requests import EVENTS, JOB, REPORTS, event, report

READS = ("/v1/jobs", JOB, f"{JOB}/plan", f"{JOB}/plans/0", EVENTS, REPORTS, f"{JOB}/webhooks", "/v1/openapi.json")


@pytest.mark.parametrize("path", READS)
def test_what_the_client_has_is_not_sent_again(client, job, path):
    first = client.get(path)
    tag = first.headers["ETag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
        assert "Content-Length" not in again.headers or again.headers["Content-Length"] == "0"
    other = client.get(path, headers={"If-None-Match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize("path", ["/v1/jobs", JOB, f"{JOB}/plan", EVENTS, REPORTS])
def test_a_change_changes_the_tag(client, job, path):
    before = client.get(path).headers["ETag"]
    assert client.get(path).headers["ETag"] == before
    client.post(EVENTS, json=event("a", 0, "w00"))
    client.post(REPORTS, json=report(1))
    assert client.get(path, headers={"If-None-Match": before}).status_code == 200


def test_refusals_and_other_formats_have_no_tag(client, job):
    for path in ("/v1/jobs/none", "/metrics"):
        assert "ETag" not in client.get(path).headers
    assert client.get("/v1/jobs/none", headers={"If-None-Match": "*"}).status_code == 404


def test_tags_are_strong_and_compared_as_the_method_asks():
    tag = entity_tag("text")
    assert tag == entity_tag(b"text") != entity_tag("other")
    assert is_known(f'W/{tag}, "a"', tag)
    assert not is_known(tag.strip('"'), tag)
    require_match(f'"a", {tag}', tag)
    require_match("*", tag)
    for other in (f"W/{tag}", '"a"', ""):
        with pytest.raises(PreconditionFailedError, match="If-Match"):
            require_match(other, tag)
