"""Which of torch's operations are carried out."""

from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Notes the names of all of this thread, in their order, while this context is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        """Carry one out."""
        self.names.append(function.overloadpacket.__name__)
        return function(*arguments, **(named or {}))
