"""Writes the journals of a run without running it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kintsugi.runtime.records.journal import Geometry, Journal, Pass, Source
from kintsugi.runtime.sampler import Sampler

GEOMETRY = Geometry(num_samples=26, global_batch_size=8, seed=5, num_layers=3, num_steps=7)


@dataclass
class Scribe:
    """As many pipelines of two stages as asked; every attempt may have other numbers of them."""

    run: Path
    geometry: Geometry = GEOMETRY
    life: int = 1
    attempt: int = 0
    journals: dict[str, Journal] = field(default_factory=dict)

    @property
    def sampler(self) -> Sampler:
        size = self.geometry.global_batch_size
        return Sampler(num_samples=self.geometry.num_samples, microbatch_size=size, num_microbatches=1, seed=self.geometry.seed)

    def begin(self, step: int, source: Source, num_pipelines: int) -> None:
        self.attempt += 1
        self.pipelines = [(f"w{2 * p:02}", f"w{2 * p + 1:02}") for p in range(num_pipelines)]
        for worker in sum(self.pipelines, ()):
            if worker not in self.journals:
                self.journals[worker] = Journal(self.run / "audit", worker, self.life, self.geometry)
            self.journals[worker].resume(self.attempt, step=step, source=source, world_size=2 * num_pipelines)

    def pass_step(self, step: int, cut: int = 1, *, samples: Sequence[int] | None = None, only: str | None = None) -> None:
        """Every pipeline takes a part of the window; stage 0 holds `cut` layers."""
        window = self.sampler.window(step) if samples is None else samples
        size = self.geometry.global_batch_size // len(self.pipelines)
        for index, stages in enumerate(self.pipelines):
            part = window[index * size : (index + 1) * size]
            for worker, layers in zip(stages, ((0, cut), (cut, self.geometry.num_layers)), strict=True):
                if only in (None, worker):
                    passed = Pass.of(index * size, part, *layers)
                    state = self.sampler.state(step)
                    self.journals[worker].passed(self.attempt, step, [passed], epoch=state.epoch, cursor=state.cursor)

    def commit(self, step: int, *workers: str, loss: float = 1.0) -> None:
        for worker in workers or sum(self.pipelines, ()):
            self.journals[worker].committed(self.attempt, step, loss + step, [1])

    def train(self, steps: range, cut: int = 1) -> None:
        for step in steps:
            self.pass_step(step, cut)
            self.commit(step)

    def die(self) -> None:
        """The agent ends, and another life begins."""
        for journal in self.journals.values():
            journal.close()
        self.journals.clear()
        self.life, self.attempt = self.life + 1, 0

    def lose(self, worker: str) -> None:
        self.journals.pop(worker).close()
