"""The server that worker processes are forked from: what they need is loaded there, once for all of them."""

import multiprocessing
from multiprocessing.context import ForkServerContext

# Between the first and the last no garbage is looked for; the last but one is what main modules of jobs import, which every worker
# imports again.
_PRELOAD = [
    "kintsugi.runtime.workers.cold",
    "torch",
    "torch._dynamo",
    "kintsugi.runtime.workers.worker",
    "kintsugi.runtime.train",
    "kintsugi.runtime.workers.warm",
]

PLANNER = "kintsugi.runtime.selfgoverned.warm"
"""For fork servers to load: what workers that plan by themselves need, with the planner's compiled loops."""


def preload(module: str) -> None:
    """Have fork servers that are started from now on load a module for all their workers, too."""
    if module not in _PRELOAD:
        _PRELOAD.insert(-1, module)


def forkserver() -> ForkServerContext:
    """The context that workers are forked from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context
