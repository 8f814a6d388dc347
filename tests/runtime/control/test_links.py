import itertools

from hypothesis import given
from hypothesis import strategies as st

from kintsugi.runtime.control.links import cut_off
from tests.builders import grid_plan

WORKERS = [f"w{n:02d}" for n in range(6)]
PAIRS = list(itertools.combinations(WORKERS, 2))


@given(st.sets(st.sampled_from(PAIRS)))
def test_all_that_stay_reach_each_other(links):
    gone = cut_off({a: [b for x, b in links if x == a] for a, _ in links}, WORKERS, None)
    assert all(a in gone or b in gone for a, b in links)
    assert len(set(gone)) == len(gone)
    fewest = next(n for n in range(7) if any(all(set(c) & set(link) for link in links) for c in itertools.combinations(WORKERS, n)))
    assert len(gone) <= 2 * fewest


def test_nobody_goes_where_all_links_work():
    assert cut_off(dict.fromkeys(WORKERS, ()), WORKERS, None) == ()


def test_one_that_nobody_reaches_goes_alone():
    assert cut_off({worker: ["w02"] for worker in WORKERS if worker != "w02"}, WORKERS, None) == ("w02",)


def test_of_two_ends_the_one_goes_whose_layers_others_hold():
    plan = grid_plan(6, [3, 2, 1], [1, 1, 1])
    assert cut_off({"w00": ["w05"]}, WORKERS, plan) == ("w05",), "the last of equals"
    assert cut_off({"w02": ["w03"]}, WORKERS[:4], grid_plan(6, [3, 1], [1, 1])) == ("w03",)
    alone = grid_plan(6, [2, 2, 2], [1, 1, 1])
    assert cut_off({"w00": ["w05"], "w02": ["w01"], "w04": ["w01"], "w03": ["w01"]}, WORKERS, alone) == ("w01", "w05")


def test_the_only_holder_of_a_layer_stays():
    """w03 holds the second half alone, once w01 is gone."""
    assert cut_off({"w02": ["w03"]}, ["w00", "w02", "w03"], grid_plan(4, [2, 2], [1, 1])) == ("w02",)
