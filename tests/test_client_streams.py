"""Streams of news go on wherever the last one broke off."""

from contextlib import closing
from dataclasses import replace
from itertools import islice

import httpx2
import pytest

from kintsugi.client import following
from kintsugi.core import codec
from kintsugi.core.errors import UnavailableError
from kintsugi.core.messages import EventRecord
from kintsugi.core.news import News, NewsKind
from tests.clients import AT_ONCE, answering, failed


def streamed(*messages, end=None):
    """A life of a stream: its messages, and then its end or an error."""

    def content():
        for kind, name, data in messages:
            yield f"event: {kind}\nid: {name}\ndata: {data}\n\n".encode()
        if end is not None:
            raise end

    return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=content())


def news(number):
    record = EventRecord(number=number, received_at="", generation=0, problem=None, event=failed(f"e{number}", 0, "w00"))
    return "event", str(number), codec.dumps(News(job="llama", event=record))


BEGIN = ("begin", "0", '{"number":0}')


def test_a_stream_goes_on_behind_the_last_message_whatever_ends_it():
    client, requests = answering(
        streamed(BEGIN, news(1), news(2), end=httpx2.ReadError("broken")),
        httpx2.ConnectError("refused"),
        httpx2.Response(503),
        streamed((*BEGIN[:1], "2", "{}")),
        streamed((*BEGIN[:1], "2", "{}"), news(3)),
    )
    with client, closing(client.follow("llama", after=0, kinds=[NewsKind.EVENT])) as stream:
        heard = [message.event.number for message in islice(stream, 3)]
    assert heard == [1, 2, 3]
    assert [request.headers.get("Last-Event-ID") for request in requests] == [None, "2", "2", "2", "2"]
    assert dict(requests[0].url.params) == {"after": "0", "kinds": "event", "detail": "brief"}


def test_a_stream_that_cannot_be_had_again_is_told():
    client, requests = answering(streamed(BEGIN, news(1)), *[httpx2.ConnectError("refused")] * AT_ONCE.attempts)
    with client, closing(client.follow()) as stream:
        assert next(stream).kind is NewsKind.EVENT
        with pytest.raises(UnavailableError):
            next(stream)
    assert len(requests) == 1 + AT_ONCE.attempts


def test_a_stream_of_somebody_else_is_taken_up_again():
    page = httpx2.Response(200, headers={"Content-Type": "text/html"}, text="<html>")
    client, _ = answering(page, httpx2.Response(500), streamed(BEGIN, news(1)))
    with client, closing(client.follow("llama")) as stream:
        assert next(stream).event.number == 1


def test_a_stream_is_taken_up_behind_a_message_of_whatever_id():
    client, requests = answering(streamed(("begin", "\u00e9", "")), streamed(BEGIN, news(1)))
    with client, closing(client.follow("llama")) as stream:
        assert next(stream).event.number == 1
    assert dict(requests[1].headers.raw)[b"Last-Event-ID"] == "\u00e9".encode()


def test_a_stream_that_tells_nothing_is_taken_up_more_and_more_seldom(monkeypatch):
    pauses = []
    monkeypatch.setattr(following.time, "sleep", pauses.append)
    patience = replace(AT_ONCE, retry_seconds=0.1, longest_retry_seconds=0.3)
    quiet = (streamed(BEGIN) for _ in range(4))
    client, _ = answering(*quiet, streamed(BEGIN, news(1)), streamed(BEGIN, news(2)), patience=patience)
    with client, closing(client.follow("llama")) as stream:
        assert [message.event.number for message in islice(stream, 2)] == [1, 2]
    assert pauses == [0.1, 0.2, 0.3, 0.3, 0.1]


def test_what_a_stream_tells_is_not_left_out_where_it_is_not_understood():
    client, _ = answering(streamed(BEGIN, ("event", "1", '{"what": "else"}')))
    with client, closing(client.follow("llama")) as stream, pytest.raises(UnavailableError, match="what"):
        next(stream)
