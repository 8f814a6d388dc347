"""Inner loops as machine code.

Numba keeps machine code for as long as the file of a function stays as it is, though it holds the functions that this one calls,
too; here it is kept until any file is another that has such functions or that these import, directly or not.
"""

import hashlib
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.extending
from numba.core import event
from numba.core.caching import (
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)

PACKAGES = ("estimator", "planner", "restorer")
"""Those with compiled functions."""

_IMPORTED = re.compile(rf"^from ((?:{'|'.join(PACKAGES)})\.[\w.]+) import", re.MULTILINE)
_IMPORTS_THIS = re.compile(rf"^from {re.escape(__name__)} import", re.MULTILINE)

Function = TypeVar("Function", bound=Callable[..., object])

_UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Without numba's runtime, which counts references and makes arrays; an option that its types leave out."""


def compiled(function: Function) -> Function:
    """`function` compiled by numba on its first call; the machine code is kept beside its file for later processes.

    The function may use scalars, tuples and numpy arrays, and other compiled functions.
    """
    return _kept(function)


def borrowing(function: Function) -> Function:
    """`compiled` for what makes no arrays, but reads and writes those that it is given: their references are not counted.

    Counting is atomic, for every array of every call, and takes most of the time of small functions in others' loops.
    A function that makes an array after all does not compile.
    """
    return _kept(function, **_UNCOUNTED)


def shared(function: Function) -> Function:
    """`function` as it is, which compiled functions may call, too: it becomes part of their machine code."""
    return numba.extending.register_jitable(function)


def _kept(function: Function, **options: Any) -> Function:
    dispatcher: Any = numba.njit(error_model="numpy", **options)(function)
    dispatcher._cache = _Cache(function)
    return cast("Function", dispatcher)


class _Files(IndexDataCacheFile):
    """A function's machine code, a file for each list of types of arguments, whose name says what sources and types it is of.

    Numba counts its files, and an index says which number is whose: one process's index may come to name another's file, and a
    process that ends between the two leaves an index which names machine code of earlier sources.
    """

    def __init__(self, folder: str, function: str, sources: bytes) -> None:
        super().__init__(folder, function, sources)  # type: ignore[no-untyped-call]
        self._of_the_function = f"{function}."
        self._of_its_sources = f"{function}.{_short_digest(numba.__version__.encode() + sources)}."

    def flush(self) -> None:
        """Remove all that is kept for the function."""
        for path in self._kept():
            path.unlink(missing_ok=True)

    def save(self, key: Any, data: Any) -> None:
        """Keep machine code, and none of other sources any longer."""
        self._save_data(self._name(key), (key, data))  # type: ignore[no-untyped-call]
        for path in self._kept():
            if not path.name.startswith(self._of_its_sources):
                path.unlink(missing_ok=True)

    def load(self, key: Any) -> Any:
        """What is kept under `key`; None where that is nothing."""
        try:
            kept_key, data = self._load_data(self._name(key))  # type: ignore[no-untyped-call]
        except OSError:
            return None
        return data if kept_key == key else None  # the name is of the types' names, which two types may share

    def _name(self, key: Any) -> str:
        return f"{self._of_its_sources}{_short_digest(repr(key).encode())}.nbc"

    def _kept(self) -> list[Path]:
        return [path for path in Path(self._cache_path).iterdir() if path.name.startswith(self._of_the_function)]


def _short_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


class _Cache(FunctionCache):
    """Does without what it cannot write, or cannot read: files that were cut off, or tell of types which had other names."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file: Any = _Files(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code that is kept for these types of arguments; None where there is none, or it cannot be read."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # numba unpickles before it looks whether sources have changed; that may raise anything
            with suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, if there is room and a right to write."""
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def clock() -> float:
    """Seconds to take differences of, as `time.perf_counter`; it stands still while this thread waits for machine code."""
    return time.perf_counter() - _waiting.total_seconds


class _Waiting(threading.local):
    """How long a thread has waited for machine code so far, compiled or read."""

    total_seconds = 0.0
    depth = 0
    began = 0.0


_waiting = _Waiting()


class _WaitListener(event.Listener):
    """Times what numba does under its lock: it compiles and reads there alone."""

    def on_start(self, _: object) -> None:
        """The lock is asked for, by whoever may have it already."""
        if not _waiting.depth:
            _waiting.began = time.perf_counter()
        _waiting.depth += 1

    def on_end(self, _: object) -> None:
        """The lock is given back."""
        _waiting.depth -= 1
        if not _waiting.depth:
            _waiting.total_seconds += time.perf_counter() - _waiting.began


event.register("numba:compiler_lock", _WaitListener())  # type: ignore[no-untyped-call]


@cache
def source_digest() -> bytes:
    """SHA-256 of every file of `PACKAGES` that has compiled functions or that such a file imports, directly or not."""
    root = Path(__file__).parents[1]
    texts = {path: path.read_text() for package in PACKAGES for path in (root / package).rglob("*.py")}
    found = {path for path, text in texts.items() if _IMPORTS_THIS.search(text)}
    waiting = list(found)
    while waiting:
        imported = {root.joinpath(*name.split(".")).with_suffix(".py") for name in _IMPORTED.findall(texts[waiting.pop()])}
        fresh = (imported & texts.keys()) - found
        found |= fresh
        waiting.extend(fresh)
    return hashlib.sha256(b"".join(texts[path].encode() for path in sorted(found))).digest()


class _FreshByAllSources:
    def get_source_stamp(self) -> bytes:
        """What kept machine code must have been made from."""
        return source_digest()


class InTheNamedFolder(_FreshByAllSources, UserProvidedCacheLocator):
    """Keeps machine code where `NUMBA_CACHE_DIR` says."""


class BesideTheSource(_FreshByAllSources, InTreeCacheLocator):
    """Keeps machine code in `__pycache__`."""


class InTheUsersCache(_FreshByAllSources, UserWideCacheLocator):
    """Keeps machine code in the user's folder for such, where the source cannot be written beside."""

    def ensure_cache_path(self) -> None:
        """Make the folder; whoever has no home has none, rather than one called `~` in the working directory."""
        path: str = self.get_cache_path()  # type: ignore[no-untyped-call]
        if not Path(path).is_absolute():
            raise NotADirectoryError(f"no folder of the user's own: {path}")
        super().ensure_cache_path()  # type: ignore[no-untyped-call]


class AsItWasInstalled(BesideTheSource):
    """Reads what is kept in `__pycache__`, where nothing can be written anywhere: for a user without a home, or on a full disk."""

    def ensure_cache_path(self) -> None:
        """Take the folder as it is, also where there is none."""


_KINDS = (InTheNamedFolder, BesideTheSource, InTheUsersCache, AsItWasInstalled)
_LOCATORS = ",".join(f"{kind.__module__}.{kind.__name__}" for kind in _KINDS)
vars(numba.config)["CACHE_LOCATOR_CLASSES"] = _LOCATORS  # a setting that numba declares for no type checker
