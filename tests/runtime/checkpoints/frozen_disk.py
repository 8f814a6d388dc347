"""Run in a mount namespace of its own: freezes the file system of a run's folder while it trains; prints what came of it.

    python -m tests.runtime.checkpoints.frozen_disk

Whoever writes to a frozen file system waits in the kernel, and cannot even be killed.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from structlog.testing import capture_logs

from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request

NUM_STEPS = 12
FROZEN_AT = 3
MEGABYTES = 32


def tool(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """A file system in a file."""
    image, at = folder / "image", folder / "disk"
    image.write_bytes(bytes(MEGABYTES << 20))
    at.mkdir()
    tool("mkfs.ext4", "-q", str(image))
    tool("mount", "-o", "loop", str(image), str(at))
    try:
        yield at
    finally:
        tool("umount", "--lazy", str(at))


def main() -> None:
    job = partial(tiny_gpt, num_steps=NUM_STEPS)
    frozen: list[Path] = []

    with TemporaryDirectory() as folder, mounted(Path(folder)) as disk:

        def freeze(agent: Agent) -> None:
            if len(agent.losses) >= FROZEN_AT and not frozen:
                frozen.append(disk)
                tool("fsfreeze", "--freeze", str(disk))

        checkpoints = CheckpointOptions(every_steps=2, disk_timeout_seconds=1.0)
        run = RunOptions.of(job(), disk / "run", mtbf_seconds=3600.0, checkpoints=checkpoints)
        options = AgentOptions(worker=WorkerOptions(run=run))
        try:
            with (
                capture_logs() as logs,
                Agent(job, gpt_request(1, 2), LocalDecisions(), options=options, observer=freeze) as agent,
            ):
                result = agent.run()
        finally:
            if frozen:
                tool("fsfreeze", "--unfreeze", str(disk))
    told = sorted({log["event"] for log in logs if log["log_level"] == "warning"})
    print(json.dumps({"told": told, "losses": result.losses, "checkpoints": [record.step for record in result.checkpoints]}))


if __name__ == "__main__":
    main()
