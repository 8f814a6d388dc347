"""torchrun's agents meet at the Kintsugi service: `torchrun --rdzv-backend=kintsugi --rdzv-endpoint=HOST:PORT --rdzv-id=RUN`.

Who joins, who leaves and when a round is complete is decided by torch's own dynamic rendezvous; the service keeps its state,
so that no agent is the one that must not die. The round is the generation: it is told with every state, and in the log under
the names of NVIDIA's resiliency extension. The state is pickled by torch, and who may write to the service may put anything
in its place: what is of other classes than torch's state is refused before any of it is made.

`--rdzv-conf` takes torch's options (`join_timeout`, `last_call_timeout`, `keep_alive_interval`, ...), and `token_file`, the
file of a token for the service, which is else that of `KINTSUGI_TOKEN`, and `scheme`, `https` where the service has a
certificate. The id is of one run: once that is over nobody meets under it again.
"""

import io
import os
import pickle
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    Token,
    _NodeDesc,
    _RendezvousState,
    create_handler,
)

from kintsugi.core.logs import get_logger
from kintsugi.core.resiliency import RecoveryEvent
from kintsugi.runtime.torchrun.broken_rounds import BrokenRoundError, MeetsAnew, meet_anew
from kintsugi.runtime.torchrun.options import check, token_of, url_of
from kintsugi.runtime.torchrun.rendezvous_store import Keys, ServiceStore, Value
from kintsugi.runtime.torchrun.restarts import OWN_RENDEZVOUS

BACKEND = "kintsugi"
STATE = "state"
STORE_TIMEOUT_SECONDS = 60.0
STARTING_SECONDS = 60.0
"""For ranks to find each other: who is silent so early may be lost with ranks that the others wait for, half an hour with gloo."""
_CLASSES = {(kind.__module__, kind.__qualname__): kind for kind in (_RendezvousState, _NodeDesc, datetime, timedelta, timezone)}
"""All that a state consists of, beside what pickle makes by itself."""


