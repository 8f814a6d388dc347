"""A round of torchrun's agents that breaks before all have their ranks is met anew.

Once a round is complete its agents tell each other where rank 0 listens and how many ranks each has. Where one of them is lost
meanwhile torch's agent (2.13) ends, closes the rendezvous, and so ends the run for all others and for whoever comes in its place.
"""

import functools
from typing import TYPE_CHECKING

from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous import RendezvousHandler

from kintsugi.core.logs import get_logger

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerGroup


class BrokenRoundError(DistStoreError):
    """What is waited for will not come: who was to say it is lost."""


class MeetsAnew(RendezvousHandler):
    """A rendezvous whose agents meet again where a round breaks."""

    is_exchanging = False
    """Whether the round's agents still tell each other their ranks."""


@functools.cache
def meet_anew() -> None:
    """Have this process' agents rendezvous again, in place of ending, where their rendezvous is one that `MeetsAnew`."""
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent  # which imports what asks for this rendezvous

    torchs = SimpleElasticAgent._rendezvous

    def rendezvous(agent: "SimpleElasticAgent", group: "WorkerGroup") -> None:
        """Torch's own, until a round holds; how long one is waited for is the rendezvous' matter."""
        handler = group.spec.rdzv_handler
        if not isinstance(handler, MeetsAnew):
            torchs(agent, group)
            return
        handler.is_exchanging = True
        while True:
            try:
                torchs(agent, group)
                break
            except (DistStoreError, ConnectionError) as error:
                log = get_logger("kintsugi.runtime").bind(run=handler.get_run_id())
                log.warning("a round broke before all had their ranks; its agents meet anew", reason=str(error))
        handler.is_exchanging = False

    SimpleElasticAgent._rendezvous = rendezvous  # type: ignore[method-assign]
