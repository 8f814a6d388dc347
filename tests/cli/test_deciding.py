"""What native libraries write spoils no document on standard output."""

import ctypes
import os

import pytest

from kintsugi.cli.deciding import OUTPUT, native_lines_apart


def test_native_lines_go_to_standard_error(capfd: pytest.CaptureFixture[str]):
    libc = ctypes.CDLL(None)
    print("before")
    with native_lines_apart():
        libc.puts(b"native")
    print("after")
    assert capfd.readouterr() == ("before\nafter\n", "native\n")


def test_where_no_output_is_open_nothing_is_lost(capfd: pytest.CaptureFixture[str]):
    kept = os.dup(OUTPUT)
    os.close(OUTPUT)
    try:
        with native_lines_apart():
            pass
    finally:
        os.dup2(kept, OUTPUT)
        os.close(kept)
    print("after")
    assert capfd.readouterr().out == "after\n"
