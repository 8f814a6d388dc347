"""One life of a cell's job: it trains to the end, or to the strike that it has to expect."""

import time
from functools import partial
from pathlib import Path

import torch

from kintsugi.core.cluster import Cluster
from kintsugi.core.codec import dumps, load
from kintsugi.core.profile import Profile
from kintsugi.matrix.cell import Variant
from kintsugi.matrix.events import Event, EventLog, Kind
from kintsugi.matrix.outcome import OUTCOME, PARAMETERS, Outcome, digest_of
from kintsugi.matrix.trace import TRACE
from kintsugi.matrix.watcher import Watcher
from kintsugi.matrix.workload import Orders, job_of
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, Strategy
from kintsugi.runtime.faults import Fault, fail_at
from kintsugi.runtime.train import train


def live(orders: Orders, *, attempt: int) -> None:
    """Train; what came of it is in the cell's folder.

    Args:
        orders: of the cell.
        attempt: number of this life, from 0.
    """
    run = Path(orders.run)
    log = EventLog(run)
    log.write(Event(kind=Kind.LAUNCHED, at=time.monotonic()))
    is_first = attempt == 0
    num_workers, pp = orders.workers_in(attempt), orders.model.pp
    keeps_degrees = num_workers == orders.world_size
    in_memory = orders.cell.variant is Variant.MEMORY
    exits = not in_memory and attempt < len(orders.strikes)
    faults = _faults(orders) if in_memory and is_first else ()
    make_job = partial(job_of, orders.model, orders.data, orders.cell.seed, (str(run / TRACE), orders.trace_every))
    result = train(
        make_job,
        workers=Cluster.uniform(num_workers),
        dp=num_workers // pp if keeps_degrees else None,
        pp=pp if keeps_degrees else None,
        name=orders.cell.name,
        profile=load(Profile, Path(orders.profile)),
        faults=faults,
        observer=Watcher(
            log,
            exit_before=orders.strikes[attempt] if exits else None,
            returning=[fault.worker for fault in faults] if orders.comes_back else [],
        ),
        run=run,
        checkpoints=_checkpoints(orders),
    )
    outcome = Outcome(digest=digest_of(result.digests), has_equal_replicas=result.has_equal_replicas)
    torch.save(dict(result.parameters), run / PARAMETERS)
    (run / OUTCOME).write_text(dumps(outcome))
    log.close()


def _faults(orders: Orders) -> tuple[Fault, ...]:
    """One worker after the other is killed, the last one first."""
    return tuple(fail_at(step, orders.victim(index), "step") for index, step in enumerate(orders.strikes))


def _checkpoints(orders: Orders) -> CheckpointOptions:
    is_blocking = orders.cell.variant is Variant.BLOCKING
    every = orders.cell.every_steps if orders.writes_checkpoints else orders.model.num_steps
    return CheckpointOptions(
        every_steps=every,
        strategy=Strategy.BLOCKING if is_blocking else Strategy.OVERLAPPED,
        max_in_flight=orders.cell.max_in_flight,
    )
