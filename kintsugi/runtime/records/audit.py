"""Proves from the journals of a run that it trained on exactly the samples of its seed, every one once (ECRL, equation 5).

For every committed step, what its workers passed is merged and compared with the window that the seed gives: every layer has
to have seen every sample of it once. The samples whose loss counted are those that passed the last layer.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.disk import require_folder
from kintsugi.runtime.layout import JOURNALS
from kintsugi.runtime.records.findings import Findings
from kintsugi.runtime.records.history import AttemptRecord, History, Undone, history_of
from kintsugi.runtime.records.journal import Geometry, Pass, Record, read_journal, sample_hash
from kintsugi.runtime.sampler import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAudit:
    """The samples of the committed steps of one epoch against those of its windows (ECRL, equation 2)."""

    epoch: int
    num_steps: int
    num_samples: int
    """In the windows of these steps."""
    duplicates: int
    missing: int
    extra: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing is too much and nothing too little."""
        return not (self.duplicates or self.missing or self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What the journals of a run prove."""

    num_journals: int
    num_steps: int
    """That the job was to train."""
    committed_steps: int
    epochs: tuple[EpochAudit, ...]
    undone: tuple[Undone, ...]
    """Committed steps that were trained again."""
    problems: tuple[str, ...]
    """Those that are equal in steps and layers that follow each other are one."""
    num_problems: int
    """Each step and layer for itself."""

    @property
    def is_exact(self) -> bool:
        """Whether everything that was committed is proven."""
        return not self.problems and all(epoch.is_exact for epoch in self.epochs)

    @property
    def is_complete(self) -> bool:
        """Whether every step is committed: all that the latest life was to train, which an earlier one may have had more of."""
        return self.committed_steps >= self.num_steps


def audit(run: Path) -> AuditReport:
    """Merge the journals of a run and judge them.

    Raises:
        InvalidInputError: there are none, or no such folder.
    """
    require_folder(run, "run")
    folder = run / JOURNALS if (run / JOURNALS).is_dir() else run
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise InvalidInputError("holds no journals; train with run=... to have them written", field="run", value=str(run))
    records, problems = _read(paths)
    return _judged(records, problems, len(paths))


def read_history(run: Path) -> History:
    """What holds of a run so far."""
    return history_of(_read(sorted((run / JOURNALS).glob("*.jsonl")))[0])


def _read(paths: Iterable[Path]) -> tuple[list[Record], list[str]]:
    records, problems = [], []
    for path in paths:
        try:
            record = read_journal(path)
        except InvalidInputError as error:
            problems.append(error.message)
            continue
        if record is not None:
            records.append(record)
            problems += [record.problem] if record.problem is not None else []
    return records, problems


def _judged(records: list[Record], problems: list[str], num_journals: int) -> AuditReport:
    num_jobs = len({replace(record.geometry, num_steps=0) for record in records})
    if num_jobs != 1:
        problems.append(f"the journals tell of {num_jobs} jobs, not of one")
        return AuditReport(
            num_journals=num_journals,
            num_steps=0,
            committed_steps=0,
            epochs=(),
            undone=(),
            problems=tuple(problems),
            num_problems=len(problems),
        )
    newest = max(records, key=lambda record: record.life)
    history = history_of(records)
    judge = _Judge(newest.geometry, history)
    epochs = tuple(judge.epochs())
    return AuditReport(
        num_journals=num_journals,
        num_steps=newest.geometry.num_steps,
        committed_steps=len(history.held),
        epochs=epochs,
        undone=tuple(history.undone),
        problems=(*problems, *history.problems, *judge.findings.lines()),
        num_problems=len(problems) + len(history.problems) + judge.findings.total,
    )


class _Judge:
    """Compares what passed with the windows of the seed."""

    def __init__(self, geometry: Geometry, history: History) -> None:
        self._geometry = geometry
        self._history = history
        self._sampler = Sampler(
            num_samples=geometry.num_samples,
            microbatch_size=geometry.global_batch_size,
            num_microbatches=1,
            seed=geometry.seed,
        )
        self.findings = Findings()

    def epochs(self) -> Iterator[EpochAudit]:
        """Every epoch of which a step is committed."""
        steps = defaultdict(list)
        for step in sorted(self._history.held):
            steps[step // self._sampler.steps_per_epoch].append(step)
        for epoch, committed in steps.items():
            expected = Counter(sample for step in committed for sample in self._sampler.window(step))
            seen: Counter[int] = Counter()
            unknown = 0
            for step in committed:
                samples, strangers = self._step(step, self._history.held[step])
                seen.update(samples)
                unknown += strangers
            yield EpochAudit(
                epoch=epoch,
                num_steps=len(committed),
                num_samples=expected.total(),
                duplicates=sum(count - 1 for sample, count in seen.items() if sample in expected),
                missing=sum(1 for sample in expected if sample not in seen),
                extra=unknown + sum(count for sample, count in seen.items() if sample not in expected),
            )

    def _step(self, step: int, attempt: AttemptRecord) -> tuple[list[int], int]:
        """Samples whose loss counted, and how many are none of this epoch's."""
        passes = []
        for name, lines in attempt.passed.get(step, {}).items():
            if len(lines) > 1:
                self.findings.add(step, f"{name} passed it {len(lines)} times in one attempt")
            passes += [Pass(*row) for line in lines for row in line["passes"]]
        self._check_layers(step, passes)
        samples: list[int] = []
        strangers = 0
        for passed in passes:
            if passed.layer_stop == self._geometry.num_layers:
                known = self._samples_of(step, passed)
                samples += known or ()
                strangers += passed.count if known is None else 0
        return samples, strangers

    def _check_layers(self, step: int, passes: list[Pass]) -> None:
        """Every layer has to have seen the whole window once, and of each part the samples that belong there."""
        window = self._sampler.window(step)
        for passed in passes:
            if passed.sample_hash != sample_hash(window[passed.offset : passed.offset + passed.count]):
                self.findings.add(step, f"samples from {passed.offset} on are not those of its window")
        by_layer: list[list[tuple[int, int]]] = [[] for _ in range(self._geometry.num_layers)]
        for passed in passes:
            for layer in range(passed.layer_start, passed.layer_stop):
                by_layer[layer].append((passed.offset, passed.count))
        for layer, parts in enumerate(by_layer):
            if (fault := _misfit(parts, len(window))) is not None:
                self.findings.add(step, fault, layer)

    def _samples_of(self, step: int, passed: Pass) -> tuple[int, ...] | None:
        """The samples behind a hash: those of the place it names, else of the same place in another step of the epoch."""
        first = step - step % self._sampler.steps_per_epoch
        for other in (step, *range(first, first + self._sampler.steps_per_epoch)):
            samples = self._sampler.window(other)[passed.offset : passed.offset + passed.count]
            if sample_hash(samples) == passed.sample_hash:
                return samples
        return None


def _misfit(parts: Iterable[tuple[int, int]], size: int) -> str | None:
    """Where parts (offset, count) do not cover [0, size) once; None where they do."""
    end = 0
    for offset, count in sorted(parts):
        if offset != end:
            return f"saw sample {offset} twice" if offset < end else f"did not see samples {end} to {offset - 1}"
        end = offset + count
    return None if end == size else f"did not see samples {end} to {size - 1}"
