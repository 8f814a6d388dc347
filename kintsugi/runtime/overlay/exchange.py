"""One pass over the links: its messages out and in."""

from collections.abc import Mapping
from typing import Any

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.overlay.inbox import Inbox, Pass
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.messages import NO_BYTES, Channel, Message


class Exchange:
    """Sends and receives the messages of one pass."""

    def __init__(self, links: Links, inbox: Inbox, key: Pass, timeout_seconds: float) -> None:
        """A pass that is called off ends at once."""
        self._links, self._inbox, self.key, self._timeout_seconds = links, inbox, key, timeout_seconds

    def send(self, worker: str, kind: str, fields: Mapping[str, Any], payload: memoryview = NO_BYTES) -> None:
        """Let a message wait for its turn; `payload` must stay as it is until it was sent.

        Raises:
            LostLinkError: there is no link with that worker.
        """
        message = Message(Channel.REDUCTION, kind, {"pass": self.key.stamp(), **fields}, payload)
        try:
            self._links.send(worker, message)
        except CommunicationError as error:
            raise LostLinkError(worker) from error

    def receive(self) -> tuple[str, Message]:
        """The next message of the pass, with its sender.

        Raises:
            CalledOffError: the reductions restart, or the worker was closed.
            UnavailableError: nothing came in time.
        """
        return self._inbox.take(self.key, self._timeout_seconds)


class LostLinkError(CommunicationError):
    """A link that a pass needs is not there; `value` is the neighbour."""

    def __init__(self, worker: str, why: str = "a reduction needs it, and it is not there") -> None:
        super().__init__(why, field="worker", value=worker)
        self.worker = worker


class UnfitMessageError(LostLinkError):
    """A neighbour sent what does not belong to the pass: with that link it comes to nothing, as without it."""
