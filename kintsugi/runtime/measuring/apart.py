"""Runs what measures a device in a process of its own: the memory that its context takes there ends with it."""

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, TypeVar

from kintsugi.core.errors import KintsugiError, UnavailableError, WorkerError, error_from
from kintsugi.runtime.forking import end_with_fork_server, name_process, start_process
from kintsugi.runtime.measuring.probe import EARLY_ENDS
from kintsugi.runtime.messages import Failed

Answer = TypeVar("Answer")
Progress = Callable[[int, int], None]
"""Called with the pairs of sweeps that are done and with their number."""

SILENCE_SECONDS = 900.0
"""Between two sweeps, or before the first one; the largest models are made and warmed up in a minute."""
_ENDING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Swept:
    """So many of all pairs of sweeps are done."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class _Answered:
    """What came of it; the process ends."""

    content: Any


def measured_apart(
    measure: Callable[[Progress], Answer], progress: Progress | None = None, *, silence_seconds: float = SILENCE_SECONDS
) -> Answer:
    """What `measure` returns in another process, which is given something to tell its progress by.

    Args:
        measure: module-level function (or a partial of one) whose answer can be sent between processes.
        progress: learns what is told there.
        silence_seconds: the longest time between two things that it tells.

    Raises:
        KintsugiError: it was raised there.
        WorkerError: something else was raised there, or the process ended by itself.
        UnavailableError: the process told nothing for too long.
    """
    process, ours = start_process("measuring", partial(_main, measure), is_duplex=False)
    with ours:
        try:
            answer: Answer = _heard(ours, process, progress, silence_seconds)
        finally:
            process.kill()
            process.join(_ENDING_SECONDS)
    return answer


def _heard(connection: Connection, process: ForkServerProcess, progress: Progress | None, silence_seconds: float) -> Any:
    while connection.poll(silence_seconds):
        try:
            message: _Swept | _Answered | Failed = connection.recv()
        except (EOFError, OSError) as error:
            process.join(_ENDING_SECONDS)
            told = f"the process that measures the job ended in the middle of it; {EARLY_ENDS}"
            raise WorkerError(told, field="make_job", value=process.exitcode) from error
        if isinstance(message, _Answered):
            return message.content
        if isinstance(message, Failed):
            raise _error_of(message)
        if progress is not None:
            progress(message.done, message.total)
    raise UnavailableError(f"no sweep over the layers came to an end within {silence_seconds:g} s", field="make_job")


def _error_of(message: Failed) -> KintsugiError:
    if message.error is not None:
        return error_from(message.error)
    return WorkerError(f"raised while it was measured:\n{message.traceback}", field="make_job")


def _main(measure: Callable[[Progress], Any], connection: Connection) -> None:
    end_with_fork_server()
    name_process("measuring")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = measure(lambda done, total: connection.send(_Swept(done, total)))
    except BaseException as error:  # whoever started it raises it
        connection.send(Failed.by(error))
        sys.exit(1)
    connection.send(_Answered(answer))
