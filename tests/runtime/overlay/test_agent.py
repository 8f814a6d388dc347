"""An agent hands on what the scheduler says: all of it in order, whichever thread heard it."""

import threading
from dataclasses import replace
from types import SimpleNamespace

from structlog.testing import capture_logs

from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.inbox import Inbox
from kintsugi.runtime.overlay.options import OverlayOptions
from planner.overlay.topology import empty_overlay


def test_nobody_hears_of_an_older_overlay_after_a_newer_one_is_known():
    overlay = empty_overlay("job")
    links = SimpleNamespace(generation=0)
    scheduler = SimpleNamespace(close=lambda: None)
    agent = Agent(Identity(job="job", worker="a"), links, Inbox(lambda *_: None), scheduler, overlay, options=OverlayOptions())
    heard, is_asked, may_go_on = [], threading.Event(), threading.Event()

    def hear(told):
        if told.generation == 1:
            is_asked.set()
            may_go_on.wait(120.0)
        heard.append((told.generation, agent.overlay.generation))

    agent.on_overlay(hear)
    threads = [threading.Thread(target=agent.take, args=(replace(overlay, generation=number),)) for number in (1, 2)]
    try:
        threads[0].start()
        assert is_asked.wait(120.0)
        threads[1].start()
        threads[1].join(0.1)  # as long as the first one is told, this one is not known
        assert agent.overlay.generation == 1
    finally:
        may_go_on.set()
        for thread in threads:
            thread.join(120.0)
        agent.close()
    agent.take(overlay)
    assert heard == [(1, 1), (2, 2)]


def test_a_worker_that_cannot_act_on_an_overlay_ends_and_is_not_waited_for():
    overlay = empty_overlay("job")
    links, scheduler = SimpleNamespace(generation=0), SimpleNamespace(close=lambda: None)
    agent = Agent(Identity(job="job", worker="a"), links, Inbox(lambda *_: None), scheduler, overlay, options=OverlayOptions())
    heard: list[int] = []

    def fail(told):
        raise RuntimeError("can't start new thread")

    agent.on_overlay(fail)
    agent.on_overlay(lambda told: heard.append(told.generation))
    with capture_logs() as logs:
        agent.take(replace(overlay, generation=1))
    agent.close()
    assert heard == [1]
    assert agent.given_up == "an overlay could not be acted on here (RuntimeError: can't start new thread); join again"
    assert [log["event"] for log in logs] == ["an overlay could not be acted on"]
