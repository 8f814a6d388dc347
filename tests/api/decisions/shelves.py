"""What plans are made ahead of, and a shelf that they are laid on."""

from dataclasses import replace

from kintsugi.core.cluster import Cluster
from planner.contingency import accepted
from planner.replan import replan
from tests.builders import snapshot_of, uniform_profile

PATIENCE = 240.0
"""For all plans ahead of one job, in seconds."""


def base_of(num_workers=4, generation=1):
    first = snapshot_of(uniform_profile(2), Cluster.uniform(num_workers), 4)
    return replace(accepted(first, replan(first)), generation=generation)


class Memory:
    """A shelf that remembers the order in which jobs were worked on."""

    def __init__(self):
        self.jobs, self.kept = [], {}

    def put(self, job, generation, decided):
        self.jobs.append((job, generation))
        self.kept.update({(job, key): item for key, item in decided.items()})

    def find(self, job, key):
        return self.kept.get((job, key))

    def fingerprints(self, job):
        return frozenset(key for owner, key in self.kept if owner == job)
