"""What conducts a worker from within: it takes the agent's place at the worker's line, and the worker's at the agent's pipe."""

import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection

from kintsugi.core.descriptors import ran_out
from kintsugi.core.errors import KintsugiError
from kintsugi.runtime.control.preparation import is_same_work
from kintsugi.runtime.forking import PLANNER
from kintsugi.runtime.messages import (
    Delivered,
    Failed,
    FromWorker,
    Heartbeat,
    LinkBroken,
    Published,
    Ready,
    Started,
    Stop,
    ToWorker,
)
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import WorkerOptions
from kintsugi.runtime.reach import Address
from kintsugi.runtime.ring.callbacks import Callbacks
from kintsugi.runtime.ring.links import listener
from kintsugi.runtime.ring.messages import Agreement, Joiner
from kintsugi.runtime.ring.node import RingNode
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.foresight import LOW_PRIORITY
from kintsugi.runtime.selfgoverned.held import HeldPlans
from kintsugi.runtime.selfgoverned.inward import Inward
from kintsugi.runtime.selfgoverned.leasing import AgentLease
from kintsugi.runtime.selfgoverned.logbook import Logbook
from kintsugi.runtime.selfgoverned.notes import Newcomer, Reachable
from kintsugi.runtime.selfgoverned.packed import unpacked
from kintsugi.runtime.selfgoverned.regrouping import Regrouping
from kintsugi.runtime.selfgoverned.steering import Steering
from kintsugi.runtime.selfgoverned.switchboard import AllReady, FromSwitchboard, Switchboard
from kintsugi.runtime.selfgoverned.words import (
    Admit,
    Agreed,
    Begin,
    FromGovernor,
    Here,
    Hold,
    Leased,
    Leave,
    Refused,
    Renew,
    Stays,
    ToGovernor,
)
from kintsugi.runtime.workers import worker as trainer
from kintsugi.runtime.workers.commit import CommitRecord
from kintsugi.runtime.workers.listener import leave, tell_or_leave
from planner.contingency import fingerprint

_SWITCH_SECONDS = 0.0005
"""For which a thread may keep the interpreter from others: a message passes every worker of the ring three times, and each of them
may be in the middle of its step."""


