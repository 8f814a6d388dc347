"""Real data that needs no download: handwritten digits that come with scikit-learn, and text that comes with Python.

Both are written to files once, so that processes start without the libraries that they come from.
"""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kintsugi.core.errors import InvalidInputError
from kintsugi.matrix.store import unwritten
from kintsugi.reporting.files import write_whole
from kintsugi.runtime.gpt import ByteText
from kintsugi.runtime.models import Dataset

HELD_OUT_RATIO = 0.1
"""Share of the samples, the last ones, that no step trains on."""
DIGITS, TEXT = "digits", "text"

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data set on disk."""

    path: str
    sha256: str
    """Over names, types, shapes and values of its arrays."""


class Digits:
    """Images of digits: `pixels` [1, 8, 8] from 0 to 1, and `label`, 0 to 9."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        """`images` [N, 8, 8] from 0 to 16, `labels` [N]."""
        self._pixels = torch.from_numpy(images.astype(np.float64) / 16.0).unsqueeze(1)
        self._labels = torch.from_numpy(labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        return {"pixels": self._pixels[index], "label": self._labels[index]}


def export(name: str, folder: Path) -> DataFile:
    """Write a data set to `folder`; one that is there stays as it is.

    Raises:
        InvalidInputError: there is no such data set, its library is missing, or its file cannot be written or is damaged.
    """
    if name not in _SOURCES:
        raise InvalidInputError(f"is no data set; known ones: {', '.join(_SOURCES)}", field="data_set", value=name)
    path = folder / f"{name}.npz"
    if not path.is_file():
        arrays = io.BytesIO()
        np.savez(arrays, allow_pickle=False, **_SOURCES[name]())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, arrays.getvalue())
        except OSError as error:
            raise unwritten(error, path) from error
    return DataFile(path=str(path.absolute()), sha256=_digest(_arrays(path)))


def load(name: str, file: DataFile, *, sequence_length: int) -> tuple[Dataset, Dataset]:
    """The samples to train on, and those that are held out.

    Args:
        name: of the data set.
        file: that it was exported to.
        sequence_length: of the windows of a text, in bytes.

    Raises:
        InvalidInputError: the file is not as it was written.
    """
    arrays = _arrays(Path(file.path))
    if (digest := _digest(arrays)) != file.sha256:
        raise InvalidInputError(f"is not as it was written; remove {file.path}", field="sha256", value=digest)
    if name == TEXT:
        text = arrays["bytes"]
        cut = _cut(len(text))
        return ByteText(text[:cut].tobytes(), sequence_length), ByteText(text[cut:].tobytes(), sequence_length)
    images, labels = arrays["images"], arrays["labels"]
    cut = _cut(len(labels))
    return Digits(images[:cut], labels[:cut]), Digits(images[cut:], labels[cut:])


def _cut(size: int) -> int:
    return size - round(size * HELD_OUT_RATIO)


def _digits() -> Arrays:
    """1,797 images (UCI, Optical Recognition of Handwritten Digits)."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise InvalidInputError("needs scikit-learn: pip install 'kintsugi[matrix]'", field="data_set", value=DIGITS) from error
    digits = load_digits()
    return {"images": digits.images.astype(np.uint8), "labels": digits.target.astype(np.uint8)}


def _text() -> Arrays:
    """Python's reference manual as its `help` shows it, topics in alphabetical order."""
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics))
    return {"bytes": np.frombuffer(text.encode(), dtype=np.uint8)}


_SOURCES: Mapping[str, Callable[[], Arrays]] = {DIGITS: _digits, TEXT: _text}


def _arrays(path: Path) -> Arrays:
    try:
        with np.load(io.BytesIO(path.read_bytes())) as stored:
            return {name: stored[name] for name in sorted(stored.files)}
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInputError(f"is damaged ({error}); remove it, it is written anew", field="file", value=str(path)) from error


def _digest(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = arrays[name]
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
