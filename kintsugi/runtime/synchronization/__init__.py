"""How the replicas of a model stay together: strategies behind a torch optimizer, changed while training as the cluster allows.

| module | what |
|---|---|
| `optimizer` | `SynchronizedOptimizer`, the drop-in wrapper: steps, switches, membership |
| `strategies` | `Strategy`, and synchronous SGD, synchronous model averaging and pairwise asynchronous averaging |
| `policies` | when to change the strategy, and why; without torch |
| `replica` | what strategies are written with: collective and pairwise primitives, and the atomic `apply` |
| `transport` | sums over all workers, and messages between two |
"""

from kintsugi.runtime.synchronization.optimizer import SynchronizedOptimizer
from kintsugi.runtime.synchronization.policies import (
    Choice,
    Observation,
    Policy,
    SchedulePolicy,
    Switch,
    ThroughputPolicy,
    WorkerCountPolicy,
)
from kintsugi.runtime.synchronization.replica import Replica
from kintsugi.runtime.synchronization.strategies import ModelAveraging, PairwiseAveraging, Strategy, SynchronousSGD
from kintsugi.runtime.synchronization.transport import PeerTransport, Transport

__all__ = [
    "Choice",
    "ModelAveraging",
    "Observation",
    "PairwiseAveraging",
    "PeerTransport",
    "Policy",
    "Replica",
    "SchedulePolicy",
    "Strategy",
    "Switch",
    "SynchronizedOptimizer",
    "SynchronousSGD",
    "ThroughputPolicy",
    "Transport",
    "WorkerCountPolicy",
]
