"""Runs the cells of a matrix one by one. What is done stays done: a cell that has a record is not run again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kintsugi.core.errors import InvalidInputError, KintsugiError
from kintsugi.core.patterns import is_asked
from kintsugi.matrix import store
from kintsugi.matrix.cell import Cell, Part, Variant
from kintsugi.matrix.execution import StoppedError, execute
from kintsugi.matrix.manifest import CellStatus, Manifest, ManifestEntry
from kintsugi.matrix.preparation import data_files, environment, profile_file, require_same_settings
from kintsugi.matrix.suites import Matrix
from kintsugi.matrix.trace import TRACE, compare
from kintsugi.matrix.workload import Orders
from kintsugi.runtime.disk import make_folder
from kintsugi.runtime.run_lock import RunLock

LOCK = "matrix.lock"
"""Held while cells run: two commands would remove each other's."""
Observer = Callable[[int, int, Cell], None]
"""Told before every cell: how many are behind, of how many, and the cell; at the end, the last one again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What of a matrix is to be run."""

    sweep: bool = False
    """Also other intervals and writes in flight."""
    only: tuple[str, ...] = ()
    """Patterns of cell names; all cells where there are none."""

    def cells(self, matrix: Matrix) -> tuple[Cell, ...]:
        """The cells that are asked for.

        Raises:
            InvalidInputError: no cell has a name like that.
        """
        known = matrix.cells(sweep=self.sweep)
        found = tuple(cell for cell in known if is_asked(cell.name, self.only))
        if not found:
            raise InvalidInputError(f"names no cell; one is {known[0].name}", field="only", value=list(self.only))
        return found


def run_matrix(matrix: Matrix, folder: Path, asked: Asked, observer: Observer = lambda *_: None) -> Manifest:
    """Run every cell that is asked for and has no record yet.

    Raises:
        StoppedError: the user stopped it; the same call goes on.
        InvalidInputError: the folder cannot be made or holds another matrix, or nothing is asked for.
        ConflictError: another process runs a matrix there.
    """
    cells = asked.cells(matrix)
    make_folder(folder, "folder")
    with RunLock(folder, LOCK, field="folder"):
        return _run(matrix, folder, cells, observer)


def _run(matrix: Matrix, folder: Path, cells: Sequence[Cell], observer: Observer) -> Manifest:
    require_same_settings(matrix, folder)
    models = [matrix.model(cell.suite) for cell in cells]
    data = data_files(models, folder)
    manifest = _manifest(folder, cells, environment(data, models))
    store.write_manifest(manifest, folder)
    for index, cell in enumerate(cells):
        observer(index, len(cells), cell)
        entry = _skipped(cell, folder) or _ran(matrix, folder, cell)
        manifest = replace(manifest, entries=tuple(entry if old.cell == cell else old for old in manifest.entries))
        store.write_manifest(manifest, folder)
        _compare(matrix, folder, cell)
    observer(len(cells), len(cells), cells[-1])
    return manifest


def _manifest(folder: Path, cells: Sequence[Cell], machine: dict[str, str]) -> Manifest:
    """All cells that were ever asked for, and what is known of them."""
    fresh = tuple(ManifestEntry(cell=cell) for cell in cells)
    if not (folder / store.MANIFEST).is_file():
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return Manifest(name=folder.absolute().name, started_at=now, environment=machine, entries=fresh)
    before = store.read_manifest(folder)
    known = {entry.cell for entry in before.entries}
    added = tuple(entry for entry in fresh if entry.cell not in known)
    return replace(before, environment={**before.environment, **machine}, entries=(*before.entries, *added))


def _skipped(cell: Cell, folder: Path) -> ManifestEntry | None:
    """Of a cell that is done; null where its record is missing or torn."""
    try:
        store.read_record(cell, folder)
        store.read_steps(cell, folder)
    except InvalidInputError:
        return None
    return ManifestEntry(cell=cell, status=CellStatus.SKIPPED_EXISTS)


def _ran(matrix: Matrix, folder: Path, cell: Cell) -> ManifestEntry:
    try:
        execute(_orders(matrix, folder, cell), folder)
    except StoppedError:
        raise
    except KintsugiError as error:
        return ManifestEntry(cell=cell, status=CellStatus.FAILED, reason=error.message)
    except OSError as error:
        return ManifestEntry(cell=cell, status=CellStatus.FAILED, reason=f"its files cannot be written or read: {error}")
    return ManifestEntry(cell=cell, status=CellStatus.COMPLETED)


def _orders(matrix: Matrix, folder: Path, cell: Cell) -> Orders:
    model = matrix.model(cell.suite)
    data = data_files([model], folder)[model.data_set]
    return Orders(
        cell=cell,
        model=model,
        run=str(cell.folder(folder).absolute()),
        data=data,
        profile=str(profile_file(model, data, folder, world_size=matrix.world_size).absolute()),
        strikes=matrix.strikes(cell),
        comes_back=matrix.schedule(cell.suite).comes_back,
        world_size=matrix.world_size,
    )


def _compare(matrix: Matrix, folder: Path, done: Cell) -> None:
    """Tell how far parameters are from the reference's, of all cells of `done`'s model and seed for which both are there."""
    for cell in matrix.cells(sweep=True):
        is_kin = (cell.suite.model, cell.seed) == (done.suite.model, done.seed)
        if is_kin and store.has_record(cell, folder) and (cell.folder(folder) / TRACE).is_dir():
            reference = _reference(matrix, folder, cell)
            if reference is not None:
                compare(cell, reference, folder)


def _reference(matrix: Matrix, folder: Path, cell: Cell) -> Cell | None:
    """The cell without failures that is done and trained the same model from the same seed; of its own suite where there is one."""
    if cell.variant is Variant.REFERENCE:
        return None
    candidates = [
        other
        for other in matrix.cells()
        if other.part is Part.MATRIX
        and other.variant is Variant.REFERENCE
        and (other.suite.model, other.seed) == (cell.suite.model, cell.seed)
        and store.has_record(other, folder)
    ]
    return min(candidates, key=lambda other: other.suite != cell.suite, default=None)
