"""The outbox: everything is put down once, sent by one process at a time, and found again when a lease has ended."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from api.metrics import Metrics
from api.moments import moment_of, text_of, utc_now
from api.schemas import NewJob
from api.service import Service
from api.storage.database import Database
from api.storage.legible import IllegibleError
from api.storage.store import Store
from api.storage.tables import DELIVERIES, WEBHOOKS
from api.webhooks import collector, courier
from api.webhooks.collector import MOST_NEWS, Collector
from api.webhooks.courier import Courier
from api.webhooks.guard import Guard
from api.webhooks.hooks import DeliveryStatus, HookKind, NewWebhook, WebhookTarget
from api.webhooks.manners import Manners
from api.webhooks.news import News
from api.webhooks.outbox import Outbox, Place, Settlement, moved
from api.webhooks.registry import Registry
from api.webhooks.sender import GONE, Attempt, Sender
from kintsugi.core import codec
from kintsugi.core.ending import Ending, Outcome
from kintsugi.core.errors import KintsugiError
from kintsugi.core.membership import Event, EventKind
from tests.api.requests import new_job
from tests.api.webhooks.receiver import receiver
from tests.api.webhooks.test_webhooks import SECRET

pytestmark = pytest.mark.both_databases

NOW, SOON, LATER, LAST = (f"9999-01-01T00:00:{second:02d}.000000Z" for second in range(4))


@pytest.fixture
def store(database_url):
    store = Store(database_url)
    store.open()
    yield store
    store.close()


@pytest.fixture
def outbox(store):
    """Of a job with one webhook and two new plans."""
    service = Service(store, Metrics())
    service.create_job(codec.decode(NewJob, new_job()))
    registry = Registry(store.database, Guard(loopback=True), retry_seconds=60)
    registry.add("llama", NewWebhook(id="site", url="http://127.0.0.1:9", secret=SECRET))
    for generation, worker in enumerate(("w00", "w02")):
        service.post_events("llama", [Event(kind=EventKind.WORKER_FAILED, id=worker, generation=generation, worker=worker)])
    outbox = Outbox(store.database)
    Collector(store, outbox, retry_seconds=60).collect()
    return outbox


def test_news_are_put_down_once_whoever_looks_and_however_often(store, outbox):
    assert outbox.behind() == []
    other = Outbox(store.database)
    for _ in range(2):
        Collector(store, other, retry_seconds=60).collect()
    assert len(outbox.lease(NOW, SOON, "a", most=9)) == 1
    page = Registry(store.database, Guard(loopback=True), retry_seconds=60).deliveries("llama", "site", None, None, 10)
    assert [delivery.id for delivery in page.deliveries] == ["plan_decided.1", "plan_decided.2"]


@pytest.mark.parametrize("at_a_time", [3, MOST_NEWS])
def test_events_told_together_that_leave_no_plan_are_one_piece_of_news(store, outbox, monkeypatch, at_a_time):
    monkeypatch.setattr(collector, "MOST_NEWS", at_a_time)
    left = ("w01", "w03", "w04", "w05")
    events = [Event(kind=EventKind.WORKER_FAILED, id=worker, generation=2, worker=worker) for worker in left]
    with pytest.raises(KintsugiError):
        Service(store, Metrics()).post_events("llama", events)
    for _ in range(2):
        Collector(store, outbox, retry_seconds=60).collect()
    page = Registry(store.database, Guard(loopback=True), retry_seconds=60).deliveries("llama", "site", None, None, 10)
    assert [delivery.id for delivery in page.deliveries] == ["plan_decided.1", "plan_decided.2", "plan_missing.6"]


def test_a_job_that_cannot_be_read_keeps_no_news_of_others(store, outbox, monkeypatch):
    service, entries = Service(store, Metrics()), store.entries
    service.create_job(codec.decode(NewJob, new_job(id="gemma")))
    hook = NewWebhook(id="site", url="http://127.0.0.1:9", secret=SECRET)
    Registry(store.database, Guard(loopback=True), retry_seconds=60).add("gemma", hook)
    for job, generation in (("llama", 2), ("gemma", 0)):
        service.post_events(job, [Event(kind=EventKind.WORKER_FAILED, id="w01", generation=generation, worker="w01")])

    def illegible(job, **asked):
        if job == "llama":
            raise IllegibleError("holds what this version does not understand")
        return entries(job, **asked)

    monkeypatch.setattr(store, "entries", illegible)
    Collector(store, outbox, retry_seconds=60).collect()
    assert [place.job for place in outbox.behind()] == ["llama"]
    assert {parcel.job for parcel in outbox.lease(NOW, SOON, "a", most=9)} == {"gemma", "llama"}


def test_webhooks_that_cannot_be_read_hide_no_others_however_many_they_are(store, outbox, monkeypatch):
    registry, service = Registry(store.database, Guard(loopback=True), retry_seconds=60), Service(store, Metrics())
    for name in ("a", "b", "c"):
        registry.add("llama", NewWebhook(id=name, url="http://127.0.0.1:9", secret=SECRET))
    service.post_events("llama", [Event(kind=EventKind.WORKER_FAILED, id="w01", generation=2, worker="w01")])
    with store.database.writing() as connection:
        connection.execute(update(WEBHOOKS).where(WEBHOOKS.c.id < "site").values(kinds="plan_decided of_a_later_version"))
    for module in ("outbox", "collector"):
        monkeypatch.setattr(f"api.webhooks.{module}.MOST_BEHIND", 2)
    collector = Collector(store, outbox, retry_seconds=60)
    for _ in range(2):
        collector.collect()
    assert [place.webhook for place in outbox.behind()] == ["a", "b"]
    assert [place.webhook for place in outbox.behind(("llama", "b"))] == ["c"]
    with store.database.writing() as connection:
        connection.execute(update(WEBHOOKS).values(kinds="plan_decided"))
    for _ in range(3):
        collector.collect()
    assert outbox.behind() == [], "it begins again behind the last"


def test_a_job_that_went_between_two_looks_has_no_news(store, outbox, monkeypatch):
    gone = Place(job="of a past that was set back", webhook="site", kinds="plan_decided", generation=0, number=0)
    monkeypatch.setattr(outbox, "behind", lambda _: [gone])
    Collector(store, outbox, retry_seconds=60).collect()
    assert {parcel.job for parcel in outbox.lease(NOW, SOON, "a", most=9)} == {"llama"}


def test_two_that_saw_the_same_place_put_its_news_down_once(store, outbox):
    service = Service(store, Metrics())
    service.post_events("llama", [Event(kind=EventKind.WORKER_FAILED, id="w01", generation=2, worker="w01")])
    (place,) = outbox.behind()
    news = [News(id="plan_decided.3", body="{}")]
    for _ in range(2):
        outbox.put(place, moved(place, generation=3, number=3), news, now=NOW, retry_until=LAST)
    assert outbox.behind() == []


def test_a_webhook_that_is_changed_as_its_news_are_looked_for_is_told_what_it_asks_for_now(store, outbox, monkeypatch):
    registry, look = Registry(store.database, Guard(loopback=True), retry_seconds=60), outbox.behind
    asked = WebhookTarget(url="http://127.0.0.1:9", secret=SECRET, kinds=(HookKind.JOB_ENDED,))
    service = Service(store, Metrics())

    def changed_meanwhile(after):
        places = look(after)
        monkeypatch.setattr(outbox, "behind", look)
        registry.change("llama", "site", asked)
        service.post_ending("llama", Ending(outcome=Outcome.COMPLETED))
        return places

    service.post_events("llama", [Event(kind=EventKind.WORKER_JOINED, id="back", generation=2, worker="w00")])
    monkeypatch.setattr(outbox, "behind", changed_meanwhile)
    collecting = Collector(store, outbox, retry_seconds=60)
    for _ in range(2):
        collecting.collect()
    assert events_in(store) == ["job_ended.4", "plan_decided.1", "plan_decided.2"]


def test_nobody_sends_what_another_one_holds_until_the_lease_ends(outbox, database_url):
    database = Database(database_url)
    try:
        other = Outbox(database)
        (mine,) = outbox.lease(NOW, SOON, "mine", most=1)
        (next_one,) = other.lease(NOW, SOON, "other", most=9)
        assert {mine.event, next_one.event} == {"plan_decided.1", "plan_decided.2"}
        assert outbox.lease(NOW, SOON, "third", most=9) == []
        assert not outbox.is_due(NOW, ())
        again = other.lease(LATER, LAST, "again", most=9)
        assert [parcel.message_id for parcel in again] == [mine.message_id]
        delivered = Manners().settlement(mine, Attempt(status=200), utc_now())
        assert delivered.status is DeliveryStatus.DELIVERED
        assert not outbox.settle(mine, delivered)
        assert other.settle(again[0], delivered)
    finally:
        database.close()


@pytest.mark.anyio
async def test_what_a_process_may_send_no_more_as_it_goes_on_is_not_sent(store, outbox):
    courier = Courier(Collector(store, outbox, retry_seconds=60), outbox, Guard(loopback=True), Metrics(), Manners())
    now = utc_now()
    (parcel,) = outbox.lease(text_of(now), text_of(now - timedelta(seconds=1)), "of one that was stopped", most=1)
    with receiver() as site:
        async with Sender(Guard(loopback=True), timeout_seconds=5, most_at_once=1) as sender:
            await courier._deliver(sender, replace(parcel, url=site.url))
        assert site.received == []
    assert parcel.event in {outbox.lease(NOW, SOON, name, most=1)[0].event for name in ("a", "b")}


def test_webhooks_that_are_busy_are_left_out(outbox):
    assert outbox.is_due(NOW, ())
    assert not outbox.is_due(NOW, [("llama", "site")])
    assert outbox.lease(NOW, SOON, "a", most=9, skipped=[("llama", "site")]) == []
    assert outbox.is_due(NOW, [("llama", "other")])


def test_a_job_has_no_more_on_its_way_than_its_share(store, outbox):
    registry = Registry(store.database, Guard(loopback=True), retry_seconds=60)
    for number in range(3):
        registry.add("llama", NewWebhook(id=f"slow{number}", url="http://127.0.0.1:9", secret=SECRET))
    Service(store, Metrics()).create_job(codec.decode(NewJob, new_job(id="other")))
    registry.add("other", NewWebhook(id="site", url="http://127.0.0.1:9", secret=SECRET))
    for job, generation in (("llama", 2), ("other", 0)):
        failed = Event(kind=EventKind.WORKER_FAILED, id="w01", generation=generation, worker="w01")
        Service(store, Metrics()).post_events(job, [failed])
    Collector(store, outbox, retry_seconds=60).collect()
    first = outbox.lease(NOW, SOON, "a", most=16, most_of_a_job=2)
    assert sorted(parcel.job for parcel in first) == ["llama", "llama", "other"]
    busy = {(parcel.job, parcel.webhook) for parcel in first if parcel.job == "llama"}
    assert not outbox.is_due(NOW, busy, most_of_a_job=2)
    assert outbox.is_due(NOW, busy, most_of_a_job=3)
    assert len(outbox.lease(NOW, SOON, "b", most=16, most_of_a_job=3, skipped=busy)) == 1


def test_a_lease_does_not_last_longer_where_the_clock_was_set_back(outbox):
    a_little, much = "9998-12-31T23:55:00.000000Z", "9998-12-31T22:00:00.000000Z"
    (held,) = outbox.lease(NOW, SOON, "of one that was killed", most=9)
    (other,) = outbox.lease(a_little, SOON, "a", most=9)
    assert other.event != held.event
    assert [parcel.event for parcel in outbox.lease(much, much, "b", most=9)] == [held.event]


def test_a_pause_does_not_last_longer_where_the_clock_was_set_back(outbox):
    (parcel,) = outbox.lease(NOW, SOON, "a", most=9)
    paused = Settlement(status=DeliveryStatus.PENDING, attempts=1, due_at=LATER, last_status=503, last_error="away")
    assert outbox.settle(parcel, paused)
    (other,) = outbox.lease("9998-12-31T23:55:00.000000Z", SOON, "b", most=9)
    assert other.event != parcel.event
    assert outbox.settle(other, replace(paused, status=DeliveryStatus.DELIVERED))
    assert not outbox.is_due("9998-12-31T23:55:00.000000Z", ())
    assert outbox.is_due("9998-12-31T22:00:00.000000Z", ())


def ended(outbox: Outbox) -> list[str]:
    """Both deliveries, once they were made."""
    parcels = [outbox.lease(NOW, SOON, name, most=1)[0] for name in ("a", "b")]
    made = Settlement(status=DeliveryStatus.DELIVERED, attempts=1, due_at=NOW, last_status=204, last_error=None)
    assert all(outbox.settle(parcel, made) for parcel in parcels)
    return [parcel.event for parcel in parcels]


def events_in(store: Store) -> list[str]:
    with store.database.reading() as connection:
        return list(connection.execute(select(DELIVERIES.c.event).order_by(DELIVERIES.c.event)).scalars())


def test_what_ended_long_ago_is_forgotten_a_part_at_a_time_and_nothing_else(store, outbox):
    (parcel,) = outbox.lease(NOW, SOON, "a", most=1)
    assert outbox.settle(parcel, Settlement(status=DeliveryStatus.DEAD, attempts=1, due_at=NOW, last_status=410, last_error="gone"))
    assert outbox.forget(NOW, most=9) == 0
    assert outbox.forget(LAST, most=9) == 1
    (left,) = events_in(store)
    assert left != parcel.event
    (pending,) = outbox.lease(LATER, LAST, "b", most=9)
    assert pending.event == left


def test_of_many_that_ended_so_many_are_forgotten_at_a_time_until_none_is_left(store, outbox, monkeypatch):
    monkeypatch.setattr(courier, "SWEPT_AT_ONCE", 1)
    ended(outbox)
    carrying = Courier(Collector(store, outbox, retry_seconds=60), outbox, Guard(loopback=True), Metrics(), Manners(keep_seconds=0))
    monkeypatch.setattr(outbox, "now", lambda: moment_of(LAST))
    for left in (1, 0, 0):
        assert carrying._found(frozenset()) == []
        assert len(events_in(store)) == left


def test_processes_whose_clocks_differ_take_no_delivery_from_each_other(store, outbox, monkeypatch):
    found = []
    for hours in (1, 0, 1):
        monkeypatch.setattr(courier, "utc_now", lambda ahead=timedelta(hours=hours): utc_now() + ahead)
        carrying = Courier(Collector(store, outbox, retry_seconds=60), outbox, Guard(loopback=True), Metrics(), Manners())
        found += [parcel.event for parcel in carrying._found(frozenset())]
    assert sorted(found) == ["plan_decided.1", "plan_decided.2"]


@pytest.mark.parametrize("again", ["changed", "sent again"])
def test_an_attempt_that_was_under_way_does_not_end_what_is_to_be_sent_anew(store, outbox, again):
    registry = Registry(store.database, Guard(loopback=True), retry_seconds=60)
    (parcel,) = outbox.lease(NOW, SOON, "under way", most=1)
    if again == "changed":
        registry.change("llama", "site", WebhookTarget(url="http://127.0.0.1:10", secret=SECRET))
    else:
        registry.send_again("llama", "site", parcel.event)
    refused = Manners().settlement(parcel, Attempt(status=GONE, error="gone"), utc_now())
    assert refused.status is DeliveryStatus.DEAD
    assert not outbox.settle(parcel, refused)
    pending = registry.deliveries("llama", "site", DeliveryStatus.PENDING, None, 9).deliveries
    assert parcel.event in {delivery.id for delivery in pending}
    assert parcel.event in {outbox.lease(NOW, SOON, name, most=1)[0].event for name in ("a", "b")}
