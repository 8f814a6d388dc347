from dataclasses import replace

from kintsugi.core.profile import LinkCost, Network
from kintsugi.matrix.preparation import environment, idle_after_return
from tests.matrix.test_runner import MODEL, tiny_profile


def test_a_worker_that_comes_back_has_work_where_computing_takes_the_time(tmp_path):
    assert idle_after_return(tiny_profile(tmp_path), MODEL, 3) is None


def test_a_profile_by_which_nobody_is_missed_says_why(tmp_path):
    slow = LinkCost(alpha_seconds=3.0, beta_seconds_per_byte=1e-3)
    profile = replace(tiny_profile(tmp_path), network=Network(intra_host=slow, inter_host=slow))
    assert idle_after_return(profile, MODEL, 3)


def test_emulated_accelerators_are_told_of_with_the_machine():
    told = environment({}, [MODEL, replace(MODEL, device_seconds=0.025)])["Accelerators"]
    assert told.startswith("none; emulated")
    assert "25 ms" in told
