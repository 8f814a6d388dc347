"""How two workers greet each other on a fresh connection, and how one knocks to learn whether another is still there.

Hello, welcome and proof: both prove that they know the job's key, and agree on the number of their connection. Whoever is greeted
as somebody else refuses and says who it is, which is also the answer to a knock.
"""

import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from typing import Any

from kintsugi.core import checks
from kintsugi.core.errors import CommunicationError, ForbiddenError
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.link import Limits, Peer
from kintsugi.runtime.overlay.messages import Channel, Message, hold_to, read, write

_HELLO, _WELCOME, _REFUSED, _PROOF = "hello", "welcome", "refused", "proof"
_NOBODY = ""
"""To whom a knock is addressed: everybody refuses it."""
_MOST_BYTES = 16 * 2**10
"""Of a greeting: names of the longest kind fit, and whoever has proved nothing yet does not take memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """As whom a worker greets its neighbours."""

    job: str
    worker: str
    incarnation: int = 0
    key: bytes = b""
    """Shared by the job's workers: both ends of a connection prove that they know it."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """One greeting, which a proof is of: it proves nothing in any other, nor in the other's place."""

    job: str
    caller: str
    called: str
    nonces: tuple[str, str]
    """The caller's, and that of whom it called."""

    def proof(self, key: bytes, kind: str) -> str:
        """That whoever says a message of this kind knows the key."""
        return hmac.new(key, json.dumps([kind, *astuple(self)]).encode(), hashlib.sha256).hexdigest()


def dial(address: str, timeout_seconds: float) -> socket.socket:
    """A connection to `host:port` on which every wait ends after `timeout_seconds`.

    Raises:
        OSError: nobody listens there, or it cannot be reached in time.
        ValueError: that is no address.
    """
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout_seconds)


def greet(connection: socket.socket, own: Identity, worker: str, *, number: int, generation: int, limits: Limits) -> Peer:
    """Greet `worker`, whom this end has called.

    Args:
        connection: fresh; its timeout is for all of the greeting.
        own: as whom.
        worker: who is expected to answer.
        number: of the connection, as far as this end has counted.
        generation: the newest overlay that this end knows.
        limits: of this end, that the other one is to keep to.

    Raises:
        ForbiddenError: it refused, or does not know the job's key.
        CommunicationError: it hung up, or speaks something else.
        OSError: the connection is broken or silent.
    """
    talk, mine = _Talk(connection), secrets.token_hex(16)
    talk.say(_HELLO, **_hello(own, worker, number=number, generation=generation, nonce=mine), **asdict(limits))
    answer = talk.hear()
    if answer.kind != _WELCOME:
        raise ForbiddenError(f"refused: {_text(answer, 'why')}", field="worker", value=worker)
    incarnation, agreed = _number(answer, "incarnation"), _number(answer, "number")
    theirs = _limits(answer)
    meeting = Meeting(own.job, own.worker, worker, (mine, _text(answer, "nonce")))
    _require_proof(answer, meeting, own.key, worker)
    talk.say(_PROOF, proof=meeting.proof(own.key, _PROOF))
    return Peer(worker=worker, incarnation=incarnation, number=agreed, generation=generation, limits=theirs)


def welcome(connection: socket.socket, own: Identity, number_of: Callable[[str], int], *, limits: Limits) -> Peer:
    """Answer somebody who called.

    `number_of` tells how many connections with a worker there were; `limits` are of this end, that the other one is to keep to.
    The timeout of the connection is for all of the greeting.

    Raises:
        ForbiddenError: it wants somebody else, or does not know the job's key.
        CommunicationError: it hung up, or speaks something else.
        OSError: the connection is broken or silent.
    """
    talk = _Talk(connection)
    hello = talk.hear()
    why = _objection(hello, own)
    if why:
        talk.say(_REFUSED, why=why, job=own.job, worker=own.worker, incarnation=own.incarnation)
        raise ForbiddenError(why, field="link")
    worker, mine = _text(hello, "worker"), secrets.token_hex(16)
    incarnation, generation = _number(hello, "incarnation"), _number(hello, "generation")
    number, theirs = max(_number(hello, "number"), number_of(worker) + 1), _limits(hello)
    meeting = Meeting(own.job, worker, own.worker, (_text(hello, "nonce"), mine))
    proof = meeting.proof(own.key, _WELCOME)
    talk.say(_WELCOME, incarnation=own.incarnation, number=number, nonce=mine, proof=proof, **asdict(limits))
    answer = talk.hear()
    if answer.kind != _PROOF:
        raise ForbiddenError("did not prove that it knows the job's key", field="worker", value=worker)
    _require_proof(answer, meeting, own.key, worker)
    return Peer(worker=worker, incarnation=incarnation, number=number, generation=generation, limits=theirs)


