"""The layers that a worker holds: modules, parameters, buffers and optimizer state, and how they move."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kintsugi.core.decision import StateKind
from kintsugi.core.errors import ReconfigurationError
from kintsugi.runtime.brought import RATE, base_rates, finite_factor
from kintsugi.runtime.combined import updater_of
from kintsugi.runtime.models import NamedParameters, TrainingJob, build_layer, canonical_name, noted, optimizer_for, seed_generators
from kintsugi.runtime.optimizer_state import OptimizerState, kind_of
from kintsugi.runtime.ties import own_name, owner_of
from kintsugi.runtime.workers.fit import require_fits
from restorer.packing import StateEntries
from restorer.staging import ArrivedState

PARAMETER = "parameter"
BUFFER = "buffer"


def _nothing() -> None:
    pass


class ModelState:
    """Layers on this worker, in one range or several. Replaced as a whole by a reconfiguration, never changed by one."""

    def __init__(self, job: TrainingJob, modules: Mapping[int, nn.Module], parameters: Mapping[str, nn.Parameter]) -> None:
        self._job = job
        self._numbers = {layer.name: number for number, layer in enumerate(job.layers)}
        self.modules = dict(modules)
        self.parameters = dict(parameters)
        """By canonical name, in layer order; a tied parameter stands there once."""
        self.optimizers = _optimizers(job, self.parameters)
        """By the name of the layer whose parameters they update."""
        self._names = {layer: self._canonical(layer) for layer in self.modules}
        self._states = {owner: state_of(job, optimizer) for owner, optimizer in self.optimizers.items()}
        self._base_rates = base_rates(self.optimizers.values()) if job.learning_rate_factor is not None else []
        self._can_be_sent = False

    @classmethod
    def initial(cls, job: TrainingJob, layers: Sequence[int], before_layer: Callable[[], None] = _nothing) -> "ModelState":
        """Freshly initialised layers, the same values in every process; what `before_layer` raises ends it."""
        modules = _modules(job, layers, {}, before_layer)
        parameters, names = _tie(job, modules), [layer.name for layer in job.layers]
        for name in {name for index in layers for name in job.layers[index].tied.values()}:
            owner_index = names.index(owner := owner_of(name, names))
            if owner_index not in modules:
                with torch.no_grad():
                    parameters[name].copy_(build_layer(job, owner_index).get_parameter(own_name(name, owner)))
        return cls(job, modules, parameters)

    def rebuilt(self, layers: Sequence[int], arrived: ArrivedState, before_layer: Callable[[], None] = _nothing) -> "ModelState":
        """The state for other layers: those held here are kept, the others come from what arrived.

        What `before_layer` raises ends it.

        Raises:
            ReconfigurationError: a layer with parameters is neither held nor arrived.
            InvalidInputError: what arrived is of another layer, or of one that another kind of optimizer updated.
        """
        modules = _modules(self._job, layers, self.modules, before_layer)
        parameters = _tie(self._job, modules, self.parameters)
        new = ModelState(self._job, modules, parameters)
        for name, parameter in parameters.items():
            before, state = self._state_for(name), new._state_for(name)
            if before is not None and state is not None:
                state.take(parameter, before)
        for index in layers:
            if index not in self.modules:
                new._load(index, arrived)
        return new

    def export(self, layer: int, kind: StateKind) -> StateEntries:
        """State of one layer by (owner, key); parameters bring their layer's buffers along.

        Raises:
            InvalidInputError: the optimizer keeps what cannot be sent.
        """
        if kind is StateKind.OPTIMIZER:
            return self._export_optimizers(layer)
        buffers: StateEntries = {(name, BUFFER): value for name, value in self._named_buffers(layer)}
        if kind is StateKind.BUFFER:
            return buffers
        return {(name, PARAMETER): parameter for name, parameter in self._named(layer)} | buffers

    def updated_by(self, layer: int) -> dict[str, str | None]:
        """The kind of optimizer of each of a layer's parameters, by canonical name; null where it is not trained."""
        return {name: self._updated_by(name, parameter) for name, parameter in self._named(layer)}

    def _updated_by(self, name: str, parameter: nn.Parameter) -> str | None:
        if not parameter.requires_grad:
            return None
        updater = updater_of(self.optimizers[owner_of(name, self._numbers)], parameter)
        return None if updater is None else kind_of(updater)

    def set_learning_rate(self, step: int) -> None:
        """Apply the job's learning-rate factor for `step`.

        Raises:
            InvalidInputError: it is no finite number.
        """
        if self._job.learning_rate_factor is not None:
            factor = finite_factor(self._job.learning_rate_factor(step), step)
            groups = (group for optimizer in self.optimizers.values() for group in optimizer.param_groups)
            for group, base in zip(groups, self._base_rates, strict=True):
                group[RATE] = base * factor

    def update(self, step: int) -> None:
        """Every layer's parameters by their gradients, one layer after the other; what this draws depends on step and layer alone.

        Raises:
            InvalidInputError: the optimizer keeps what cannot be sent, which the first update shows.
        """
        for owner, optimizer in self.optimizers.items():
            seed_generators(self._job, 4, step, self._numbers[owner])
            with noted(f"in the optimizer of layer {owner!r}, in step {step}"):
                optimizer.step()
        if not self._can_be_sent:
            for state in self._states.values():
                state.require_nothing_beside()
            for layer in self.modules:
                self.export(layer, StateKind.OPTIMIZER)
            self._can_be_sent = True

    def _export_optimizers(self, layer: int) -> StateEntries:
        by_state: dict[OptimizerState, list[tuple[str, nn.Parameter]]] = defaultdict(list)
        for name, parameter in self._named(layer):
            if (state := self._state_for(name)) is not None:
                by_state[state].append((name, parameter))
        found: StateEntries = {}
        for state, named in by_state.items():
            state.require_by_parameter()
            exported = state.export(parameter for _, parameter in named)
            found |= {(name, key): value for (name, _), own in zip(named, exported, strict=True) for key, value in own.items()}
        return found

    def _state_for(self, name: str) -> OptimizerState | None:
        """Of the optimizer that updates a parameter, or others of its layer; null where none of them is trained."""
        return self._states.get(owner_of(name, self._numbers))

    def _named(self, layer: int) -> list[tuple[str, nn.Parameter]]:
        return self._names[layer]

    def _canonical(self, layer: int) -> list[tuple[str, nn.Parameter]]:
        own = self._job.layers[layer]
        return [(canonical_name(own, name), parameter) for name, parameter in self.modules[layer].named_parameters()]

    def _named_buffers(self, layer: int) -> Iterator[tuple[str, Tensor]]:
        for name, buffer in self.modules[layer].named_buffers():
            yield f"{self._job.layers[layer].name}.{name}", buffer

    def _load(self, layer: int, arrived: ArrivedState) -> None:
        own = self.export(layer, StateKind.PARAMETER)
        name = next((name for name, key in own if key == PARAMETER), None)
        if (layer, StateKind.PARAMETER) not in arrived and name is not None:
            raise ReconfigurationError(f"layer {layer} is new here, and nobody sent {name}", field="migration", value=name)
        values = arrived.get((layer, StateKind.PARAMETER), {}) | arrived.get((layer, StateKind.BUFFER), {})
        require_fits(self._job.layers[layer].name, own, values, self.updated_by(layer))
        with torch.no_grad():
            for place, tensor in own.items():
                tensor.copy_(values[place])
        self._load_optimizer(arrived.get((layer, StateKind.OPTIMIZER), {}))

    def _load_optimizer(self, entries: StateEntries) -> None:
        by_name: dict[str, dict[str, Any]] = defaultdict(dict)
        for (name, key), value in entries.items():
            by_name[name][key] = value
        for name, own in by_name.items():
            if (state := self._state_for(name)) is not None:
                state.load(self.parameters[name], own)


