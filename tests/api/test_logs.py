"""What others send is told in the log as text, whatever it is."""

import json
import logging

import pytest
import structlog

from api import logs
from api.settings import Settings
from api.texts import LONGEST_TEXT


@pytest.fixture
def line(capsys):
    """Logs, and gives what stands in the log then."""
    root = logging.getLogger()
    handlers = list(root.handlers)

    def line(log_format, event, **values):
        logs.configure(Settings(log_format=log_format))
        structlog.get_logger().warning(event, **values)
        return capsys.readouterr().err

    yield line
    root.handlers = handlers
    logs.configure(Settings(log_level="error", log_format="json"))


def test_nothing_steers_the_terminal_of_whoever_reads(line):
    told = line("console", "\x1b[2Jdone", path="/v1/jobs/\x1b[31mred\x07\u202e\u2028/plan", other="\r\nfake", name="café")
    assert told.count("\n") == 1
    assert told.rstrip("\n").isprintable()
    assert r"\x1b[31mred\x07\u202e\u2028" in told
    assert "name=café" in told


def test_neither_does_the_text_of_an_error(line):
    told = line("console", "crashed", exc_info=ValueError("\x1b[2J\x07 in what was sent"))
    assert r"ValueError: \x1b[2J\x07 in what was sent" in told
    assert "\x1b" not in told


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_long_texts_are_cut(line, log_format):
    told = line(log_format, "answered", path="x" * 60_000)
    assert len(told) < LONGEST_TEXT + 500
    assert "(60,000 characters)" in told


def test_json_has_what_was_sent(line):
    assert json.loads(line("json", "answered", path="\x1b[31m"))["path"] == "\x1b[31m"


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_who_has_no_standard_error_goes_on_without_a_log(line, log_format):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", None)
        assert line(log_format, "answered") == ""
