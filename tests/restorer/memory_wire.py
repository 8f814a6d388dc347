"""Migrations between threads of one process, over messages in memory that can be damaged or break off."""

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import torch

from kintsugi.core.decision import Migration, StateKind
from kintsugi.core.errors import CommunicationError, KintsugiError
from restorer.reconfigure import migrate
from restorer.staging import Staging


@dataclass
class Handle:
    """An end of a message in memory."""

    take: object

    def wait(self):
        return self.take()


@dataclass
class Wire:
    """Messages between threads, by (source, target, tag); may damage one, or break for good."""

    messages: dict = field(default_factory=dict)
    posted: dict = field(default_factory=dict)
    """Buffers of receives that have begun; a message is there as soon as it is sent, whoever waits for it."""
    arrived: set = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)
    damage: object = None
    breaks_at: object = None
    is_broken: bool = False
    sent: list = field(default_factory=list)
    most_waiting: Counter = field(default_factory=Counter)
    waiting: Counter = field(default_factory=Counter)

    def put(self, key, tensor):
        with self.changed:
            self.sent.append((key, len(tensor)))
            if self.is_broken or (self.breaks_at and self.breaks_at(key)):
                self.break_down()
                raise CommunicationError("a peer is gone")
            self.messages[key] = self.damage(key, tensor.clone()) if self.damage else tensor.clone()
            self._deliver(key)
            self.changed.notify_all()

    def post(self, key, buffer):
        with self.changed:
            pair = key[:2]
            self.waiting[pair] += 1
            self.most_waiting[pair] = max(self.most_waiting[pair], self.waiting[pair])
            self.posted[key] = buffer
            self._deliver(key)

    def _deliver(self, key):
        if key not in self.messages or key not in self.posted:
            return
        buffer, message = self.posted.pop(key), self.messages.pop(key)
        assert (buffer.shape, buffer.dtype) == (message.shape, message.dtype)
        buffer.copy_(message)
        self.arrived.add(key)

    def get(self, key, buffer):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.arrived or self.is_broken, timeout=240.0), key
            self.waiting[key[:2]] -= 1
            if key not in self.arrived:
                raise CommunicationError("a peer is gone")
        return buffer

    def break_down(self):
        with self.changed:
            self.is_broken = True
            self.changed.notify_all()


@dataclass
class MemoryTransport:
    """A transport between threads of one process."""

    worker: str
    wire: Wire

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> Handle:
        self.wire.put((self.worker, peer, tag), tensor)
        return Handle(lambda: None)

    def receive_into(self, buffer: torch.Tensor, peer: str, tag: int) -> Handle:
        key = peer, self.worker, tag
        self.wire.post(key, buffer)
        return Handle(lambda: self.wire.get(key, buffer))

    def close(self) -> None:
        """Nothing waits here."""


def state_of(parameters, optimizer=None):
    """The state of layer 0, by default without any of the optimizer's."""
    return {(0, StateKind.PARAMETER): parameters, (0, StateKind.OPTIMIZER): optimizer or {}}


def one_attempt(migration: Migration, exports, wire: Wire, stagings, version: int = 0):
    """Every worker in a thread of its own; what arrived at each, or the error it met."""
    workers = sorted({name for t in migration.transfers for name in (t.source, t.target)})
    outcomes = {}

    def work(worker: str) -> None:
        own = exports.get(worker)
        try:
            outcomes[worker] = migrate(
                migration,
                worker,
                stagings[worker],
                version=version,
                export=lambda layer, kind: own[layer, kind],
                open_transport=lambda _: MemoryTransport(worker, wire),
            )
        except KintsugiError as error:
            outcomes[worker] = error
            wire.break_down()

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert outcomes.keys() == set(workers)
    return outcomes


def carry_out(migration: Migration, exports, damage=None):
    """One attempt; raises the first error that anybody meets."""
    wire = Wire(damage=damage)
    outcomes = one_attempt(migration, exports, wire, defaultdict(Staging))
    for outcome in outcomes.values():
        if isinstance(outcome, KintsugiError):
            raise outcome
    assert not wire.messages, "every message was taken"
    return outcomes
