"""torchrun's agents meet at the Kintsugi service: `torchrun --rdzv-backend=kintsugi --rdzv-endpoint=HOST:PORT --rdzv-id=RUN`.

Who joins, who leaves and when a round is complete is decided by torch's own dynamic rendezvous; the service keeps its state,
so that no agent is the one that must not die. The round is the generation: it is told with every state, and in the log under
the names of NVIDIA's resiliency extension. The state is pickled by torch: a service that is not trusted must not be met at.

`--rdzv-conf` takes torch's options (`join_timeout`, `last_call_timeout`, `keep_alive_interval`, ...), and `token_file`, the
file of a token for the service, and `scheme`, `https` where the service has a certificate.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import structlog
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token, create_handler

from kintsugi.core.resiliency import RecoveryEvent
from kintsugi.runtime.torchrun.rendezvous_store import Keys, ServiceStore, Value
from kintsugi.runtime.torchrun.restarts import OWN_RENDEZVOUS

BACKEND = "kintsugi"
STATE = "state"
STORE_TIMEOUT_SECONDS = 60.0
DEFAULT_PORT = 8000


class ServiceBackend(RendezvousBackend):
    """The state of one rendezvous at the service."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.generation = 0
        """Of the latest state that was seen."""

    @property
    def name(self) -> str:
        """What `--rdzv-backend` calls it."""
        return BACKEND

    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and its version; None before anybody came."""
        found = self._called(lambda: self._keys.get(STATE))
        if found is None:
            return None
        self.generation = _generation(found.content)
        return found.content, found.version

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state that `token` stands for; the state that is there then, and whether it is ours."""
        expected = token if isinstance(token, int) else 0
        generation = _generation(state)
        found = self._called(lambda: self._keys.put(STATE, state, expected=expected, generation=generation))
        if found is None or found.version == 0:
            return None
        self.generation = _generation(found.content)
        return found.content, found.version, found.is_set

    def _called(self, ask: Callable[[], Value | None]) -> Value | None:
        try:
            return ask()
        except (ConnectionError, PermissionError) as error:
            raise RendezvousConnectionError(f"the rendezvous at the service failed: {error}") from error


class ServiceRendezvous(RendezvousHandler):
    """torch's dynamic rendezvous at the service, its rounds told in the log."""

    def __init__(self, handler: RendezvousHandler, backend: ServiceBackend, keys: Keys) -> None:
        self._handler = handler
        self._backend = backend
        self._keys = keys
        self._log = structlog.get_logger("kintsugi.runtime").bind(run=handler.get_run_id())

    def get_backend(self) -> str:
        """What `--rdzv-backend` calls it."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether workers may use the agents' store."""
        return self._handler.use_agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until the next round is complete."""
        self._log.info(RecoveryEvent.RENDEZVOUS_STARTED.value, generation=self._backend.generation)
        # torch has rank 0 tell its address in its own first round alone: who is new in a later one would wait for it in vain
        self._handler._bootstrap_store_info = None  # type: ignore[attr-defined]
        found = self._handler.next_rendezvous()
        self._log.info(
            RecoveryEvent.RENDEZVOUS_COMPLETED.value,
            generation=self._backend.generation,
            rank=found.rank,
            world_size=found.world_size,
        )
        return found

    def is_closed(self) -> bool:
        """Whether nobody may join any more."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """Let nobody join any more."""
        self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        """Agents that wait for the next round."""
        return self._handler.num_nodes_waiting()

    def get_run_id(self) -> str:
        """`--rdzv-id`."""
        return self._handler.get_run_id()

    def shutdown(self) -> bool:
        """Leave, and close all connections."""
        try:
            return self._handler.shutdown()
        finally:
            self._keys.close()


def create(params: RendezvousParameters) -> RendezvousHandler:
    """The rendezvous that torchrun's options describe.

    Raises:
        ValueError: the endpoint or an option cannot be used.
    """
    os.environ[OWN_RENDEZVOUS] = BACKEND
    keys = Keys(url_of(params), params.run_id, token=_token(params.get("token_file")))
    backend = ServiceBackend(keys)
    store = ServiceStore(keys, timeout_seconds=STORE_TIMEOUT_SECONDS)
    return ServiceRendezvous(create_handler(store, backend, params), backend, keys)


def register() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What torch asks of an entry point of the group `torchrun.handlers`."""
    return create


def url_of(params: RendezvousParameters) -> str:
    """Where the service is.

    Raises:
        ValueError: the endpoint is empty, or the scheme is neither http nor https.
    """
    scheme = params.get("scheme", "http")
    if scheme not in ("http", "https"):
        raise ValueError(f"rdzv-conf scheme must be http or https, not {scheme!r}")
    if not params.endpoint:
        raise ValueError("--rdzv-endpoint must be HOST:PORT of a Kintsugi service")
    host = params.endpoint if params.endpoint.rpartition(":")[2].isdecimal() else f"{params.endpoint}:{DEFAULT_PORT}"
    return f"{scheme}://{host}"


def _token(path: str | None) -> str | None:
    return Path(path).read_text().strip() if path else None


def _generation(state: bytes) -> int:
    """The round of a state, which torch pickles and reads back in the same way."""
    try:
        return int(pickle.loads(state).round)  # noqa: S301
    except Exception as error:
        raise RendezvousStateError("the state at the service is none of torch's") from error
