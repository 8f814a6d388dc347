"""The drop-in wrapper of a torch optimizer: synchronises replicas by a strategy that may change at any step."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kintsugi.core import checks
from kintsugi.core.errors import CommunicationError, InvalidInputError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.given import function, gradient_limit
from kintsugi.runtime.optimizer_state import load_exactly
from kintsugi.runtime.synchronization.background import ROUND_STEPS, Rounds
from kintsugi.runtime.synchronization.gradients import BUCKET_BYTES
from kintsugi.runtime.synchronization.membership import RollCall, Standing, broadcast
from kintsugi.runtime.synchronization.monitor import Totals
from kintsugi.runtime.synchronization.policies import Policy, Switch
from kintsugi.runtime.synchronization.rate import NoiseMemory
from kintsugi.runtime.synchronization.replica import Replica
from kintsugi.runtime.synchronization.strategies import Strategy
from kintsugi.runtime.synchronization.transport import Transport
from kintsugi.runtime.synchronization.wrapping import WrappingOptimizer

_PROGRESS = "synchronization"
"""What torch's optimizers leave alone in a state that they load."""


class SynchronizedOptimizer(WrappingOptimizer):
    """A torch optimizer whose `step` keeps this worker's model together with those of the others.

    All workers construct it at once, and all of them go through the same memberships. Learning-rate schedulers, hooks and
    `zero_grad` see the optimizer within, and so does `state_dict`, which tells how far the workers are as well.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        strategy: Strategy | Sequence[Strategy],
        transport: Transport,
        *,
        policy: Policy | None = None,
        on_switch: Callable[[Switch], None] | None = None,
        learning_rate: Callable[[int], float] | None = None,
        max_grad_norm: float | None = None,
        num_backwards: int = 1,
        bucket_bytes: int = BUCKET_BYTES,
        round_steps: int = ROUND_STEPS,
    ) -> None:
        """Waits for all workers; those that have no steps behind them take the state of one that has.

        Args:
            optimizer: of this worker's model; its parameters are of one type.
            strategy: to follow, or several of which the first is followed first.
            transport: to the other workers; closed by this object.
            policy: changes the strategy; each worker has one of its own, made alike.
            on_switch: told of every change of strategy, on every worker.
            learning_rate: by step, for all parameter groups. A scheduler counts each worker's own steps, which differ under
                an asynchronous strategy; synchronous strategies refuse learning rates that do.
            max_grad_norm: 2-norm that the gradient is scaled down to before it is applied.
            num_backwards: backward passes per step.
            bucket_bytes: of gradients that are summed together, beside the backward pass.
            round_steps: while asynchronous, steps between rounds in which workers agree on a change.

        Raises:
            CommunicationError: a worker is gone.
            InvalidInputError: an argument is of another kind, strategies have the same name, the policy may choose one that is not
                given, a count or a limit is none, the optimizer's step needs a closure, or it has parameters of several types, in
                other groups than the others', or trains others of them.
        """
        checks.instance("optimizer", optimizer, torch.optim.Optimizer)
        if isinstance(optimizer, WrappingOptimizer):
            message = "wraps another optimizer already; give that one"
            raise InvalidInputError(message, field="optimizer", value=type(optimizer).__name__)
        candidates = _strategies(strategy)
        self._strategies = {candidate.name: candidate for candidate in candidates}
        gradient_limit(max_grad_norm)
        for name, value in (("num_backwards", num_backwards), ("bucket_bytes", bucket_bytes), ("round_steps", round_steps)):
            checks.count(name, value)
        for name, called in (("on_switch", on_switch), ("learning_rate", learning_rate)):
            if called is not None:
                function(name, called)
        if policy is not None:
            checks.instance("policy", policy, Policy, hint="such as ThroughputPolicy()")
            for name in policy.strategies:
                self._known(name)
        super().__init__(optimizer)
        self._strategy = candidates[0]
        self._policy, self._on_switch, self._round_steps = policy, on_switch, round_steps
        self._replica = Replica(
            optimizer,
            transport,
            learning_rate=learning_rate,
            max_grad_norm=max_grad_norm,
            bucket_bytes=bucket_bytes,
            num_backwards=num_backwards,
        )
        _require_transport(transport)
        self._rounds: Rounds | None = None
        self._is_new = True
        self._step_begun: int | None = None
        """The step that `step` is at; kept when it was interrupted."""
        self._log = get_logger("kintsugi.runtime")
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._gradient_ready, number))
            for number, parameter in enumerate(self._replica.parameters)
        ]
        try:
            self._join(transport)
        except BaseException:  # who joins tries again, with another optimizer around the same model
            self.close()
            raise

    @property
    def strategy(self) -> str:
        """Name of the strategy that is followed now."""
        return self._strategy.name

    @property
    def num_steps(self) -> int:
        """Steps taken; the same on all workers while the strategy is synchronous."""
        return self._replica.num_steps

    @property
    def num_workers(self) -> int:
        """Of the present membership."""
        return self._replica.transport.num_workers

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Asked by torch's GradScaler: whether it is to call `step` whatever the gradients are, with its scale as an attribute."""
        return self._strategy.keeps_replicas_equal

    def __repr__(self) -> str:
        return f"SynchronizedOptimizer({self.strategy}, {self.num_workers} workers, {self._inner!r})"

    def state_dict(self) -> dict[str, Any]:
        """Of the optimizer within, and how far the workers are: steps taken, strategy, and what the policy remembers."""
        return {**self._inner.state_dict(), _PROGRESS: self._progress()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there. All workers do, between two steps, with their models loaded before.

        Of the state of an optimizer that was not wrapped, steps and strategy are not known: they stay as they are.

        Raises:
            CommunicationError: a worker is gone.
            InvalidInputError: the strategy that was followed is none of those given, or workers are under way at their own paces.
        """
        if self._rounds is not None and self._replica.report().steps_since_change > 0:
            message = "cannot be loaded while each worker takes steps of its own; load it before the first one, on all workers"
            raise InvalidInputError(message, field="state_dict", value=self.strategy)
        told = state_dict.get(_PROGRESS)
        following = self._strategy if told is None else self._known(told["strategy"])
        load_exactly(self._inner, {key: value for key, value in state_dict.items() if key != _PROGRESS})
        model = self._replica.model()
        self._strategy.abandon(self._replica)
        self._replica.load(model)  # which a strategy that keeps one of its own has overwritten
        if told is not None:
            self._go_on(told)
            self._remember(told["policy"])
        if not following.is_synchronous:  # nobody averages with a model from before the loading
            self._replica.transport.begin_sum(self._replica.report().tensor()).wait()
        self._enter(following)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronise and update, atomically under a synchronous strategy; then change the strategy where that is agreed.

        Raises:
            CommunicationError: a worker is gone. Nothing was touched: `adopt` a new membership, and call this again.
            InvalidInputError: the workers' learning rates differ, a parameter came to be trained later, or gradients are sparse, or
                were changed once they were summed.
        """
        self._require_unscaled()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        began, self._step_begun = time.perf_counter(), self.num_steps
        if self._strategy.is_synchronous:
            self._replica.begin_report()
        self._strategy.step(self._replica)
        self._strategy.applied(self._replica)
        self._replica.monitor.stepped(time.perf_counter() - began)
        agreed, self._replica.agreed = self._replica.agreed, None
        self._follow(agreed if self._rounds is None else self._rounds.stepped())
        self._step_begun = None
        return loss

    def adopt(self, transport: Transport) -> bool:
        """Go on with the workers of another membership; all of them call this, those that join construct theirs.

        Returns:
            Whether a step that was interrupted is over: some worker had passed its commit point, so all have applied it now, or
            this one missed a membership and was given the others' model, of which its gradients are not. Else it is to be
            taken again.

        Raises:
            CommunicationError: a worker is gone; adopt another membership.
        """
        self._strategy.abandon(self._replica)
        self._replica.transport.abort()
        self._replica.transport.close()
        self._replica.connect(transport)
        has_learned = self._join(transport)
        begun, self._step_begun = self._step_begun, None
        return begun is not None and (has_learned or self.num_steps > begun)

    def finish(self) -> None:
        """Train no further, with all others: every worker has the same model then. Gives threads and connections back.

        Under a synchronous strategy all workers come to this after the same step. A loop that goes on while `num_steps` is
        below some number does that under every strategy.

        Raises:
            CommunicationError: a worker is gone, or lacks the last step: `adopt` a new membership, and call this again.
        """
        try:
            while self._rounds is not None:
                agreed = self._rounds.next()
                if agreed.num_done == agreed.num_workers:
                    break
                self._follow(agreed)  # as the others do who still train
            self._leave()
            self._replica.conclude()  # whoever lacks the last step has others to adopt it from
        finally:
            self.close()

    def close(self) -> None:
        """Stop alone, at once: give threads and connections back."""
        for hook in self._hooks:
            hook.remove()
        self._strategy.abandon(self._replica)
        self._replica.transport.abort()
        self._replica.transport.close()

    def _require_unscaled(self) -> None:
        if vars(self).pop("found_inf", None) is not None:
            message = "gradients come from a GradScaler, and are summed before it scales them back; train in bfloat16, without it"
            raise InvalidInputError(message, field="gradients", value="GradScaler")

    def _gradient_ready(self, number: int, _: nn.Parameter | Tensor) -> None:
        if self._strategy.is_synchronous:
            with suppress(CommunicationError):  # `step` finds it again; a backward pass is no place to handle it
                self._replica.begin_report()
        self._strategy.gradient_ready(self._replica, number)

    def _join(self, transport: Transport) -> bool:
        """Become a member: complete what another one has committed, follow one strategy, learn what one does not know.

        Returns:
            Whether this worker has another member's model now.
        """
        own = None if self._is_new else self._standing()
        found = RollCall.gathered(transport, own)
        is_equal = self._strategy.keeps_replicas_equal or not found.is_agreed
        if own is not None and self._strategy.is_synchronous and not is_equal and found.must_roll_forward(own):
            self._replica.roll_forward()
            self._strategy.applied(self._replica)
        must_learn = own is None or (self._strategy.is_synchronous and self._is_left(own, found, is_equal=is_equal))
        are_apart = self._strategy.is_synchronous and not (found.is_abreast and found.has_one_model)
        self._remember(broadcast(transport, found.source, {"policy": self._memory})["policy"])
        if found.has_joiners or not found.is_agreed or are_apart:
            self._learn(broadcast(transport, found.source, self._state()), has_all_to_learn=must_learn)
        if not found.is_agreed and self._strategy.is_synchronous:
            self._replica.equalize()
        self._is_new = False
        self._enter(self._strategy)
        return must_learn

    def _is_left(self, own: Standing, found: RollCall, *, is_equal: bool) -> bool:
        """Whether this member cannot go on from where it is, beside the others."""
        if not is_equal:
            return found.cannot_follow(own)
        rank = self._replica.transport.rank
        return found.is_behind(rank) or (found.is_agreed and found.has_other_model(rank))

    def _standing(self) -> Standing:
        is_one = self._strategy.keeps_replicas_equal
        number = list(self._strategies).index(self.strategy)
        return Standing(self._replica.status, number, self._replica.digest() if is_one else 0)

    def _state(self) -> dict[str, Any]:
        return {
            "model": self._replica.model(),
            "still": self._replica.still(),
            "optimizer": self._inner.state_dict(),
            **self._progress(),
        }

    def _progress(self) -> dict[str, Any]:
        return {
            "num_steps": self._replica.num_steps,
            "noise": asdict(self._replica.noise),
            "strategy": self.strategy,
            "policy": self._memory,
        }

    @property
    def _memory(self) -> dict[str, float]:
        return dict(self._policy.memory) if self._policy is not None else {}

    def _go_on(self, told: Mapping[str, Any]) -> None:
        self._replica.go_on(told["num_steps"], NoiseMemory(**told["noise"]))

    def _remember(self, memory: Mapping[str, float]) -> None:
        """What a policy has begun to remember here alone is forgotten: a loss came before the others could."""
        if self._policy is not None:
            self._policy.memory.clear()
            self._policy.memory.update(memory)

    def _learn(self, state: dict[str, Any], *, has_all_to_learn: bool) -> None:
        """Take the strategy of a member, and all else that it has where this worker joins or is behind."""
        if has_all_to_learn:
            _require_same_groups(self._inner, state["optimizer"])
            self._replica.load_still(state["still"])
            self._replica.load(state["model"])
            load_exactly(self._inner, state["optimizer"])
            self._go_on(state)
        self._strategy = self._known(state["strategy"])

    def _known(self, name: str) -> Strategy:
        if name not in self._strategies:
            raise InvalidInputError(f"is none of those given: {', '.join(self._strategies)}", field="strategy", value=name)
        return self._strategies[name]

    def _follow(self, agreed: Totals | None) -> None:
        """Do what the policy makes of what was agreed, unless somebody trains no further; then begin the next step."""
        if agreed is not None and agreed.num_done == 0 and self._policy is not None:
            choice = self._policy.choose(agreed.observation(self.strategy))
            if choice is not None and choice.strategy != self.strategy:
                self._change(self._known(choice.strategy), choice.reason)
        self._strategy.begin(self._replica)

    def _change(self, following: Strategy, reason: str) -> None:
        """All workers come here after the same agreement, each at the end of a step."""
        before = self.strategy
        self._leave(is_equality_needed=following.is_synchronous)
        self._enter(following)
        self._replica.gradients.renew()
        switch = Switch(step=self.num_steps, before=before, after=self.strategy, reason=reason, num_workers=self.num_workers)
        self._log.info("synchronisation changed", step=switch.step, before=before, after=switch.after, reason=reason)
        if self._on_switch is not None:
            self._on_switch(switch)

    def _leave(self, *, is_equality_needed: bool = True) -> None:
        self._strategy.leave(self._replica)
        if is_equality_needed and not self._strategy.keeps_replicas_equal:
            self._replica.equalize()

    def _enter(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._replica.has_commit_point = not strategy.keeps_replicas_equal
        self._replica.monitor.renew()
        strategy.enter(self._replica)
        self._rounds = None
        if not strategy.is_synchronous:
            self._rounds = Rounds(self._replica.transport, lambda is_done: self._replica.report(is_done=is_done), self._round_steps)


def _require_same_groups(optimizer: torch.optim.Optimizer, arrived: Mapping[str, Any]) -> None:
    own, theirs = ([len(group["params"]) for group in groups] for groups in (optimizer.param_groups, arrived["param_groups"]))
    if own != theirs:
        message = f"has parameter groups of {own} tensors here and of {theirs} with the others; give all workers the same groups"
        raise InvalidInputError(message, field="optimizer", value=own)


def _require_transport(transport: Transport) -> None:
    if isinstance(transport, type) or not hasattr(transport, "begin_sum"):
        message = "must reach the other workers, such as PeerTransport.of_process_group()"
        raise InvalidInputError(message, field="transport", value=repr(transport)[:200])


def _strategies(given: Strategy | Sequence[Strategy]) -> list[Strategy]:
    """Those that were given, one or several.

    Raises:
        InvalidInputError: none, several of one name, or what is no strategy.
    """
    candidates = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    for candidate in candidates:
        if not isinstance(candidate, Strategy):
            message = f"must be a strategy, such as SynchronousSGD(), or several, not {candidate!r}"
            raise InvalidInputError(message, field="strategy", value=repr(candidate))
    names = [candidate.name for candidate in candidates]
    if not names or len(set(names)) < len(names):
        raise InvalidInputError("give strategies of different names, at least one", field="strategy", value=names)
    return candidates
