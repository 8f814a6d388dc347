"""A checkpoint whose parts are all written becomes the newest, and what it cost is written down."""

import time
from collections.abc import Collection
from pathlib import Path

from kintsugi.runtime.checkpoints.advice import CheckpointRecord, append_record, checkpoint_record
from kintsugi.runtime.checkpoints.checkpoint import CheckpointStore
from kintsugi.runtime.checkpoints.manifest import Manifest
from kintsugi.runtime.checkpoints.recording import Strategy
from kintsugi.runtime.messages import PartWritten
from kintsugi.runtime.sampler import SamplerState


def commit_parts(
    store: CheckpointStore,
    temporary: Path,
    parts: Collection[PartWritten],
    *,
    job: str,
    sampler: SamplerState,
    strategy: Strategy,
    run: Path,
    trusted_step: int | None = None,
) -> CheckpointRecord:
    """Commit what lies in `temporary` as the run's newest checkpoint.

    Args:
        store: of the run's checkpoints.
        temporary: folder of the parts.
        parts: all of one step, each of which tells its files.
        job: digest of what the state fits to.
        sampler: where the samples go on.
        strategy: how the parts were written.
        run: folder of the run, for the record of what it cost.
        trusted_step: the latest before which all holders of a layer held the same; null where that is not compared.

    Raises:
        OSError: the disk is full or broken; the previous checkpoint stays the latest.
    """
    began = time.monotonic()
    manifest = Manifest(
        step=next(iter(parts)).step,
        job=job,
        epoch=sampler.epoch,
        cursor=sampler.cursor,
        seed=str(sampler.seed),
        files={name: record for part in parts for name, record in part.files.items()},
    )
    store.commit(temporary, manifest, trusted_step=trusted_step)
    record = checkpoint_record(parts, strategy=strategy.value, commit_seconds=time.monotonic() - began)
    append_record(run, record)
    return record