def state_of(job: TrainingJob, optimizer: torch.optim.Optimizer) -> OptimizerState:
    """What an optimizer of a job keeps; a factor on the learning rates sets them for every step, whatever they were."""
    return OptimizerState(optimizer, set_anew=() if job.learning_rate_factor is None else (RATE,))


def _modules(
    job: TrainingJob, layers: Sequence[int], held: Mapping[int, nn.Module], before_layer: Callable[[], None]
) -> dict[int, nn.Module]:
    """Modules of layers: those that are held, and new ones with their initial values."""
    modules = {}
    for index in layers:
        before_layer()
        modules[index] = held[index] if index in held else build_layer(job, index)
    return modules


def _optimizers(job: TrainingJob, parameters: Mapping[str, nn.Parameter]) -> dict[str, torch.optim.Optimizer]:
    """One for each layer: no update depends on which other layers its worker holds, and none needs room for several at once."""
    names = {layer.name for layer in job.layers}
    trained: dict[str, NamedParameters] = defaultdict(list)
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            trained[owner_of(name, names)].append((name, parameter))
    return {layer: optimizer_for(job, own) for layer, own in trained.items()}


def _tie(
    job: TrainingJob, modules: Mapping[int, nn.Module], held: Mapping[str, nn.Parameter] | None = None
) -> dict[str, nn.Parameter]:
    """Parameters by canonical name in layer order; modules that share one get the same object.

    That is the one in `held` where there is one, so that modules in use are never changed, else the owner's if it is here.
    """
    chosen: dict[str, nn.Parameter] = {}
    for index, module in modules.items():
        layer = job.layers[index]
        chosen |= {f"{layer.name}.{name}": p for name, p in module.named_parameters() if name not in layer.tied}
    chosen |= held or {}
    ordered: dict[str, nn.Parameter] = {}
    for index, module in modules.items():
        layer = job.layers[index]
        for name, parameter in list(module.named_parameters()):
            key = canonical_name(layer, name)
            ordered.setdefault(key, chosen.get(key, parameter))
            if ordered[key] is not parameter:
                _replace(module, parameter, ordered[key])
    return ordered


def _replace(module: nn.Module, parameter: nn.Parameter, other: nn.Parameter) -> None:
    """Put another parameter in the place of one, under each of its names."""
    for part in module.modules():
        for name, own in list(part._parameters.items()):
            if own is parameter:
                setattr(part, name, other)
