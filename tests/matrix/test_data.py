from dataclasses import replace

import numpy as np
import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.matrix.data import DIGITS, TEXT, export, load


def test_digits_are_split_into_what_is_trained_on_and_what_is_held_out(tmp_path):
    train, held_out = load(DIGITS, export(DIGITS, tmp_path), sequence_length=32)
    assert len(train) + len(held_out) == 1797
    assert len(held_out) == 180
    sample = train[0]
    assert sample["pixels"].shape == (1, 8, 8)
    assert 0.0 <= float(sample["pixels"].min()) <= float(sample["pixels"].max()) <= 1.0
    assert {int(held_out[index]["label"]) for index in range(len(held_out))} == set(range(10))


def test_text_is_the_manual_and_targets_follow_tokens(tmp_path):
    train, held_out = load(TEXT, export(TEXT, tmp_path), sequence_length=32)
    assert len(train) > 10_000 > len(held_out) > 1_000
    assert train[3]["targets"][:-1].equal(train[3]["tokens"][1:])


def test_exporting_again_gives_the_same_digest(tmp_path):
    assert export(DIGITS, tmp_path / "one").sha256 == export(DIGITS, tmp_path / "two").sha256
    assert export(DIGITS, tmp_path / "one") == export(DIGITS, tmp_path / "one")


def test_data_that_changed_is_refused(tmp_path):
    file = export(DIGITS, tmp_path)
    with np.load(file.path) as stored:
        arrays = {name: stored[name].copy() for name in stored.files}
    arrays["labels"][0] += 1
    np.savez(file.path, **arrays)
    with pytest.raises(InvalidInputError, match="not as it was written"):
        load(DIGITS, file, sequence_length=32)
    assert export(DIGITS, tmp_path) != replace(file)


def test_unknown_data_sets_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match="known ones: digits, text"):
        export("imagenet", tmp_path)
