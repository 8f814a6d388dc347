"""Whether ranks that torchrun starts again find each other."""

import os

from kintsugi.core.logs import get_logger

OWN_RENDEZVOUS = "KINTSUGI_RENDEZVOUS"
"""Set for the ranks of agents that meet at the service."""


def warn_of_kept_store() -> None:
    """Say early that ranks which torchrun starts again may call those that are gone.

    torch's own rendezvous keep one store for all rounds (torch 2.13), in which the addresses of gloo's earlier ranks still stand.
    """
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    shares_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if restarts and shares_store and OWN_RENDEZVOUS not in os.environ:
        get_logger("kintsugi.runtime").warning(
            "torchrun may not get ranks to work again once one was lost: gloo's find addresses of those that are gone; say "
            "--rdzv-backend=kintsugi, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, or leave --max-restarts to kintsugi supervise",
            max_restarts=restarts,
        )
