"""What `train` is given, looked at before anything begins: to measure a job takes long, and what is wrong is told at once."""

import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from kintsugi.core import checks
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError, cause_of
from kintsugi.core.handling import Handling
from kintsugi.core.job import Ranges
from kintsugi.core.profile import Profile
from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.faults import Fault
from kintsugi.runtime.options import AgentOptions, WorkerOptions


def cluster_of(workers: int | Cluster) -> Cluster:
    """The cluster itself, or one of so many equal workers.

    Raises:
        InvalidInputError: it is neither a cluster nor a whole number above 0.
    """
    if isinstance(workers, Cluster):
        return workers
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise InvalidInputError(f"must be a whole number above 0 or a Cluster, not {workers!r}", field="workers", value=workers)
    return Cluster.uniform(workers)


def faults_of(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """The faults that are to strike.

    Raises:
        InvalidInputError: they are no list.
    """
    if isinstance(faults, str | bytes) or not isinstance(faults, Iterable):
        message = f"must be a list, as in faults=[kintsugi.fail_at(3, 'w01')], not {faults!r}"
        raise InvalidInputError(message, field="faults", value=repr(faults)[:200])
    return tuple(faults)


def options_of(options: AgentOptions | None) -> AgentOptions:
    """The options, or the usual ones.

    Raises:
        InvalidInputError: they are others than the agent's.
    """
    _of_kind("options", options, AgentOptions, "say options=AgentOptions(worker=WorkerOptions(...))")
    return options or AgentOptions()


def require_kinds(
    *,
    name: str | None,
    profile: Profile | None,
    service: str | None,
    handling: Handling | None,
    ranges: Ranges | None,
    observer: Callable[..., object] | None,
    run: str | Path | None,
    checkpoints: CheckpointOptions | None,
    trace: str | Path | None,
) -> None:
    """Require that each argument is what `train` says of it.

    Raises:
        InvalidInputError: one is not, or goes for what is not there.
    """
    if name is not None:
        checks.name("name", name)
    _of_kind("profile", profile, Profile, "kintsugi.core.codec.load reads one from a file")
    _of_kind("handling", handling, Handling)
    if handling is not None and service is None:
        raise InvalidInputError("is what a service is asked for: say service=..., or leave it out", field="handling")
    _of_kind("ranges", ranges, Ranges)
    if observer is not None and not callable(observer):
        raise InvalidInputError(f"must be a function of the agent, not {observer!r}", field="observer", value=repr(observer)[:200])
    _of_kind("checkpoints", checkpoints, CheckpointOptions)
    if checkpoints is not None and run is None:
        raise InvalidInputError("need a folder: say run=...", field="checkpoints")
    for field, folder in (("run", run), ("trace", trace)):
        _require_folder(field, folder)


def require_degrees(dp: int | None, pp: int | None, num_workers: int) -> None:
    """Require that each degree that is given is a whole number above 0, and that there are workers for both.

    Raises:
        InvalidInputError: one is not, or there are not.
    """
    for field, degree in (("dp", dp), ("pp", pp)):
        if degree is not None:
            checks.count(field, degree)
    if (needed := (dp or 1) * (pp or 1)) > num_workers:
        field, value = ("pp", pp) if dp is None else ("dp", dp)
        message = f"dp {dp or 1} and pp {pp or 1} need {needed} workers, and there are {num_workers}"
        raise InvalidInputError(message, field=field, value=value)


def require_addresses(options: WorkerOptions, workers: Iterable[str]) -> None:
    """Require that workers can listen where their options say: all of them run on this machine.

    Raises:
        InvalidInputError: an address is none of this machine's.
    """
    for address in dict.fromkeys(map(options.address_of, workers)):
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(where)
        except (OSError, UnicodeError) as error:
            message = f"is no address that this machine's workers can listen at: {cause_of(error)}"
            raise InvalidInputError(message, field="options.worker.address", value=address) from error


def _of_kind(field: str, value: object, kind: type, hint: str = "") -> None:
    if value is not None:
        checks.instance(field, value, kind, hint=hint)


def _require_folder(field: str, folder: str | Path | None) -> None:
    if folder is None:
        return
    if not isinstance(folder, str | Path) or not str(folder):
        message = f"must be the path of a folder, not {folder!r}; '.' is the current one"
        raise InvalidInputError(message, field=field, value=repr(folder)[:200])
