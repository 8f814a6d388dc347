"""The handbook of the service is up to date: every setting, and no metric or status that is not there."""

import re

import pytest

from api.metrics import Metrics
from api.problems import STATUS
from api.settings import Settings
from scripts.document_settings import DOCUMENT, updated

TEXT = DOCUMENT.read_text()


def test_the_tables_of_settings_are_those_of_the_code():
    assert updated(TEXT) == TEXT, "run: python scripts/document_settings.py"
    assert all(f"| `KINTSUGI_{name.upper()}` |" in TEXT for name in Settings.model_fields)


def test_every_setting_is_explained():
    rows = re.findall(r"^\| (`\w+`) \| .*? \| (.*) \|$", TEXT[TEXT.index("## Every setting") :], re.MULTILINE)
    assert len(rows) > 80
    assert [name for name, text in rows if not text.strip()] == []


def test_a_setting_that_is_missing_is_noticed():
    assert updated(TEXT.replace("| `KINTSUGI_PORT` | `8000` |", "| `KINTSUGI_PORT` | `80` |")) == TEXT
    with pytest.raises(KeyError):
        updated("<!-- settings: nobody -->\n<!-- end -->")


def test_the_metrics_to_watch_are_there():
    exposed = Metrics().exposition().decode()
    named = set(re.findall(r"`(kintsugi_\w+)", TEXT))
    assert named
    assert all(re.search(rf"^# TYPE {name.removesuffix('_total')}(_total)? ", exposed, re.MULTILINE) for name in named), named


def test_the_refusals_that_are_explained_are_there():
    explained = set(re.findall(r"^\| (4\d\d|5\d\d)\b", TEXT, re.MULTILINE))
    assert explained
    assert explained <= {str(int(status)) for _, status in STATUS}
