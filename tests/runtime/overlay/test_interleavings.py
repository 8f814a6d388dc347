"""Interleavings in which a joining worker could go on from another step than the others, or wait for nobody."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from kintsugi.core.overlay import WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from kintsugi.runtime.overlay import arrival, sources
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.committed import Committed, GivenUpError, LostTrackError, Sum
from kintsugi.runtime.overlay.following import messages
from kintsugi.runtime.overlay.history import History
from kintsugi.runtime.overlay.joining import Joiner
from kintsugi.runtime.overlay.pursuit import Pursuit
from kintsugi.runtime.overlay.reduction import TreeReduction
from kintsugi.runtime.overlay.trail import Trail
from kintsugi.runtime.overlay.trained import TrainedState
from tests.runtime.overlay.crew import OPTIONS, Crew, wide
from tests.runtime.overlay.desk import Desk
from tests.runtime.overlay.test_churn import check

SHORT = replace(OPTIONS, chunk_bytes=2**14, reduction_timeout_seconds=90.0, join_timeout_seconds=100.0)


class SlowDesk(Desk):
    """All links are alike but for one, over which nothing is worth sending."""

    def post(self, event: OverlayEvent):
        if event.kind is OverlayEventKind.LINK_MEASURED:
            slowness = 5e-3 if event.link == ("b", "d") else 1e-9
            event = replace(event, alpha_seconds=1e-4, beta_seconds_per_byte=slowness)
        return super().post(event)


@pytest.mark.parametrize("is_scheduler_slow", [False, True])
def test_a_state_that_is_loaded_is_not_gone_on_with_from_the_step_of_another(monkeypatch, is_scheduler_slow):
    """The only source is lost while its state is loaded; the replication from another one begins before that is over."""
    crew = Crew(
        SlowDesk(), replace(OPTIONS, chunk_bytes=2**14, reduction_timeout_seconds=90.0, join_timeout_seconds=100.0), build=wide
    )
    load, opened, is_loading, others = TrainedState.load, arrival._TAKES[sources.OPEN], threading.Event(), threading.Event()

    def open_and_tell(arriving, worker, message):
        found = opened(arriving, worker, message)
        if worker == "b":
            others.set()
        return found

    def late(trained, packed):
        if not is_loading.is_set():
            is_loading.set()
            assert others.wait(120.0)
        load(trained, packed)

    monkeypatch.setitem(arrival._TAKES, sources.OPEN, open_and_tell)
    monkeypatch.setattr(TrainedState, "load", late)
    if is_scheduler_slow:
        take, post, is_told = Trail.take, SlowDesk.post, threading.Event()

        def take_and_tell(trail, worker, message):
            take(trail, worker, message)
            if worker == "b":
                is_told.set()

        def late_post(desk, event):
            if event.kind is OverlayEventKind.STATE_REPLICATED and event.worker == "d":
                is_told.wait(3.0)
            return post(desk, event)

        monkeypatch.setattr(Trail, "take", take_and_tell)
        monkeypatch.setattr(SlowDesk, "post", late_post)
    crew.start("a").await_steps(1)
    is_loading.set()
    crew.start("b", ("a",)).await_steps(1)
    is_loading.clear()
    joiner = crew.start("d", ("a", "b"))
    assert is_loading.wait(120.0)
    crew.members["a"].strike()
    joiner.await_steps(2)
    crew.finish()
    check(crew)


def test_what_was_heard_of_the_dead_alone_is_void_once_the_others_settled(monkeypatch):
    """The teller dies with a reduction that it told a joiner alone; the next attempt counts on the joiner."""
    crew = Crew(Desk(all_links_alike=True), SHORT, build=wide)
    crew.start_connected("a", "b", "c")
    send_down, ready, take, kept, is_heard = TreeReduction._send_down, Agent.ready, Trail.take, [], threading.Event()
    go_on, is_held = Joiner._go_on, threading.Event()

    def counts(overlay) -> bool:
        return "d" in overlay.synchronization.order

    def not_ready(agent, after, restarts):
        return None if counts(agent.overlay) else ready(agent, after, restarts)

    def keep(reduction, index):
        if not crew.members["a"].is_struck.is_set() and (kept or (index == 0 and counts(crew.desk.now))):
            kept.append(reduction)
            reduction._num_final += 1
        else:
            send_down(reduction, index)

    def take_and_tell(trail, worker, message):
        take(trail, worker, message)
        if kept and worker == "a" and trail.heard.number == kept[0]._exchange.key.round:
            is_heard.set()

    def go_on_later(joining):
        """It hears of the death when it hears that the others begin again."""
        if is_heard.is_set():
            is_held.set()
            assert joining._agent.await_overlay(lambda overlay: overlay.restarts > 0, 20.0)
        go_on(joining)

    monkeypatch.setattr(TreeReduction, "_send_down", keep)
    monkeypatch.setattr(Agent, "ready", not_ready)
    monkeypatch.setattr(Trail, "take", take_and_tell)
    monkeypatch.setattr(Joiner, "_go_on", go_on_later)
    joiner = crew.start("d", ("a", "b", "c"))
    assert is_held.wait(120.0)
    monkeypatch.setattr(Agent, "ready", ready)
    crew.members["a"].strike()
    joiner.await_steps(2)
    crew.finish()
    check(crew)


def test_a_joiner_asks_again_as_often_as_it_loses_track(monkeypatch):
    crew = Crew(Desk(all_links_alike=True), SHORT, build=wide)
    go_on, ready, lost = Pursuit.go_on, Agent.ready, []

    def lose(pursuit, overlay, arrival, number):
        if len(lost) < 2 and pursuit._agent.state is WorkerState.ACTIVE:
            lost.append(arrival.generation)
            raise LostTrackError("nobody can tell")
        go_on(pursuit, overlay, arrival, number)

    def not_ready(agent, after, restarts):
        found = ready(agent, after, restarts)
        return None if found is not None and "d" in found.synchronization.order and len(lost) < 2 else found

    crew.start_connected("a", "b")
    monkeypatch.setattr(Pursuit, "go_on", lose)
    monkeypatch.setattr(Agent, "ready", not_ready)
    joiner = crew.start("d", ("a", "b"))
    joiner.await_steps(2)
    crew.finish()
    check(crew)
    assert len(set(lost)) == 2
    assert crew.desk.num(OverlayEventKind.REPLICATION_REQUESTED) == 2


def test_sources_copy_the_same_step_though_one_was_handed_the_last_reduction(monkeypatch):
    crew = Crew(Desk(all_links_alike=True), SHORT, build=wide)
    crew.start_connected("a", "b", "c")
    send_down, ready, kept, is_through = TreeReduction._send_down, Agent.ready, [], threading.Event()

    def not_ready(agent, after, restarts):
        return None if agent.overlay.replications else ready(agent, after, restarts)

    def to_the_first(reduction, index):
        """The root tells the first of its children alone."""
        place = reduction._place
        if place.worker == "a" and (kept or (index == 0 and crew.desk.now.replications)):
            kept.append(reduction)
            children, place_ = place.children, replace(place, children=place.children[:1])
            assert len(children) == 2
            reduction._place = place_
            send_down(reduction, index)
            reduction._place = place
            if reduction._is_over():
                is_through.set()
        else:
            send_down(reduction, index)

    monkeypatch.setattr(Agent, "ready", not_ready)
    monkeypatch.setattr(TreeReduction, "_send_down", to_the_first)
    joiner = crew.start("d", ("a", "b", "c"))
    assert is_through.wait(120.0)
    first = crew.members[kept[0]._place.children[0]]
    number = kept[0]._exchange.key.round
    with first._stepped:
        assert first._stepped.wait_for(lambda: any(one.worker == first.worker and one.number == number for one in crew.lines), 20.0)
    crew.members["a"].strike()
    crew.desk.until(lambda overlay: overlay.restarts > 0)
    monkeypatch.setattr(Agent, "ready", ready)
    joiner.await_steps(2)
    crew.finish()
    check(crew)
    assert crew.desk.num(OverlayEventKind.REPLICATION_REQUESTED) == 0


def test_a_source_that_has_just_joined_copies_the_same_step_as_the_others(monkeypatch):
    crew = Crew(Desk(all_links_alike=True), SHORT, build=wide)
    crew.start_connected("a", "b")
    ready = Agent.ready

    def is_awaited(overlay) -> bool:
        return any(share.source == "d" for one in overlay.replications for share in one.shares)

    def not_ready(agent, after, restarts):
        found = ready(agent, after, restarts)
        counts = found is not None and "d" in found.synchronization.order
        return None if counts and not is_awaited(found) else found

    monkeypatch.setattr(Agent, "ready", not_ready)
    crew.start("d", ("a", "b"))
    crew.desk.until(lambda overlay: "d" in overlay.synchronization.order)
    last = crew.start("e", ("a", "b", "d"))
    crew.desk.until(is_awaited)
    monkeypatch.setattr(Agent, "ready", ready)
    last.await_steps(2)
    crew.finish()
    check(crew)
    assert crew.desk.num(OverlayEventKind.REPLICATION_REQUESTED) == 0


def test_a_worker_that_is_asked_to_leave_before_it_holds_the_state_goes(monkeypatch):
    crew = Crew(options=replace(OPTIONS, join_timeout_seconds=100.0))
    put, is_met, may_go_on = sources._Stream._put, threading.Event(), threading.Event()

    def put_later(stream, kind, *arguments):
        is_met.set()
        assert may_go_on.wait(120.0)
        put(stream, kind, *arguments)

    monkeypatch.setattr(sources._Stream, "_put", put_later)
    crew.start("a").await_steps(1)
    joiner = crew.start("d", ("a",))
    assert is_met.wait(120.0)
    life = crew.desk.now.worker("d").incarnation
    crew.desk.post(OverlayEvent(kind=OverlayEventKind.WORKER_DRAINING, id="leave", worker="d", incarnation=life))
    may_go_on.set()
    joiner.join(120.0)
    assert isinstance(joiner.error, GivenUpError)
    joiner.error = None
    crew.members["a"].await_steps(crew.members["a"].num_steps + 2)
    crew.finish()
    check(crew)
    assert crew.desk.num(OverlayEventKind.WORKER_FAILED) == 0


def test_whom_a_state_came_from_is_known_though_all_of_it_came_at_once(monkeypatch):
    """Nobody looked after the sources before the state was there, and by then the replication is over."""
    crew = Crew(options=replace(OPTIONS, reduction_timeout_seconds=90.0, join_timeout_seconds=100.0))
    go_on = Pursuit.go_on

    def not_before_it_counts(pursuit, overlay, arrival, number):
        if overlay.worker("d").state is not WorkerState.JOINING:
            go_on(pursuit, overlay, arrival, number)

    crew.start("a").await_steps(1)
    monkeypatch.setattr(Pursuit, "go_on", not_before_it_counts)
    joiner = crew.start("d", ("a",))
    joiner.await_steps(2)
    crew.finish()
    check(crew)


def test_a_follower_that_missed_its_next_reduction_holds_nobody_up():
    history, key = History(32, 0.0), ("x", 7)
    history.follow(key, Sum(0, 0), is_told=True)
    for number in (1, 2):
        history.add(Committed(which=Sum(number, 0), vector=np.zeros(4), weights={}, agreed=None))
    history._patience_seconds = 60.0
    adding = threading.Thread(
        target=history.add, args=(Committed(which=Sum(3, 0), vector=np.zeros(4), weights={}, agreed=None),), daemon=True
    )
    adding.start()
    adding.join(120.0)
    assert not adding.is_alive()


def test_a_trail_that_nobody_tells_is_not_forgotten():
    trail = Trail(7, Sum(4, 2), lambda: np.zeros(4), lambda: None)
    trail.begin("a")
    for number in (5, 6, 7):
        told = Committed(which=Sum(number, 2), vector=None, weights={}, agreed=None)
        for part in messages(told, 7, 1024):
            trail.take("a", part)
    for teller in (None, None, "b"):
        trail.begin(teller)
    assert trail.heard == Sum(6, 2)