def live(worker: str, connection: Connection, make_job: Callable[[], TrainingJob], options: WorkerOptions) -> None:
    """The life of a worker process that governs itself; returns when the agent says so or is gone."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    governor = Governor(worker, connection, options)
    governor.start()
    trainer.live(worker, governor.inward, make_job, options, governor.permit)


class Governor:
    """Of one worker. What concerns the plan is done one thing at a time, in a thread of its own."""

    def __init__(self, worker: str, connection: Connection, options: WorkerOptions) -> None:
        self._worker = worker
        self._connection = connection
        self._host = options.address_of(worker)
        self._ring_options = options.ring
        self._compares = options.compares
        self._sending = threading.Lock()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._held = HeldPlans()
        self._lease = AgentLease(self._tell)
        self._switchboards: dict[str, Address] = {}
        self._closing = ExitStack()
        self._has_begun = False
        self._is_asked_to_leave = False
        self._is_stopped = False
        self.inward = Inward(self._hear)
        """The worker's line."""

    def start(self) -> None:
        """Begin to govern."""
        for name, run in (("governor", self._run), ("agent", self._listen), ("warm-up", _warm_up)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def permit(self, record: CommitRecord) -> None:
        """Let the worker apply a step, unless the others go on without it.

        Raises:
            CommunicationError: they do.
        """
        self._steering.permit(record)

    # Whom it hears, in the threads that they speak in.

    def _listen(self) -> None:
        try:
            while True:
                self._take(self._connection.recv())
        except (EOFError, OSError):
            leave()

    def _take(self, message: ToWorker | ToGovernor) -> None:
        if isinstance(message, Begin):
            self._post(self._begin, message)
        elif isinstance(message, Hold):
            self._held.hold(message.generation, message.plans)
        elif isinstance(message, Leased):
            self._lease.take(message)
        elif isinstance(message, Admit):
            self._post(self._welcome, message)
        elif isinstance(message, Renew):
            self._post(self._renew, message)
        elif isinstance(message, Leave):
            self._is_asked_to_leave = True
            self._post(self._take_leave)
        elif isinstance(message, Stop):
            self._post(self._stop)
        else:
            self.inward.tell(message)

    def _hear(self, message: FromWorker) -> None:
        if isinstance(message, Published):
            self._switchboard.publish(Delivered(message.attempt, message.key, message.value))
        elif isinstance(message, Started):
            self._post(self._open, message)
        elif not isinstance(message, Heartbeat):
            self._tell(message)
        elif message.is_leaving and not self._is_asked_to_leave:
            self._is_asked_to_leave = True
            self._post(self._take_leave)
        if isinstance(message, Ready):
            self._post(self._steering.ready, message)
        elif isinstance(message, LinkBroken):
            self._post(self._regrouping.link_broken, message.attempt, message.reason)

    def _agreed(self, agreement: Agreement) -> None:
        self._switchboards |= {joiner.worker: Newcomer.parsed(joiner.note).switchboard for joiner in agreement.newcomers}
        self._logbook.enter(agreement)
        self._post(self._tell, Agreed(agreement))
        self._post(lambda: self._steering.agreed(self._logbook.latest()))

    def _hear_switchboard(self, message: FromSwitchboard) -> None:
        if isinstance(message, Delivered):
            self.inward.tell(message)
        elif isinstance(message, AllReady):
            self._post(self._steering.all_ready, message.attempt)
            self._post(self._take_leave)
        elif ran_out(message.reason):  # the others can go on without this worker, and not with it
            leave()
        else:
            self._post(self._regrouping.unserved, message.attempt, message.reason)

    def _tell(self, message: FromWorker | FromGovernor) -> None:
        with self._sending:
            tell_or_leave(self._connection, message)

    # What it does.

    def _post(self, act: Callable[..., None], *arguments: object) -> None:
        self._inbox.put(partial(act, *arguments))

    def _run(self) -> None:
        try:
            while not self._is_stopped:  # what the others agreed on meanwhile needs what is closed, and no more of this worker
                self._inbox.get()()
        except Exception as error:  # whatever it is, the job must not wait for this worker
            self._tell(Failed.by(error))
            leave()

    def _open(self, started: Started) -> None:
        """The worker knows its model: it can be reached from now on."""
        self._switchboard = Switchboard(self._worker, self._host, self._hear_switchboard)
        self._closing.callback(self._switchboard.close)
        self._listening = self._closing.enter_context(listener(self._host))
        self._tell(started)
        self._tell(Here(Reachable((self._host, self._listening.getsockname()[1]), self._switchboard.address)))

    def _begin(self, message: Begin) -> None:
        """Take part: found the ring with the others, or join it."""
        course = message.course
        self._logbook = Logbook(course, self._held)
        self._switchboards |= {worker: at.switchboard for worker, at in message.addresses.items()}
        self._node = RingNode(
            self._worker,
            course.agreement or Agreement(course.generation, course.membership.alive),
            self._listening,
            {worker: at.ring for worker, at in message.addresses.items()},
            self._callbacks(),
            lease=self._lease,
            committed_step=course.committed_step,
            options=self._ring_options,
        )
        self._closing.callback(self._node.close)
        self._steering = Steering(
            worker=self._worker,
            ring=self._node,
            meeting=self._switchboard,
            tell=self.inward.tell,
            report=self._tell,
            switchboards=self._switchboards,
            course=course,
            compares=self._compares,
        )
        patience_seconds = self._ring_options.heartbeat_timeout_seconds
        self._regrouping = Regrouping(self._steering, self._node.renew, self._post, patience_seconds)
        self._closing.callback(self._regrouping.close)
        self._has_begun = True
        self._node.start()
        self._steering.begin()

    def _callbacks(self) -> Callbacks:
        return Callbacks(
            on_agreement=self._agreed,
            on_left_out=lambda _: leave(),
            on_failed=lambda _: leave(),
            on_stop=lambda generation: self._post(self._steering.unsettled, generation),
            choose=self._logbook.choose,
        )

    def _welcome(self, message: Admit) -> None:
        """Plan with a worker that joins, beside the training; where that is of use, the ring is to agree on it."""
        course = self._steering.course
        if message.generation == course.generation:
            threading.Thread(target=self._plan_with, args=(message.joiner, course), name="welcome", daemon=True).start()

    def _plan_with(self, joiner: Joiner, course: Course) -> None:
        snapshot = course.joining(joiner)
        try:
            decision = self._held.answer(snapshot, is_untrained=False)
        except KintsugiError as error:
            self._tell(Refused(joiner.worker, str(error)))
            return
        if not is_same_work(unpacked(decision).plan, course.decision.plan):
            self._held.hold(course.generation, {fingerprint(snapshot): decision})
            self._node.admit(joiner)

    def _renew(self, message: Renew) -> None:
        """Try again over new connections."""
        self._regrouping.stalled(message.generation, message.reason)

    def _take_leave(self) -> None:
        """Where that was asked for, plan without this worker, beside the training; then the ring is to agree on it."""
        if not self._has_begun:  # asked for again once all are ready
            return
        course = self._steering.course
        if self._is_asked_to_leave and self._worker in course.membership.alive:
            threading.Thread(target=self._plan_without, args=(course,), name="farewell", daemon=True).start()

    def _plan_without(self, course: Course) -> None:
        snapshot = course.leaving(self._worker)
        try:
            decision = self._held.answer(snapshot, is_untrained=False)
        except KintsugiError as error:
            self._tell(Stays(str(error)))
            return
        self._held.hold(course.generation, {fingerprint(snapshot): decision})
        if self._steering.leave(course.generation):
            self._node.renew(course.generation)

    def _stop(self) -> None:
        self._is_stopped = True
        self._closing.close()
        self.inward.tell(Stop())


def _warm_up() -> None:
    """Where the fork server has not done so; beside the training, which has the cores first."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
    import_module(PLANNER)
