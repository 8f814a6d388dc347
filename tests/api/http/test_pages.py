"""Pages: every item once, in order, while others are added; cursors are opaque and belong to one list."""

import base64
import json

import pytest

from api.http.cursors import Cursors
from kintsugi.core.errors import InvalidInputError
from tests.api.http.test_bad_input import assert_is_problem
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job, report


def read(client, path, items, *, between=lambda _: None):
    """All items of a list, one to a page; `between` is called after each page."""
    found, cursor = [], None
    while cursor is not None or not found:
        page = client.get(path, params={"limit": 1, **({} if cursor is None else {"cursor": cursor})}).json()
        found += page[items]
        between(len(found))
        cursor = page["next_cursor"]
    return found


def test_items_that_are_added_meanwhile_come_at_the_end(client, job):
    for number in range(3):
        client.post(REPORTS, json=report(0, "measured", measured={"step": number}))

    def add(number):
        if number < 3:
            client.post(REPORTS, json=report(0, "measured", measured={"step": 10 + number}))

    found = read(client, REPORTS, "reports", between=add)
    assert [record["report"]["measured"]["step"] for record in found] == [0, 1, 2, 11, 12]
    assert [record["number"] for record in found] == [1, 2, 3, 4, 5]


def test_jobs_that_are_added_behind_the_cursor_are_not_shown_twice(client):
    for name in ("b", "d", "f"):
        client.post("/v1/jobs", json=new_job(id=name))

    def add(number):
        if number == 1:
            client.post("/v1/jobs", json=new_job(id="a"))
            client.post("/v1/jobs", json=new_job(id="c"))

    assert [summary["id"] for summary in read(client, "/v1/jobs", "jobs", between=add)] == ["b", "c", "d", "f"]


def test_a_cursor_of_another_list_is_refused(client, job):
    client.post("/v1/jobs", json=new_job(id="second"))
    for number in range(2):
        client.post(EVENTS, json=event(f"e{number}", number, f"w0{number}"))
        client.post(REPORTS, json=report(number + 1))
    cursors = {path: client.get(path, params={"limit": 1}).json()["next_cursor"] for path in ("/v1/jobs", EVENTS, REPORTS)}
    assert all(cursors.values())
    for path in (*cursors, "/v1/jobs/second/events"):
        for source, cursor in cursors.items():
            response = client.get(path, params={"cursor": cursor})
            if source == path:
                assert response.status_code == 200
            else:
                assert assert_is_problem(response, 422)["field"] == "cursor"


def encoded(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "1",
        "",
        "x" * 300,
        "ö",
        encoded(3),
        encoded([["event", "llama"]]),
        encoded([["event", "llama"], []]),
        encoded([["event", "llama"], [-1]]),
        encoded([["event", "llama"], [True]]),
        encoded([["event", "llama"], [2**63]]),
        encoded([["event", "llama"], ["1"]]),
        encoded([["event", "other"], [1]]),
        encoded([["event", "llama"], [1], 2]),
    ],
)
def test_a_cursor_that_was_not_given_out_is_refused_by_name(client, job, cursor):
    error = assert_is_problem(client.get(EVENTS, params={"cursor": cursor}), 422)
    assert error["field"] == "cursor"


def test_texts_that_no_database_holds_are_no_cursors(client):
    for text in ("\ud800", "\0"):
        assert_is_problem(client.get("/v1/jobs", params={"cursor": encoded([["jobs"], [text]])}), 422)


def test_cursors_come_back_as_they_were():
    assert Cursors("a", "b").number(Cursors("a", "b").after(7)) == 7
    assert Cursors("a").pair(Cursors("a").after("x/y", "ü")) == ("x/y", "ü")
    assert Cursors("a").number(None) == 0
    for read_other in (Cursors("b").number, Cursors("a").text, Cursors("a").pair):
        with pytest.raises(InvalidInputError, match="next_cursor"):
            read_other(Cursors("a").after(7))
    assert JOB not in Cursors("jobs").after(JOB)