def is_there(address: str, own: Identity, worker: str, incarnation: int, timeout_seconds: float) -> bool:
    """Whether a life of a worker may still be there: it answers, or nothing does within the time.

    A connection alone proves nothing: the kernel takes it for a process that is being torn down, whose listening socket may close
    after its links. Whoever hangs up on a greeting, or answers it as somebody else, is not the one that is meant.
    """
    try:
        return _knock(address, own, timeout_seconds) == (own.job, worker, incarnation)
    except (ConnectionError, CommunicationError, ValueError):
        return False
    except OSError:
        return True


def answers(address: str, own: Identity, worker: str, incarnation: int, timeout_seconds: float) -> bool:
    """Whether a life of a worker is there for certain: it says so itself within the time."""
    try:
        return _knock(address, own, timeout_seconds) == (own.job, worker, incarnation)
    except (OSError, CommunicationError, ValueError):
        return False


def _knock(address: str, own: Identity, timeout_seconds: float) -> tuple[Any, Any, Any]:
    """Job, worker and incarnation as whoever answers at an address gives them.

    Raises:
        CommunicationError: it hung up, or speaks something else.
        OSError: nobody answers.
        ValueError: that is no address.
    """
    with dial(address, timeout_seconds) as connection:
        talk = _Talk(connection)
        talk.say(_HELLO, **_hello(own, _NOBODY, number=0, generation=0, nonce=""))
        answer = talk.hear().fields
    return answer.get("job"), answer.get("worker"), answer.get("incarnation")


def _hello(own: Identity, worker: str, *, number: int, generation: int, nonce: str) -> dict[str, Any]:
    return {
        "job": own.job,
        "worker": own.worker,
        "incarnation": own.incarnation,
        "to": worker,
        "number": number,
        "generation": generation,
        "nonce": nonce,
    }


def _objection(hello: Message, own: Identity) -> str:
    if hello.kind != _HELLO or hello.fields.get("job") != own.job:
        return f"this is job {own.job}"
    return "" if hello.fields.get("to") == own.worker else f"this is worker {own.worker}"


class _Talk:
    """What two say to each other on a fresh connection; its timeout, which is for one wait, is for all of it here."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        seconds = connection.gettimeout()
        self._deadline = None if seconds is None else Deadline(seconds)

    def say(self, kind: str, **fields: Any) -> None:
        if self._deadline is not None:
            hold_to(self._deadline, self._connection)
        write(self._connection, Message(Channel.CONTROL, kind, fields))

    def hear(self) -> Message:
        return read(self._connection, most_header_bytes=_MOST_BYTES, most_payload_bytes=0, deadline=self._deadline)


def _text(message: Message, name: str) -> str:
    """A field of a greeting.

    Raises:
        CommunicationError: it is missing, or holds no text that can be written down.
    """
    value = message.fields.get(name)
    if not isinstance(value, str) or not value.isprintable():
        raise _missing(name)
    return value


def _number(message: Message, name: str) -> int:
    """A field of a greeting that counts something.

    Raises:
        CommunicationError: it is missing, or nobody has counted so far.
    """
    value = message.fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < checks.LARGEST_INTEGER:
        raise _missing(name)
    return value


def _limits(message: Message) -> Limits:
    """What whoever greets wants this end to keep to.

    Raises:
        CommunicationError: it does not say so, or that nothing be sent.
    """
    if not (window_bytes := _number(message, "window_bytes")):
        raise _missing("window_bytes")
    seconds = message.fields.get("timeout_seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= checks.LONGEST_SECONDS:
        raise _missing("timeout_seconds")
    return Limits(window_bytes=window_bytes, timeout_seconds=seconds)


def _missing(name: str) -> CommunicationError:
    return CommunicationError(f"a greeting arrived without {name}", field="link")


def _require_proof(message: Message, meeting: Meeting, key: bytes, prover: str) -> None:
    """Require that whoever said this knows the job's key.

    Raises:
        ForbiddenError: it does not.
        CommunicationError: what it said is no proof.
    """
    if not hmac.compare_digest(_text(message, "proof").encode(), meeting.proof(key, message.kind).encode()):
        raise ForbiddenError("does not know the job's key", field="worker", value=prover)
