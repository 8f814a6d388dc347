"""A script that trains a small decoder, and whose agent kills itself in its first attempt, after step 3 and a checkpoint.

python -m tests.runtime.supervising.supervised_job RUN OUTPUT
"""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

from kintsugi.runtime.checkpoints.recording import CheckpointOptions, Strategy
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.layout import CHECKPOINTS, LATEST
from kintsugi.runtime.train import train
from tests.runtime.jobs import profile_for, tiny_gpt

job = partial(tiny_gpt, num_steps=6)


def die(agent: Agent) -> None:
    has_checkpoint = (Path(sys.argv[1]) / CHECKPOINTS / LATEST).exists()
    if os.environ.get("KINTSUGI_ATTEMPT") == "0" and 3 in agent.losses and has_checkpoint:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    result = train(
        job,
        workers=2,
        dp=1,
        pp=2,
        profile=profile_for(job()),
        run=sys.argv[1],
        checkpoints=CheckpointOptions(every_steps=2, strategy=Strategy.BLOCKING),
        observer=die,
        trace=sys.argv[1],
    )
    Path(sys.argv[2]).write_text(json.dumps(result.losses))
