"""The library's own log: on standard error, unless the program that uses the library sends structlog's elsewhere."""

import os
import subprocess
import sys
import threading
from threading import Event
from types import SimpleNamespace

from kintsugi.core.logs import told_if_long

TELLS = "from kintsugi.core.logs import get_logger; get_logger('kintsugi.runtime').warning('is lost', worker='w03')"
TO_PYTHONS = """
import logging, structlog
logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
processors = [structlog.stdlib.render_to_log_kwargs]
structlog.configure(processors=processors, logger_factory=structlog.stdlib.LoggerFactory())
"""


def python(code: str, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60.0, check=False)


def test_a_programs_own_output_has_no_lines_of_the_log():
    result = python(f"print('result'); {TELLS}")
    assert result.stdout == "result\n"
    assert "is lost" in result.stderr
    assert "w03" in result.stderr


def test_a_program_may_hand_it_to_pythons_own_log():
    assert python(TO_PYTHONS + TELLS).stderr == "kintsugi.runtime WARNING is lost\n"


def test_a_process_may_send_warnings_alone():
    tells = "from kintsugi.core.logs import get_logger, warn_only; warn_only(); log = get_logger('kintsugi.runtime')"
    result = python(f"{tells}; log.info('has joined'); log.warning('is lost')")
    assert result.stdout == ""
    assert "is lost" in result.stderr
    assert "has joined" not in result.stderr


def test_work_goes_on_where_nobody_reads_it():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = python(f"{TELLS}; print('result')", stderr=writing)
    finally:
        os.close(writing)
    assert (result.returncode, result.stdout) == (0, "result\n")


def test_work_goes_on_without_a_standard_error():
    assert python(f"import sys; sys.stderr = None; {TELLS}; print('result')").stdout == "result\n"


def test_what_takes_long_is_told():
    told, log = Event(), SimpleNamespace()
    log.info = lambda words: (words == "still at it") and told.set()
    with told_if_long(log, "still at it", seconds=0.0):
        assert told.wait(30.0)


def test_nobody_waits_to_tell_of_what_took_no_time():
    before = set(threading.enumerate())
    with told_if_long(SimpleNamespace(info=print), "never told", seconds=3_600.0):
        (waiting,) = set(threading.enumerate()) - before
    waiting.join(30.0)
    assert not waiting.is_alive()
