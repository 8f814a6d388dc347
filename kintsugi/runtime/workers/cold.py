"""Imported first by the fork server: modules are no garbage, and to look for it while they are loaded takes a fifth of the time.

`kintsugi.runtime.workers.warm`, imported last, has garbage looked for again.
"""

import gc

gc.disable()
