"""A process that has loaded what others need, once for all of them: they are its forks, and begin within milliseconds.

Python's own fork server is one for all who use it in a process. This one is its owner's alone: it ends with its owner, however that
one ends, and its forks with it.
"""

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NoReturn

from kintsugi.core.parent import end_with_parent

CLOSING_SECONDS = 5.0
"""How long a process that is ended may take for that."""
_HEEDED = (signal.SIGCHLD, signal.SIGTERM)
"""By a server: a fork ended, and it is to end itself."""
_CTRL_C = (signal.SIGINT,)
_FORK = b"f"
"""What a server is told, along with two descriptors, to have it fork."""


class ForkServer:
    """Begins with the first fork that is asked for, and again with the next one where it ended; safe for several threads."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        """Nothing begins yet.

        Args:
            prepare: what the server does once for all its forks; no thread may be left of it. Its module had better import little,
                for that is loaded before the server minds whether its owner is still there.
        """
        self._prepare = prepare
        self._process: SpawnProcess | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Of the server itself; None before the first fork was asked for."""
        return None if self._process is None else self._process.pid

    def fork(self, live: Callable[..., None], *args: Any) -> "Fork":
        """A process that calls `live` with a connection to this one and `args`, and ends with it; not waited for.

        Raises:
            OSError: there are no descriptors or no memory for it.
        """
        with ExitStack() as theirs, ExitStack() as ours:
            connection, their_connection = Pipe()
            ours.callback(connection.close)
            theirs.callback(their_connection.close)
            lifeline, their_lifeline = Pipe()
            ours.callback(lifeline.close)
            theirs.callback(their_lifeline.close)
            connection.send((live, args))
            self._ask([their_connection.fileno(), their_lifeline.fileno()])
            ours.pop_all()
        return Fork(connection, lifeline)

    def close(self) -> None:
        """End the server and its forks."""
        with self._lock:
            self._end()

    def _ask(self, descriptors: list[int]) -> None:
        """Tell the server of a fork, which it begins once it is prepared."""
        with self._lock:
            if self._control is not None:
                with suppress(BrokenPipeError, ConnectionResetError):  # it ended
                    socket.send_fds(self._control, [_FORK], descriptors, socket.MSG_DONTWAIT)
                    return
            self._end()
            self._control = self._begun()
            socket.send_fds(self._control, [_FORK], descriptors, socket.MSG_DONTWAIT)

    def _begun(self) -> socket.socket:
        """What leads to a new server."""
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as failed:
            failed.callback(ours.close)
            process = get_context("spawn").Process(target=_serve, args=(theirs, self._prepare), daemon=True)
            with _blocking_ctrl_c():
                process.start()
            failed.pop_all()
        self._process = process
        return ours

    def _end(self) -> None:
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is not None:
            process.terminate()
            process.join(CLOSING_SECONDS)
            if process.exitcode is None:
                process.kill()
                process.join()
            process.close()


class Fork:
    """A process that a server began; safe for several threads."""

    def __init__(self, connection: Connection, lifeline: Connection) -> None:
        """Of one that the server was asked for.

        Args:
            connection: to the fork itself.
            lifeline: to its server, which tells how the fork ended, and ends it where anything comes.
        """
        self.connection = connection
        self._lifeline = lifeline
        self._ending = threading.RLock()

    def exit_status(self) -> int | None:
        """Of one that has ended, or does so now; a signal that ended it is below 0. None where its server was ended with it."""
        with self._ending:
            try:
                return int(self._lifeline.recv()) if self._lifeline.poll(CLOSING_SECONDS) else None
            except (EOFError, OSError):
                return None

    def end(self) -> None:
        """Have the process end, whatever it does, or never begin; who waits for what it says is told."""
        with self._ending:
            if self.connection.closed:
                return
            with suppress(OSError):
                self._lifeline.send(None)
            _shut(self.connection)

    def close(self) -> None:
        """Have the process end, and close what leads to it: nobody waits for what it says."""
        with self._ending:
            self.end()
            self.connection.close()
            self._lifeline.close()


def _shut(connection: Connection) -> None:
    """Let nothing more come, so that who waits for it does so no longer."""
    with socket_of(connection) as ours, suppress(OSError):
        ours.shutdown(socket.SHUT_RDWR)


