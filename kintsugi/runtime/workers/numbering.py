"""Numbers for the tensors that cross boundaries between stages, the same at both ends."""

from collections.abc import Mapping

from estimator.message_order import Order
from estimator.program import Message
from kintsugi.runtime.models import ModelShape
from restorer.transport import TensorSpec


class Numbering:
    """Of one model's messages: each is as many tensors as cross its boundary, and every tensor has a tag of its own."""

    def __init__(self, shape: ModelShape) -> None:
        self._boundaries = shape.boundaries
        self._tags_per_message = max(map(len, shape.boundaries))

    def specs(self, message: Message) -> tuple[TensorSpec, ...]:
        """What a message consists of; gradients only of tensors that need one."""
        _, boundary, is_gradient = message
        return tuple(spec for spec in self._boundaries[boundary] if spec.requires_grad or not is_gradient)

    def tag(self, message: Message, index: int) -> int:
        """Of one tensor of a message."""
        microbatch, boundary, is_gradient = message
        crossing = microbatch * len(self._boundaries) + boundary
        return (2 * crossing + is_gradient) * self._tags_per_message + index

    def tags(self, order: Order) -> Mapping[str, tuple[int, ...]]:
        """By peer, of all tensors of some messages in order."""
        return {
            peer: tuple(self.tag(message, index) for message in messages for index in range(len(self.specs(message))))
            for peer, messages in order.items()
        }
