"""What all processes that plan are forks of: one process that has loaded what they need, and done once what each would do first."""

from api.decisions.forkserver import ForkServer


def fork_server() -> ForkServer:
    """One whose forks plan at once; it takes seconds to begin, and does so with the first of them."""
    return ForkServer(prepare)


def prepare() -> None:
    """Load all that plans, and read the planner's compiled loops; it stays shared, for no fork looks for garbage in it."""
    from api import garbage
    from api.decisions import ahead, planning  # noqa: F401 - what the forks are asked for
    from planner.warmup import warm_up

    warm_up()
    garbage.settle()