@contextmanager
def socket_of(connection: Connection) -> Iterator[socket.socket]:
    """The socket that a connection is of, which stays open."""
    ours = socket.socket(fileno=connection.fileno())
    try:
        yield ours
    finally:
        ours.detach()


@contextmanager
def _blocking_ctrl_c() -> Iterator[None]:
    """A process that is begun within this has ctrl-c wait until it knows what to do then."""
    resource_tracker.ensure_running()  # where that had to begin, too, it would not leave ctrl-c blocked
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _CTRL_C)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(control: socket.socket, prepare: Callable[[], None]) -> None:
    """The life of a server: it ends when who began it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c reaches the whole group; who began this process ends it in order
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _CTRL_C)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process with more threads than one is not to be forked
    with _ending_with_parent():
        prepare()
    with control:
        _Forks(control).serve()


@contextmanager
def _ending_with_parent() -> Iterator[None]:
    """Within this the process ends with the one that began it, whatever it does; behind it no thread is left of that."""
    parent = parent_process()
    assert parent is not None
    going_on, prepared = Pipe(duplex=False)

    def watch() -> None:
        if going_on not in wait([parent.sentinel, going_on]):
            os._exit(1)

    thread = threading.Thread(target=watch, name="parent", daemon=True)
    thread.start()
    with going_on:
        try:
            yield
        finally:
            prepared.close()
            thread.join()


class _Forks:
    """The forks of this process, which buries them and tells how they ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lifelines: dict[int, Connection] = {}
        """By process id, of those that are not buried."""
        self._signals, self._signalled = socket.socketpair()

    def serve(self) -> None:
        """Fork whenever that is asked for, until nobody can ask any more, or somebody has this process ended."""
        with self._signals, self._signalled:
            self._listen()
            while self._go_on():
                pass
            for pid in tuple(self._lifelines):
                os.kill(pid, signal.SIGTERM)
                self._bury(pid)
            signal.set_wakeup_fd(-1)

    def _listen(self) -> None:
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno())
        for number in _HEEDED:
            signal.signal(number, lambda *_: None)

    def _go_on(self) -> bool:
        """Do what is to be done next; False where that is the end."""
        ready = wait([self._control, self._signals, *self._lifelines.values()])
        goes_on = True
        if self._signals in ready:
            goes_on = signal.SIGTERM not in self._signals.recv(4_096)
            for pid in tuple(self._lifelines):
                self._bury(pid, os.WNOHANG)
        for pid, lifeline in tuple(self._lifelines.items()):
            if lifeline in ready:
                os.kill(pid, signal.SIGKILL)
                self._bury(pid)
        if goes_on and self._control in ready:
            goes_on = self._fork()
        return goes_on

    def _bury(self, pid: int, options: int = 0) -> None:
        """Tell how a fork ended, once it has."""
        found, status = os.waitpid(pid, options)
        if found:
            with self._lifelines.pop(pid) as lifeline, suppress(OSError):  # nobody may want to know
                lifeline.send(os.waitstatus_to_exitcode(status))

    def _fork(self) -> bool:
        """Begin a fork, unless that was ended before; False where there is nobody left for whom."""
        asked, descriptors, _, _ = socket.recv_fds(self._control, len(_FORK), 2)
        ends = [Connection(descriptor) for descriptor in descriptors]
        if len(ends) == 2 and not ends[1].poll():
            self._begin(*ends)
        else:  # there are fewer where this process can have no more
            for end in ends:
                end.close()
        return bool(asked)

    def _begin(self, connection: Connection, lifeline: Connection) -> None:
        server = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)  # a fork must not take for its own what its server does by them
        try:
            pid = os.fork()
            self._lifelines[pid] = lifeline
            if pid == 0:
                self._live(connection, server)
        except OSError:  # no memory, or too many processes
            traceback.print_exc()
            lifeline.close()
        finally:
            connection.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEEDED)

    def _live(self, connection: Connection, server: int) -> NoReturn:
        """The life of a fork."""
        status = 1
        try:
            if sys.platform == "linux":  # elsewhere it sees by its connection, once it has done its work
                end_with_parent(signal.SIGKILL, server)
            self._leave()
            live, args = connection.recv()
            live(connection, *args)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _leave(self) -> None:
        """Let go of all that is the server's."""
        signal.set_wakeup_fd(-1)
        for number in _HEEDED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEEDED)
        for ours in (self._control, self._signals, self._signalled):
            ours.close()
        for lifeline in self._lifelines.values():
            lifeline.close()
