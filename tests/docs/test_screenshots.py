"""The photographs of the dashboard are those that the script takes, and small enough to be looked at."""

import importlib.util
import re
import struct
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LARGEST_BYTES = 200_000


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_screenshots", ROOT / "scripts" / "make_screenshots.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_picture_is_a_screenshot_of_the_right_size(script):
    for name in script.PICTURES:
        content = (ROOT / "docs" / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        assert struct.unpack(">II", content[16:24]) == script.SIZE
        assert len(content) < LARGEST_BYTES


def test_documents_show_pictures_that_exist(script):
    shown = set(re.findall(r"docs/(dashboard[\w-]*)\.png", (ROOT / "README.md").read_text()))
    assert shown
    assert shown <= set(script.PICTURES)
