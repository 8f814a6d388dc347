"""The churn benchmark without its test bed: overlays, ways, bounds, and what is made of outcomes."""

import json
import math
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.churn.baselines import Method, assignment, ready_seconds, searchable, sends, tree_of
from benchmarks.churn.campaign import Asked, Case, Record, Results, cases, read, run
from benchmarks.churn.measure import Outcome
from benchmarks.churn.overlays import drawn, scaled, with_equal_links
from benchmarks.churn.product import ProductEvent, lengthened, of_all
from benchmarks.churn.summary import assignments_equal_to_brute_force, figures
from benchmarks.churn.workers import Seen
from planner.sharding.baselines import brute_force
from planner.sharding.exact import assign_shards

MEBIBYTE = 2**20
SHARD_BYTES = 64 * 1024

few = settings(max_examples=20, deadline=None)
overlays = st.builds(drawn, st.integers(4, 12), st.integers(0, 10_000))


@few
@given(overlays)
def test_overlays_are_connected_and_within_the_papers_ranges(overlay):
    assert nx.is_connected(overlay.graph())
    assert nx.is_connected(overlay.graph(with_joiner=False))
    assert 2 <= len(overlay.neighbors) <= 4
    for wire in overlay.wires:
        assert 100e6 <= wire.bits_per_second <= 1000e6
        assert 0.010 <= wire.latency_seconds <= 0.020
        assert wire.between[0] < wire.between[1]


@few
@given(st.integers(0, 1000))
def test_a_joiner_has_the_same_links_whatever_the_cluster(seed):
    small, large = drawn(6, seed), drawn(12, seed)
    assert [w.bits_per_second for w in small.joiner_wires] == [w.bits_per_second for w in large.joiner_wires]
    assert small.bound_seconds(MEBIBYTE) == large.bound_seconds(MEBIBYTE)


@few
@given(overlays, st.sampled_from([m for m in Method if m is not Method.CHECKPOINT]), st.integers(1, 40 * MEBIBYTE))
def test_every_byte_is_sent_once_along_links_of_the_overlay(overlay, method, num_bytes):
    plan = sends(method, overlay, num_bytes, SHARD_BYTES)
    pieces = sorted(piece for send in plan for piece in send.pieces())
    ends = [first + length for first, length in pieces]
    assert [first for first, _ in pieces] == [0, *ends[:-1]]
    assert ends[-1] == num_bytes
    for send in plan:
        assert send.way[-1] == overlay.joiner
        assert all(overlay.wire(one, other) for one, other in zip(send.way, send.way[1:], strict=False))
        assert method is Method.MULTI_SOURCE or len(send.way) == 2


@few
@given(overlays, st.integers(1, 200 * MEBIBYTE))
def test_no_assignment_is_under_the_bound_and_greedy_is_the_best(overlay, num_bytes):
    for method in (Method.SINGLE, Method.EVEN, Method.GREEDY):
        _, found = assignment(method, overlay, num_bytes, SHARD_BYTES)
        assert found.makespan_seconds >= overlay.bound_seconds(num_bytes) * (1 - 1e-12)
    problem = searchable(overlay, num_bytes, SHARD_BYTES)
    assert assign_shards(problem).makespan_seconds == brute_force(problem).makespan_seconds


def test_the_bound_of_one_link_is_its_latency_and_its_rate():
    overlay = drawn(6, 1, num_neighbors=1)
    wire = overlay.joiner_wires[0]
    assert overlay.bound_seconds(10**8) == pytest.approx(wire.latency_seconds + 10**8 / wire.bytes_per_second)
    assert scaled(overlay, 0.5).bound_seconds(10**8) > overlay.bound_seconds(10**8)


def test_equal_links_halve_what_one_of_them_takes():
    overlay = with_equal_links(drawn(6, 3, num_neighbors=2))
    _, one = assignment(Method.SINGLE, overlay, 100 * MEBIBYTE, SHARD_BYTES)
    _, both = assignment(Method.GREEDY, overlay, 100 * MEBIBYTE, SHARD_BYTES)
    assert 1.8 < one.makespan_seconds / both.makespan_seconds < 2.0


@few
@given(overlays)
def test_gradients_are_added_over_a_tree_of_the_fastest_links(overlay):
    parents = tree_of(overlay)
    tree = nx.Graph((child, parent) for child, parent in parents.items())
    assert set(tree) == set(overlay.active)
    assert nx.is_tree(tree)
    slowest = min(overlay.wire(*edge).bytes_per_second for edge in tree.edges)
    faster = [w.between for w in overlay.wires if overlay.joiner not in w.between and w.bytes_per_second > slowest]
    rest = nx.Graph(faster)
    rest.add_nodes_from(overlay.active)
    assert not nx.is_connected(rest), "no spanning tree has a faster slowest link"


@few
@given(overlays)
def test_neighbours_are_ready_in_the_order_of_their_latency_from_the_root(overlay):
    ready, parents = ready_seconds(overlay), tree_of(overlay)
    assert min(ready.values()) == 0.0
    assert set(ready) == set(overlay.neighbors)
    for child, parent in parents.items():
        if child in ready and parent in ready:
            assert ready[child] - ready[parent] == pytest.approx(overlay.wire(child, parent).latency_seconds)


def outcome(method: Method, case: Case, delay: float, idle: float) -> Outcome:
    return Outcome(
        method=method,
        num_active=case.num_nodes,
        num_neighbors=2,
        state_bytes=round(case.mebibytes * MEBIBYTE),
        seed=case.seed,
        delay_seconds=delay,
        bound_seconds=1.0,
        idle_seconds=idle,
        step_seconds=0.2,
    )


