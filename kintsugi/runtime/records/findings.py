"""What is wrong with the steps of a run, told once for all steps and layers that it is wrong with."""

from collections import defaultdict
from collections.abc import Iterable, Iterator


class Findings:
    """Faults by step and layer; those that are equal are folded into ranges."""

    def __init__(self) -> None:
        self.total = 0
        """Before they are folded."""
        self._layers: dict[tuple[int, str], list[int]] = defaultdict(list)
        """Layers with each fault of each step; none where it is the whole step's."""

    def add(self, step: int, fault: str, layer: int | None = None) -> None:
        """Note a fault of a step, or of one layer in it."""
        self.total += 1
        layers = self._layers[step, fault]
        if layer is not None:
            layers.append(layer)

    def lines(self) -> tuple[str, ...]:
        """One line per fault, run of steps and set of layers, the earliest first. O(n log n) in the faults."""
        steps: dict[tuple[str, str], list[int]] = defaultdict(list)
        for (step, fault), layers in self._layers.items():
            steps[_ranges("layer", layers), fault].append(step)
        runs = [(first, last, *told) for told, own in steps.items() for first, last in _runs(own)]
        runs.sort(key=lambda run: run[0])
        return tuple(f"{_ranges('step', range(first, last + 1))}: " + " ".join(filter(None, told)) for first, last, *told in runs)


def _ranges(noun: str, numbers: Iterable[int]) -> str:
    """Such as "layer 3" or "layers 0-5, 8"; empty where there are no numbers."""
    runs = [f"{first}-{last}" if first != last else str(first) for first, last in _runs(numbers)]
    if not runs:
        return ""
    is_one = len(runs) == 1 and "-" not in runs[0]
    return f"{noun if is_one else noun + 's'} {', '.join(runs)}"


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of every run of consecutive numbers."""
    first = last = None
    for number in sorted(set(numbers)):
        if first is None or last is None or number != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = number
        last = number
    if first is not None and last is not None:
        yield first, last
