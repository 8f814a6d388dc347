"""Checkpoints on disk: whole or not there, checksummed file by file, and found again after anything.

    checkpoints/latest.json          names the newest; replaced last
    checkpoints/step-00000012/       manifest.json, and one folder per part: layer-00003/, worker-w00/
    checkpoints/.step-00000018.tag/  being written

Parts are written and fsynced by whoever holds what is in them. Only then the manifest, with the size and SHA-256 of every
file, goes beside them, the folder gets its name, and the pointer is replaced (ECRL, section 4.3); every change of a name
is fsynced before the next. A crash at any moment leaves the previous checkpoint in place.
"""

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kintsugi.core import checks
from kintsugi.core.codec import digest, dumps, loads
from kintsugi.core.errors import InvalidInputError, KintsugiError, UnavailableError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.changes import first_change
from kintsugi.runtime.checkpoints.manifest import (
    MANIFEST,
    Checkpoint,
    DamagedCheckpointError,
    Manifest,
    Sealed,
    UnreadableCheckpointError,
    is_whole,
    unreadable,
)
from kintsugi.runtime.disk import replace_whole, sync_folder, write_synced
from kintsugi.runtime.layout import LATEST

_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pointer:
    name: str


class CheckpointStore:
    """The checkpoints of one run. One process commits; others write parts into what it will commit."""

    def __init__(self, folder: Path, *, job: str = "", keep: int = 2, about: Mapping[str, str] | None = None) -> None:
        """Nothing is touched before it is needed.

        Args:
            folder: that is theirs alone.
            job: digest of what the states have to fit to.
            keep: how many undamaged ones stay, as far as is known without reading them again; the older ones go, but for one.
            about: what `job` is the digest of, by what each is called.
        """
        checks.positive("keep", keep)
        self._folder = folder
        self._job = job
        self._keep = keep
        self._about = about or {}
        self._damaged: set[Path] = set()
        """Found so when the newest was looked for."""
        self.committed_step: int | None = None
        """Of the latest that was committed here: whole, even while something beside it is held up."""
        self._log = get_logger("kintsugi.runtime")

    def temporary(self, step: int, tag: str) -> Path:
        """Where the parts of a checkpoint go until it is committed; the same in every process."""
        return self._folder / f".{_name(step)}.{tag}"

    def commit(self, temporary: Path, manifest: Manifest, *, trusted_step: int | None = None) -> Checkpoint:
        """Give a checkpoint whose parts are all on the disk its name, and point to it; the oldest go, as `retire` says.

        Where the pointer is replaced, and cannot be fsynced, it is the latest all the same, and nothing older goes.

        Raises:
            OSError: the disk is full or broken; the previous checkpoint stays the latest.
        """
        sealed = Sealed(manifest=manifest, sha256=digest(manifest), about=self._about)
        write_synced(temporary / MANIFEST, dumps(sealed))
        sync_folder(temporary)
        final = self._folder / _name(manifest.step)
        former = self.temporary(manifest.step, "former")
        if final.exists():  # damaged, or of steps that were undone
            self.discard(former)
            final.rename(former)
        try:
            temporary.rename(final)
        except OSError:
            with suppress(OSError):
                former.rename(final)
            raise
        self._damaged.discard(final)
        sync_folder(self._folder)
        try:
            self._point_to(final.name)
        except OSError as error:
            if self._latest() != manifest.step:
                raise
            self.committed_step = manifest.step
            self._log.warning("the latest checkpoint may be lost where its host crashes", step=manifest.step, reason=str(error))
            return Checkpoint(final, manifest)
        self.committed_step = manifest.step
        self.discard(former)
        self.retire(trusted_step)
        return Checkpoint(final, manifest)

    def discard(self, temporary: Path) -> None:
        """Remove what will never be whole."""
        shutil.rmtree(temporary, ignore_errors=True)

    def remove(self, step: int) -> None:
        """Remove the checkpoint of a step, if there is one: it is whole, and wrong all the same. First it is the latest no more."""
        folder = self._folder / _name(step)
        with suppress(OSError, UnavailableError):
            if self._latest() == step:
                self._point_before(step)
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            self._log.warning("a checkpoint cannot be removed; its numbers may be wrong: remove it by hand", folder=str(folder))

    def clear(self) -> None:
        """Remove everything that was being written when an earlier life ended, as far as the disk lets it."""
        with suppress(OSError):
            for path in self._folder.glob(".step-*"):
                self.discard(path)
            for path in self._folder.glob("*.new"):
                path.unlink(missing_ok=True)

    def newest(self, moved: Callable[[], None] = lambda: None) -> Checkpoint | None:
        """The newest checkpoint that is undamaged; what is skipped is warned of, by its name and that of the one used.

        `moved` is told of every piece that was read.

        Raises:
            InvalidInputError: it is another job's, or another version's that cannot be read.
            UnavailableError: none is undamaged, and there are some that the disk does not give: to begin anew would remove them.
        """
        latest = self._latest()
        damaged = self._gone(latest)
        for folder in self._candidates(latest):
            try:
                checkpoint = self._read(folder)
                checkpoint.verify(moved)
            except DamagedCheckpointError as error:
                damaged.append(error)
                self._damaged.add(folder)
                continue
            self._warn(damaged, checkpoint.folder.name)
            return checkpoint
        if any(isinstance(error, UnreadableCheckpointError) for error in damaged):
            found = "; ".join(f"{error.field}/{error.message}" for error in damaged)
            message = f"{found}: mend what its disk is on and train again, or remove them to begin from the first step"
            raise UnavailableError(message, field="run", value=str(self._folder))
        self._warn(damaged, "none; the run begins anew")
        return None

    @property
    def newest_step(self) -> int:
        """Of the newest checkpoint, damaged or not; 0 where there is none, or the disk does not say."""
        with suppress(UnavailableError):
            return next((_step(folder.name) for folder in self._candidates(self._latest())), 0)
        return 0

    def _warn(self, damaged: list[DamagedCheckpointError], used: str) -> None:
        for error in damaged:
            self._log.warning("a checkpoint is damaged and passed over", damaged=error.field, reason=error.message, used=used)

    def _candidates(self, latest: int | None) -> Iterator[Path]:
        """The latest, then the earlier ones; later ones, which were never pointed to or were undone, do not count."""
        steps = {_step(name): self._folder / name for name in self._names() if _NAME.fullmatch(name)}
        for step in sorted(steps, reverse=True):
            if latest is None or step <= latest:
                yield steps[step]

    def _gone(self, latest: int | None) -> list[DamagedCheckpointError]:
        """The latest checkpoint, where it was taken away."""
        if latest is None or _name(latest) in self._names():
            return []
        return [DamagedCheckpointError(f"it is not there, though {LATEST} names it", field=_name(latest), value=LATEST)]

    def _names(self) -> list[str]:
        """Of all that lies in the folder.

        Raises:
            UnavailableError: the disk does not say.
        """
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            message = f"cannot be read: {error.strerror}; mend what it is on and train again, or take another folder"
            raise UnavailableError(message, field="run", value=str(self._folder)) from error

    def _latest(self) -> int | None:
        """The step that the pointer names; None where it is missing or unreadable, so that every checkpoint counts."""
        try:
            pointer = loads(_Pointer, (self._folder / LATEST).read_bytes())
        except FileNotFoundError:
            return None
        except (InvalidInputError, OSError) as error:
            self._log.warning("the pointer to the latest checkpoint is damaged; the newest whole one is used", reason=str(error))
            return None
        return _step(pointer.name) if _NAME.fullmatch(pointer.name) else None

    def _read(self, folder: Path) -> Checkpoint:
        try:
            sealed = self._sealed(folder.name, (folder / MANIFEST).read_bytes())
        except OSError as error:
            raise unreadable(error, folder.name, MANIFEST) from error
        if sealed.sha256 != digest(sealed.manifest) or _name(sealed.manifest.step) != folder.name:
            raise DamagedCheckpointError(f"{MANIFEST} is not as it was written", field=folder.name, value=MANIFEST)
        if sealed.manifest.job != self._job:
            changed = first_change(sealed.about, self._about)
            message = f"holds checkpoints of another job{changed}; take a new folder"
            raise InvalidInputError(message, field="run", value=str(self._folder))
        return Checkpoint(folder, sealed.manifest)

    def _sealed(self, name: str, text: bytes) -> Sealed:
        try:
            return loads(Sealed, text)
        except InvalidInputError as error:
            if not is_whole(text):
                raise DamagedCheckpointError(f"{MANIFEST} cannot be read: {error}", field=name, value=MANIFEST) from error
            message = f"holds {name} of another version of Kintsugi ({error}); go on with that one, or take a new folder"
            raise InvalidInputError(message, field="run", value=str(self._folder)) from error

    def _point_to(self, name: str) -> None:
        replace_whole(self._folder / LATEST, dumps(_Pointer(name=name)))

    def _point_before(self, step: int) -> None:
        before = next(self._candidates(step - 1), None)
        if before is not None:
            self._point_to(before.name)
        else:
            (self._folder / LATEST).unlink()

    def retire(self, trusted_step: int | None = None) -> None:
        """Remove the oldest beyond those that stay: so many, and the newest that is no later than `trusted_step`.

        What the disk does not give now stays, too.
        """
        try:
            candidates = list(self._candidates(self._latest()))
        except UnavailableError:  # what cannot be seen stays
            return
        seem_whole = {path: self._seems_whole(path) for path in candidates}
        whole = [path for path in candidates if seem_whole[path]]
        kept = {*candidates[:1], *whole[: self._keep], *(path for path in candidates if seem_whole[path] is None)}
        if trusted_step is not None:
            trusted = (path for path in whole if _step(path.name) <= trusted_step)
            kept |= {*itertools.islice(trusted, 1)}
        with suppress(OSError):  # the newest is whole, whatever becomes of the others
            for path in self._folder.glob("step-*"):
                if path not in kept:
                    shutil.rmtree(path, ignore_errors=True)

    def _seems_whole(self, folder: Path) -> bool | None:
        """Whether nothing is known of damage to a checkpoint, and none can be seen without reading its files.

        Null where the disk does not give what that is told by: it may be whole, and the only one that is trusted.
        """
        try:
            return self._read(folder).has_all_sizes and folder not in self._damaged
        except UnreadableCheckpointError:
            return None
        except KintsugiError:
            return False


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))
