"""Groups are torn down whenever they are let go of, also where the script ends just then."""

import subprocess
import sys

import pytest

ENDING = """
import atexit
import sys
import time

class Group:
    def __del__(self):
        time.sleep(0.2)
        print("torn down", flush=True)

def at_exit():
    let_go([Group()], "later")

if sys.argv[1] == "later":
    atexit.register(at_exit)
from restorer.teardown import let_go
if sys.argv[1] == "before":
    let_go([Group()], "before")
"""


@pytest.mark.parametrize("when", ["before", "later"])
def test_a_script_does_not_end_within_a_destructor(when):
    done = subprocess.run([sys.executable, "-c", ENDING, when], capture_output=True, text=True, timeout=240.0, check=True)
    assert done.stdout == "torn down\n"
