"""Which groups a worker connects for a plan, and what carries the tensors of its steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from estimator.message_order import Order, arrivals, departures
from estimator.program import Action
from kintsugi.runtime.messages import Prepare
from kintsugi.runtime.models import ModelShape, TrainingJob, made
from kintsugi.runtime.options import TransportKind, WorkerOptions
from kintsugi.runtime.workers.listener import attempt_name
from kintsugi.runtime.workers.numbering import Numbering
from restorer.channels import ChannelGroups
from restorer.groups import Groups
from restorer.library import GlooLibrary, Library
from restorer.nccl import NcclLibrary
from restorer.nccl_requirements import prepare_environment, require_nccl
from restorer.ordered import OrderedTransport
from restorer.rendezvous import Rendezvous
from restorer.transport import Transport


def own_job(make_job: Callable[[], TrainingJob], worker: str, options: WorkerOptions) -> TrainingJob:
    """The job on the device that is a worker's, which becomes the current one of this process.

    Raises:
        InvalidInputError: the transport does not carry tensors of that device, or cannot be had in this environment.
    """
    if options.transport is TransportKind.NCCL:
        prepare_environment()
    job = made(make_job)
    if worker in options.devices:
        job = replace(job, device=options.devices[worker])
    device = torch.device(job.device)
    if options.transport is TransportKind.NCCL:
        require_nccl(device)
    if device.type == "cuda":
        _begin_to_use(device)
    return job


def _begin_to_use(device: torch.device) -> None:
    """Make a CUDA device the current one, with what its first use makes: the interpreter stands still meanwhile, heartbeats too."""
    if device.index is not None:
        torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True)
class Wiring:
    """One worker's, under every plan."""

    worker: str
    device: torch.device
    """On which the worker computes."""
    options: WorkerOptions

    def groups(self, message: Prepare, actions: Sequence[Action], rendezvous: Rendezvous) -> Groups:
        """The groups of an attempt, to be built: gloo for state and the commit point, and what the steps' tensors need."""
        name, sums = attempt_name(message.attempt), [reduction.workers for reduction in message.reductions]
        if self.options.transport is TransportKind.GLOO:
            return Groups(self.worker, message.members, [message.plan.workers, *sums], rendezvous, name)
        channels = None
        if self.worker in message.plan.workers:
            sent, received = departures(actions), arrivals(actions, message.places)
            pairs = [*((self.worker, peer) for peer in sent), *((peer, self.worker) for peer in received)]
            channels = ChannelGroups(self.worker, message.plan.workers, pairs, sums, library=self._library(), name=name)
        return Groups(self.worker, message.members, [message.plan.workers], rendezvous, name, channels=channels)

    def transport(self, groups: Groups, message: Prepare, actions: Sequence[Action], shape: ModelShape) -> Transport:
        """What carries activations and gradients of a plan's steps."""
        if self.options.transport is TransportKind.GLOO:
            return groups.transport(self.device, message.plan.workers)
        numbering = Numbering(shape)
        orders: tuple[Order, Order] = departures(actions), arrivals(actions, message.places)
        return OrderedTransport(groups.channel_transport(), *map(numbering.tags, orders))

    def _library(self) -> Library:
        seconds = self.options.operation_timeout_seconds
        if self.options.transport is TransportKind.NCCL:
            return NcclLibrary(self.device, timeout_seconds=seconds)
        return GlooLibrary(
            address=self.options.address_of(self.worker),
            device=self.device,
            connect_timeout_seconds=self.options.connect_timeout_seconds,
            operation_timeout_seconds=seconds,
        )