def recorded(case: Case) -> Record:
    """Greedy takes 1.05 s and idles 1 s, whatever is asked; every other method takes twice as long and idles ten times."""
    return Record(
        case,
        tuple(outcome(m, case, 1.05 if m is Method.GREEDY else 2.1, 1.0 if m is Method.GREEDY else 10.0) for m in case.methods),
    )


ASKED = Asked(
    mebibytes=(1.7, 178.0),
    num_nodes=(6, 12),
    num_events=2,
    num_equal_events=3,
    num_product_events=0,
    num_product_nodes=6,
    seed=5,
    rate_ratio=1.0,
    compute_seconds=0.1,
    gradient_bytes=4,
)


RESULTS = Results(tuple(recorded(case) for case in cases(ASKED)), ())


def test_figures_are_medians_over_the_same_events():
    found = {figure.name: figure for figure in figures(RESULTS, 0, num_draws=2)}
    assert [round(figure.measured, 3) for figure in found.values()] == [1.0, 1.05, 1.0, 10.0, 2.0]
    assert [figure.num_events for figure in found.values()][1:] == [4, 2, 4, 3]


def test_what_was_kept_is_not_measured_again(tmp_path, monkeypatch):
    kept = tmp_path / "results.jsonl"
    measured = []

    def scale_out(overlay, setting, methods, seed):
        case = Case(part="unequal" if len(methods) > 2 else "equal", num_nodes=len(overlay.active), mebibytes=1.7, seed=seed)
        measured.append((setting.state_bytes, case.num_nodes, case.part, seed))
        return [outcome(method, case, math.pi, 1.0) for method in methods]

    monkeypatch.setattr("benchmarks.churn.campaign.scale_out", scale_out)
    first = run(ASKED, kept, Console(quiet=True))
    assert len(measured) == len(set(measured)) == 2 * 2 * 2 + 3
    assert run(ASKED, kept, Console(quiet=True)) == first == read(kept)
    assert len(measured) == 11
    assert all(json.loads(line) for line in kept.read_text().splitlines())


@pytest.mark.parametrize("changes", [{"rate_ratio": 0.1}, {"compute_seconds": 9.0}, {"gradient_bytes": 10**6}])
def test_what_was_measured_in_another_setting_is_not_taken_over(tmp_path, monkeypatch, changes):
    settings = []

    def scale_out(overlay, setting, methods, seed):
        settings.append(setting)
        case = Case(part="unequal", num_nodes=len(overlay.active), mebibytes=1.7, seed=seed)
        return [outcome(method, case, setting.rate_ratio, 1.0) for method in methods]

    monkeypatch.setattr("benchmarks.churn.campaign.scale_out", scale_out)
    kept, one = tmp_path / "results.jsonl", replace(ASKED, mebibytes=(1.7,), num_nodes=(6,), num_events=1, num_equal_events=0)
    for asked in (one, replace(one, **changes), one):
        run(asked, kept, Console(quiet=True))
    assert settings == [one.setting(1.7), replace(one, **changes).setting(1.7)]


def test_events_of_the_product_are_those_of_a_setting():
    setting = ASKED.setting(1.7)
    told = {"state_bytes": setting.state_bytes, "compute_seconds": 0.1, "gradient_bytes": 4}
    event = ProductEvent(num_active=6, seed=5, joins=(), primitives=(), **told)
    assert event.is_of(setting)
    assert not event.is_of(replace(setting, compute_seconds=9.0))
    assert not event.is_of(replace(setting, gradient_bytes=8))


def test_a_line_that_a_kill_cut_off_is_measured_again(tmp_path, monkeypatch):
    def scale_out(overlay, setting, methods, seed):
        case = Case(part="unequal", num_nodes=len(overlay.active), mebibytes=1.7, seed=seed)
        return [outcome(method, case, math.pi, 1.0) for method in methods]

    monkeypatch.setattr("benchmarks.churn.campaign.scale_out", scale_out)
    kept = tmp_path / "results.jsonl"
    first = run(ASKED, kept, Console(quiet=True))
    kept.write_text(kept.read_text()[:-20])
    assert read(kept).records == first.records[:-1]
    assert run(ASKED, kept, Console(quiet=True)) == first == read(kept)


def test_greedy_is_never_slower_than_brute_force():
    equal, tried = assignments_equal_to_brute_force(7, num_draws=10)
    assert equal == tried == 10


def seen(times: list[float], changes: list[int]) -> Seen:
    """A worker whose steps took these times."""
    ends = [sum(times[: index + 1]) for index in range(len(times))]
    return Seen(ends=dict(enumerate(ends)), changes=changes)


def test_steps_that_change_for_good_are_not_lengthened():
    """From step 6 on, behind whose end another tree takes effect, steps take 0.3 s instead of 0.2 s."""
    times = [0.2] * 7 + [0.3] * 8
    assert lengthened(seen(times, [6]), 0, asked_at=1.1, done_at=1.1)[0] == pytest.approx(0.0)
    times[6] += 0.05
    assert lengthened(seen(times, [6]), 0, asked_at=1.1, done_at=1.1) == (pytest.approx(0.05), pytest.approx(0.2))


def test_a_step_of_the_job_ends_when_the_last_worker_ends_it():
    """From step 6 on the other worker is the tree's root, which is through first: no step of the job is longer for it."""
    one, other = [0.2] * 15, [0.2] * 15
    one[0], other[6], one[6] = 0.15, 0.15, 0.25
    assert lengthened(seen(one, [6]), 0, asked_at=1.1, done_at=1.1)[0] == pytest.approx(0.05)
    assert lengthened(of_all([seen(one, [6]), seen(other, [6])]), 0, asked_at=1.1, done_at=1.1)[0] == pytest.approx(0.0)
