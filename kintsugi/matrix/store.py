"""The files of a matrix.

FOLDER/manifest.json                              which cells there are, and what became of each
FOLDER/cells/<suite>/<variant>-seed0/record.json  one cell: what it was, what it cost, what it proved
                                     steps.csv    one line per committed step
"""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, TypeVar

from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError, cause_of
from kintsugi.core.logs import get_logger
from kintsugi.matrix.cell import Cell
from kintsugi.matrix.manifest import Manifest
from kintsugi.matrix.record import SCHEMA_VERSION, CellRecord, StepRecord
from kintsugi.runtime.disk import NotSyncedError, replace_whole

MANIFEST = "manifest.json"
RECORD = "record.json"
STEPS = "steps.csv"

T = TypeVar("T")


def write_manifest(manifest: Manifest, matrix: Path) -> None:
    """Write FOLDER/manifest.json; it is whole at any moment."""
    write_whole(matrix / MANIFEST, codec.dumps(manifest))


def read_manifest(matrix: Path) -> Manifest:
    """What `write_manifest` wrote.

    Raises:
        InvalidInputError: with the file and its field; of a folder without one, that no matrix was run there.
    """
    if not (matrix / MANIFEST).exists():
        message = f"holds no {MANIFEST}, so no matrix was run there; run one by `kintsugi matrix` without --report"
        raise InvalidInputError(message, field="folder", value=str(matrix))
    return _read(Manifest, matrix / MANIFEST)


def write_record(record: CellRecord, steps: Iterable[StepRecord], matrix: Path) -> None:
    """Write what a cell came to. The record comes last: a cell that has one is done."""
    write_steps(record.cell, steps, matrix)
    write_whole(record.cell.folder(matrix) / RECORD, codec.dumps(record))


def write_steps(cell: Cell, steps: Iterable[StepRecord], matrix: Path) -> None:
    """Write the committed steps of a cell; the file is whole at any moment."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_STEP_FIELDS)
    writer.writerows(astuple(step) for step in steps)
    write_whole(cell.folder(matrix) / STEPS, text.getvalue())


def has_record(cell: Cell, matrix: Path) -> bool:
    """Whether the cell is done."""
    return (cell.folder(matrix) / RECORD).is_file()


def read_record(cell: Cell, matrix: Path) -> CellRecord:
    """What a cell came to.

    Raises:
        InvalidInputError: with the file and its field; also where the record is another cell's.
    """
    path = cell.folder(matrix) / RECORD
    record = _read(CellRecord, path)
    if record.cell != cell:
        raise InvalidInputError(
            f"is not what its folder says, {cell.name}, in {path}; remove that folder and run the matrix again",
            field="cell",
            value=record.cell.name,
        )
    return record


def read_steps(cell: Cell, matrix: Path) -> tuple[StepRecord, ...]:
    """The committed steps of a cell, in order.

    Raises:
        InvalidInputError: with the file, its line and its field.
    """
    path = cell.folder(matrix) / STEPS
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != _STEP_FIELDS:
                raise InvalidInputError(f"must be {','.join(_STEP_FIELDS)} in {path}", field="header", value=reader.fieldnames)
            return tuple(_step(row, f"{path}, line {reader.line_num}") for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"cannot be read: {error}", field="file", value=str(path)) from error


_STEP_FIELDS = tuple(item.name for item in fields(StepRecord))
_NUMBERS = {"loss": float, "parameter_distance": float, "seconds": float, "sample_ids_hash": str}
"""Kinds of the columns that hold no whole numbers."""
_OPTIONAL = ("parameter_distance", "seconds")


def _step(row: Mapping[str, str], where: str) -> StepRecord:
    values: dict[str, int | float | str | None] = {}
    for name in _STEP_FIELDS:
        text = row[name]
        if name in _OPTIONAL and text == "":
            continue
        try:
            values[name] = _NUMBERS.get(name, int)(text)
        except (TypeError, ValueError):
            raise InvalidInputError(f"must be a number ({where})", field=name, value=text) from None
    try:
        return codec.decode(StepRecord, values)
    except InvalidInputError as error:
        raise InvalidInputError(f"{error.message} ({where})", field=error.field, value=error.value) from None


def _read(kind: type[T], path: Path) -> T:
    document = codec.load(dict[str, Any], path)
    with codec.read_from(path):
        if (version := document.get("schema_version")) != SCHEMA_VERSION:
            message = f"must be {SCHEMA_VERSION}; read it with the version of Kintsugi that wrote it"
            raise InvalidInputError(message, field="schema_version", value=version)
        return codec.decode(kind, document)


def write_whole(path: Path, text: str) -> None:
    """Write a file that is whole at any moment.

    Raises:
        InvalidInputError: it cannot be written; what was there stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, text)
    except NotSyncedError as error:
        log = get_logger("kintsugi.matrix")
        log.warning("a file is written, and may be lost where its host crashes now", file=str(path), reason=cause_of(error))
    except OSError as error:
        raise unwritten(error, path) from error


def unwritten(error: OSError, path: Path) -> InvalidInputError:
    """What a matrix says of a file that cannot be written."""
    message = f"cannot be written: {cause_of(error)}; make room, then run the same command again"
    return InvalidInputError(message, field="folder", value=str(path))
