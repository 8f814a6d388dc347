"""Equal faults are one line, and no fault is lost."""

import re

from hypothesis import given
from hypothesis import strategies as st

from kintsugi.runtime.records.findings import Findings


def test_runs_of_equal_faults_are_folded():
    found = Findings()
    for step in (*range(12, 41), 50):
        for layer in (*range(6), 8):
            found.add(step, "saw sample 0 twice", layer)
    found.add(13, "w00 passed it 2 times in one attempt")
    assert found.lines() == (
        "steps 12-40: layers 0-5, 8 saw sample 0 twice",
        "step 13: w00 passed it 2 times in one attempt",
        "step 50: layers 0-5, 8 saw sample 0 twice",
    )
    assert found.total == 30 * 7 + 1


@given(st.sets(st.tuples(st.integers(0, 12), st.integers(0, 6), st.sampled_from(["is odd", "is even"]))))
def test_unfolded_lines_are_what_was_found(faults):
    found = Findings()
    for step, layer, fault in faults:
        found.add(step, fault, layer)
    told = [re.fullmatch(r"steps? (\S+): layers? ([\d, -]+) (is \w+)", line).groups() for line in found.lines()]
    unfolded = [(step, layer, fault) for steps, layers, fault in told for step in spread(steps) for layer in spread(layers)]
    assert sorted(unfolded) == sorted(faults)
    assert found.total == len(faults)


def spread(ranges: str) -> list[int]:
    ends = [tuple(map(int, part.split("-"))) for part in ranges.split(", ")]
    return [number for own in ends for number in range(own[0], own[-1] + 1)]
