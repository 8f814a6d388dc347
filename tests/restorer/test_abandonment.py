"""What is given up is let go of at once: garbage that waits for its collector keeps sockets and threads of a group."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from kintsugi.core.errors import CommunicationError
from restorer.reconfigure import _run_all


class Held:
    """A transport that refers to whom it tells of its end, as real ones do."""

    def __init__(self, on_abort: Callable[[], None]) -> None:
        self.on_abort = on_abort

    def close(self) -> None:
        pass


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("error", [CommunicationError("the peer is gone"), AssertionError("a mistake")])
def test_streams_that_failed_keep_no_transport(error):
    opened = []

    def open_transport(on_abort: Callable[[], None]) -> Held:
        transport = Held(on_abort)
        opened.append(weakref.ref(transport))
        return transport

    def fail(transport: Held) -> None:
        try:
            raise RuntimeError("gloo's own words")
        except RuntimeError:
            raise type(error)(*error.args) from None

    with pytest.raises(type(error), match=str(error)):
        _run_all([fail, fail, fail], open_transport, "w0")
    for thread in threading.enumerate():
        if thread.name == "stream-w0":
            thread.join(120.0)
    assert len(opened) == 3
    assert [one() for one in opened] == [None] * 3
