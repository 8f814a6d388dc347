"""Clients of a service that answers as it was told to."""

import httpx2

from kintsugi.client import Client, Patience
from kintsugi.core.membership import Event, EventKind

AT_ONCE = Patience(attempts=3, retry_seconds=0.0, longest_retry_seconds=0.0)


def failed(name: str, generation: int, worker: str) -> Event:
    return Event(kind=EventKind.WORKER_FAILED, id=name, generation=generation, worker=worker)


def answering(*answers, patience=AT_ONCE):
    """A client of a service that gives these answers in turn, and the requests it got."""
    requests, left = [], list(answers)

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    return Client("http://service", patience=patience, transport=httpx2.MockTransport(answer)), requests
