"""Imported first by the fork server: modules are no garbage, and to look for it while they are loaded takes a fifth of the time.

`kintsugi.runtime.workers.warm`, imported last, has garbage looked for again. The fork server leaves the process group of who
started it, for a signal to all of a group (a terminal that is closed, `timeout`) is for that one to answer.
"""

import gc
import os
from contextlib import suppress

gc.disable()
with suppress(PermissionError):  # it leads a session already
    os.setsid()