class ServiceBackend(RendezvousBackend):
    """The state of one rendezvous at the service."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.state = _RendezvousState()
        """The latest that was seen."""
        self.members: dict[_NodeDesc, int] = {}
        """Of the latest round that was complete, as it was first seen, and their ranks."""
        self._round = -1
        self._answered_at: float | None = None
        self.is_training = False
        """Whether ranks train: then nobody waits for the service, and what it is asked for it is asked for again."""
        self._was_away = False

    @property
    def is_known(self) -> bool:
        """Whether the service has ever answered."""
        return self._answered_at is not None

    @property
    def generation(self) -> int:
        """Of the latest state that was seen."""
        return int(self.state.round)

    @property
    def name(self) -> str:
        """What `--rdzv-backend` calls it."""
        return BACKEND

    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and its version; None before anybody came."""
        found = self._called(lambda: self._keys.get(STATE, is_patient=not self.is_training))
        return None if found is None else self._taken(found)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state that `token` stands for; the state that is there then, and whether it is ours."""
        expected = token if isinstance(token, int) else 0
        generation = int(_opened(state).round)
        found = self._called(lambda: self._put(state, expected, generation))
        if found is None or found.version == 0:
            return None
        return *self._taken(found), found.is_set

    def _put(self, state: bytes, expected: int, generation: int) -> Value:
        return self._keys.put(STATE, state, expected=expected, generation=generation, is_patient=not self.is_training)

    def _taken(self, found: Value) -> tuple[bytes, int]:
        """A state as torch is to have it: nobody is silent for as long as the service was away.

        Who is new does not know whether it was until now, so nobody of a complete round has been silent for it: else it would
        have all others gone, who train on, and go on alone under their name. A round that is not has those join again who live.
        """
        self.state = _opened(found.content)
        if self.state.complete and self.generation != self._round:
            self._round, self.members = self.generation, dict(self.state.participants)
        before, self._answered_at = self._answered_at, time.monotonic()
        was_away, self._was_away = self._was_away or (before is None and self.state.complete), False
        if not was_away:
            return found.content, found.version
        now, away = datetime.now(UTC), timedelta(seconds=self._answered_at - before) if before is not None else None
        for node, last in self.state.last_heartbeats.items():
            present = now.replace(tzinfo=last.tzinfo)
            self.state.last_heartbeats[node] = present if away is None else min(last + away, present)
        return pickle.dumps(self.state), found.version

    def _called(self, ask: Callable[[], Value | None]) -> Value | None:
        try:
            return ask()
        except (ConnectionError, PermissionError) as error:
            self._was_away = self._was_away or isinstance(error, ConnectionError)
            raise RendezvousConnectionError(f"the rendezvous at the service failed: {error}") from error


class ServiceRendezvous(MeetsAnew):
    """torch's dynamic rendezvous at the service, its rounds told in the log."""

    def __init__(self, handler: DynamicRendezvousHandler, backend: ServiceBackend, keys: Keys) -> None:
        self._handler = handler
        self._backend = backend
        self._keys = keys
        self._log = get_logger("kintsugi.runtime").bind(run=handler.get_run_id())
        self._is_alone = False
        """Whether the service was away when it was asked last."""
        self._met_at = 0.0
        """On the monotonic clock; of the latest round."""

    def get_backend(self) -> str:
        """What `--rdzv-backend` calls it."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether workers may use the agents' store."""
        return self._handler.use_agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until the next round is complete.

        Raises:
            RendezvousClosedError: the run is over.
            RendezvousTimeoutError: too few came in time.
            RendezvousConnectionError: the service does not answer, or refuses.
            SystemExit: the run ended while this agent waited as a spare.
        """
        self._log.info(RecoveryEvent.RENDEZVOUS_STARTED.value, generation=self._backend.generation)
        self._backend.is_training = False
        # torch has rank 0 tell its address in its own first round alone: who is new in a later one would wait for it in vain
        self._handler._bootstrap_store_info = None
        try:
            found = self._met()
        except RendezvousClosedError:
            raise RendezvousClosedError(
                f"the run of --rdzv-id {self.get_run_id()} is over; start another one under an id that is new, the same for all "
                "its agents"
            ) from None
        except RendezvousTimeoutError:
            raise RendezvousTimeoutError(self._waited_for()) from None
        except RendezvousGracefulExitError:
            self._log.info("the run ended while this agent waited to take part")
            raise SystemExit(0) from None  # torch's agent would return nothing, and torchrun fail on that
        self._log.info(
            RecoveryEvent.RENDEZVOUS_COMPLETED.value,
            generation=self._backend.generation,
            rank=found.rank,
            world_size=found.world_size,
        )
        self._met_at = time.monotonic()
        return found

    def _met(self) -> RendezvousInfo:
        """The round, also where the service was away meanwhile; one that never answered is not waited for."""
        deadline = time.monotonic() + self._handler.settings.timeout.join.total_seconds()
        while True:
            try:
                return self._handler.next_rendezvous()
            except RendezvousConnectionError as error:
                if not self._backend.is_known or not _is_absence(error) or time.monotonic() > deadline:
                    raise
                self._log.warning("the rendezvous waits for the service", reason=str(error))

    def _waited_for(self) -> str:
        """What did not come in time, this agent counted among those that came; it has left by then."""
        settings, state = self._handler.settings, self._backend.state
        seconds, run = settings.timeout.join.total_seconds(), f"--rdzv-id {settings.run_id}"
        longer = "have all wait longer by --rdzv-conf join_timeout=SECONDS"
        came = len(state.participants.keys() | {self._handler._this_node})
        if state.complete or came >= settings.min_nodes:
            return f"the round that {run} is in took no other agent in within {seconds:g} s; {longer}"
        missing = settings.min_nodes - came
        return (
            f"{came} of at least {settings.min_nodes} agents came to {run} within {seconds:g} s, {missing} are missing; start "
            f"torchrun with the same id and --rdzv-endpoint on {missing} more hosts, or {longer}"
        )

    def is_closed(self) -> bool:
        """Whether nobody may join any more."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """Let nobody join any more."""
        self._backend.is_training = False
        self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        """Agents that wait for the next round, or one where ranks that just began may wait for those of a lost agent.

        None while the service is away, for the training goes on; so it does later without an agent that is silent, or without
        its ranks fails by itself.
        """
        self._backend.is_training = True  # torch's agent asks once its ranks are started
        waiting = self._waiting()
        if waiting or time.monotonic() > self._met_at + STARTING_SECONDS or not (lost := self._lost()):
            return waiting
        self._log.warning("an agent was lost while ranks began; the others meet anew", reason=lost)
        return 1

    def _waiting(self) -> int:
        try:
            waiting = self._handler.num_nodes_waiting()
        except RendezvousConnectionError as error:
            if not _is_absence(error):
                raise
            if not self._is_alone:
                self._log.warning("training goes on without the service; agents that come wait for it", reason=str(error))
            self._is_alone = True
            return 0
        self._is_alone = False
        return waiting

    def require_all(self) -> None:
        """Require that nobody is lost from a round whose agents tell each other their ranks.

        Raises:
            BrokenRoundError: somebody is, with the address and process of each.
        """
        if not self.is_exchanging:
            return
        self._waiting()
        if lost := self._lost():
            raise BrokenRoundError(f"{lost}; the round had {len(self._backend.members)} agents")

    def _lost(self) -> str:
        """Who left the round or fell silent, as far as this agent has heard of it; empty where nobody did."""
        present, members = self._handler._state_holder.state.participants, self._backend.members
        gone = [f"{node.addr} (process {node.pid})" for node in members if node not in present]
        if not gone and sorted(members.values()) != list(range(len(members))):
            gone = ["one that this agent never saw"]
        return f"left or silent: {', '.join(gone)}" if gone else ""

    def get_run_id(self) -> str:
        """`--rdzv-id`."""
        return self._handler.get_run_id()

    def shutdown(self) -> bool:
        """Leave, and close all connections."""
        self._backend.is_training = False
        try:
            return self._handler.shutdown()
        finally:
            self._keys.close()


def _is_absence(error: RendezvousConnectionError) -> bool:
    """Whether the service does not answer, in place of refusing."""
    return isinstance(error.__cause__, ConnectionError)


def create(params: RendezvousParameters) -> RendezvousHandler:
    """The rendezvous that torchrun's options describe.

    Raises:
        ValueError: the endpoint, the id or an option cannot be used.
    """
    os.environ[OWN_RENDEZVOUS] = BACKEND
    check(params)
    keys = Keys(url_of(params), params.run_id, token=token_of(params))
    backend = ServiceBackend(keys)
    store = ServiceStore(keys, timeout_seconds=STORE_TIMEOUT_SECONDS)
    rendezvous = ServiceRendezvous(create_handler(store, backend, params), backend, keys)
    store.require_senders = rendezvous.require_all
    meet_anew()
    return rendezvous


def register() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What torch asks of an entry point of the group `torchrun.handlers`."""
    return create


class _Opening(pickle.Unpickler):
    """Makes what a state consists of, and calls nothing else: pickled data may name any function."""

    def find_class(self, module: str, name: str) -> Any:
        """A class of a state.

        Raises:
            pickle.UnpicklingError: it is none.
        """
        try:
            return _CLASSES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a state") from None


def _opened(content: bytes) -> _RendezvousState:
    """A state, which torch pickles and reads back; torch itself reads only what was read here before."""
    try:
        state = _Opening(io.BytesIO(content)).load()
    except Exception as error:
        raise RendezvousStateError("the state at the service is none of torch's") from error
    if not isinstance(state, _RendezvousState):
        raise RendezvousStateError("the state at the service is none of torch's")
    return state
