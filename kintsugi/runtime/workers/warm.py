"""Imported last by the fork server: what every worker would do first, done once for all of them.

Objects that are frozen here are looked at by no worker's garbage collection, so their memory stays shared, too; the little garbage
among them stays as well, for to look for it would take a tenth of the start. Every group that a worker is in takes a descriptor for
each of its members; where there is none for one, gloo ends the process.
"""

import gc

import torch

from kintsugi.core.descriptors import allow_most

allow_most()
with torch.device("meta"), torch.autograd.profiler.record_function("warm"):
    torch.nn.Linear(1, 1)(torch.empty(1, 1)).sum()
gc.freeze()
gc.enable()
