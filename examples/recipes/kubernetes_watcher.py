"""Watches the pods of a training job and tells Kintsugi which workers are lost, leave, and come back.

    python kubernetes_watcher.py --job llama --namespace training --service http://kintsugi.kintsugi:8000

A pod belongs to the job by its label `kintsugi/job`, and is the worker that its label `kintsugi/worker` names. In a cluster the
API server's address and the token come from where Kubernetes puts them; the account needs `list` and `watch` on `pods`.
The events have ids that follow from the pod's uid: told again after a restart of the watcher, they change nothing, and which
process life of its worker each pod is, is read from them then. What the service refuses for good is printed and told no more. A
worker of which nothing was told yet, whose pod is replaced while nobody watches, is not missed.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from kintsugi.client import Client
from kintsugi.core.errors import (
    ConflictError,
    InfeasibleError,
    InvalidInputError,
    KintsugiError,
    NotFoundError,
    StaleGenerationError,
)
from kintsugi.core.membership import Event, EventKind

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WORKER_LABEL = "kintsugi/worker"
GONE = 410
WATCH_SECONDS = 300
PAUSE_SECONDS = 1.0
ATTEMPTS = 10
FINAL = (InvalidInputError, NotFoundError, ConflictError, InfeasibleError)
"""What the service says of an event for good; after an InfeasibleError the event is taken all the same."""

TOLD = ("failed", "draining", "joined")
"""What ends the ids of events, behind the uids of their pods."""

Pod = Mapping[str, Any]


def connected(api: str | None) -> httpx2.Client:
    """A client of the API server: the one named, such as that of `kubectl proxy`, else the cluster's own."""
    timeout = httpx2.Timeout(30.0, read=WATCH_SECONDS + 30.0)
    if api is not None:
        return httpx2.Client(base_url=api, timeout=timeout)
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise InvalidInputError(
            "is needed outside a cluster: run `kubectl proxy` and name http://127.0.0.1:8001", field="kubernetes", value=api
        )
    address = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    return httpx2.Client(base_url=address, headers=headers, verify=str(ACCOUNT / "ca.crt"), timeout=timeout)


def changes(kubernetes: httpx2.Client, namespace: str, selector: str, there: dict[str, Pod]) -> Iterator[list[tuple[str, Pod]]]:
    """All pods as listed, then each as it changes, with ADDED, MODIFIED or DELETED; ends when the list is to be read anew.

    `there` holds pods by their uids as they were seen last: whoever is not listed any more was deleted while nobody watched.
    """
    path, chosen = f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": selector}
    answer = kubernetes.get(path, params=chosen).raise_for_status().json()
    oldest_first = sorted(answer["items"], key=lambda pod: pod["metadata"]["creationTimestamp"])
    listed = {pod["metadata"]["uid"]: pod for pod in oldest_first}
    gone = [there.pop(uid) for uid in [*there] if uid not in listed]
    there |= listed
    yield [*(("DELETED", pod) for pod in gone), *(("ADDED", pod) for pod in listed.values())]
    version = answer["metadata"]["resourceVersion"]
    while True:
        query = {**chosen, "watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        with kubernetes.stream("GET", path, params={**query, "allowWatchBookmarks": "true"}) as response:
            if response.status_code == GONE:
                return
            for line in response.raise_for_status().iter_lines():
                change = json.loads(line)
                if change["type"] == "ERROR":
                    return
                kind, pod = change["type"], change["object"]
                version = pod["metadata"]["resourceVersion"]
                if kind == "BOOKMARK":
                    continue
                there[pod["metadata"]["uid"]] = pod
                if kind == "DELETED":
                    del there[pod["metadata"]["uid"]]
                yield [(kind, pod)]


Lives = dict[str, dict[str, int]]
"""Of each worker: which process life of it each pod is, by the pod's uid, from 0."""


def told_lives(client: Client, job: str) -> Lives:
    """The lives that were told of already, by this watcher before it was started again.

    Raises:
        KintsugiError: the service does not answer, or has no such job.
    """
    lives: Lives = {}
    cursor: str | None = None
    while True:
        page = client.events(job, cursor=cursor, limit=1_000)
        for event in (record.event for record in page.events):
            uid, _, what = event.id.rpartition(".")
            if event.worker is not None and what in TOLD:
                lives.setdefault(event.worker, {})[uid] = event.incarnation
        if (cursor := page.next_cursor) is None:
            return lives


def lives_of(pod: Pod, lives: Lives) -> Mapping[str, int]:
    """The lives of a pod's worker so far, this one's noted in `lives`; none where no label names the worker."""
    meta = pod["metadata"]
    worker = meta["labels"].get(WORKER_LABEL, "")
    known = lives.setdefault(worker, {})
    if meta["uid"] not in known:
        known[meta["uid"]] = max(known.values(), default=-1) + 1
        if not worker:
            print(f"pod {meta['name']}: left out, for no label {WORKER_LABEL} names its worker", flush=True)
    return known if worker else {}


def event_of(change: str, pod: Pod, lives: Mapping[str, int]) -> Event | None:
    """What a change of a pod says of its worker; None where it says nothing.

    Args:
        change: ADDED, MODIFIED or DELETED.
        pod: after the change.
        lives: which process life of the worker each uid is, from 0.
    """
    meta, status = pod["metadata"], pod.get("status", {})
    worker, host = meta["labels"][WORKER_LABEL], pod.get("spec", {}).get("nodeName")
    about: dict[str, Any] = {"generation": 0, "worker": worker, "incarnation": lives[meta["uid"]]}
    if change == "DELETED" or status.get("phase") in ("Failed", "Succeeded"):
        reason = status.get("reason") or status.get("phase") or "deleted"
        return Event(kind=EventKind.WORKER_FAILED, id=f"{meta['uid']}.failed", detail=f"pod {meta['name']}: {reason}", **about)
    if "deletionTimestamp" in meta:
        seconds = float(meta.get("deletionGracePeriodSeconds", 30))
        return Event(kind=EventKind.WORKER_DRAINING, id=f"{meta['uid']}.draining", deadline_seconds=seconds, **about)
    if lives[meta["uid"]] and any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ())):
        return Event(kind=EventKind.WORKER_JOINED, id=f"{meta['uid']}.joined", host=host, **about)
    return None


def tell(client: Client, job: str, event: Event) -> None:
    """Report an event under the generation that is the latest one.

    Raises:
        KintsugiError: the service refuses it, or does not answer.
    """
    generation = client.plan(job, brief=True).generation
    for _ in range(ATTEMPTS):
        try:
            answer = client.post_event(job, replace(event, generation=generation), brief=True)
        except StaleGenerationError as error:
            generation = error.current_generation
        else:
            print(f"{event.kind.value} {event.worker}: generation {answer.generation}", flush=True)
            return
    raise KintsugiError("the plan kept changing; the event was not taken")


class Untold:
    """Events that the service has yet to take, or to refuse."""

    def __init__(self, client: Client, job: str) -> None:
        self._client = client
        self._job = job
        self._events: dict[str, Event] = {}
        self._known: set[str] = set()

    def add(self, event: Event) -> None:
        """One more to tell, unless it came before."""
        if event.id not in self._known:
            self._known.add(event.id)
            self._events[event.id] = event

    def tell(self) -> None:
        """Tell them in order; one that does not get through now holds up those of its own worker alone.

        Raises:
            KintsugiError: of the first one that is left.
        """
        held: dict[str | None, KintsugiError] = {}
        for event in [*self._events.values()]:
            if event.worker in held:
                continue
            try:
                tell(self._client, self._job, event)
            except KintsugiError as error:
                if error.field == "job" or not isinstance(error, FINAL):  # of the job itself: its events are no worse for it
                    held[event.worker] = error
                    continue
                how = "taken, without a plan" if isinstance(error, InfeasibleError) else "refused"
                print(f"{event.kind.value} {event.worker}: {how}: {error}", flush=True)
            del self._events[event.id]
        if held:
            raise next(iter(held.values()))


def watch(kubernetes: httpx2.Client, client: Client, job: str, namespace: str) -> None:
    """Tell of all changes until the job ends."""
    lives: Lives | None = None
    there: dict[str, Pod] = {}
    untold = Untold(client, job)
    while True:
        try:
            if client.job(job).ended is not None:
                print(f"job {job} has ended", flush=True)
                return
            lives = told_lives(client, job) if lives is None else lives
            for batch in changes(kubernetes, namespace, f"kintsugi/job={job}", there):
                for change, pod in batch:
                    known = lives_of(pod, lives)
                    event = event_of(change, pod, known) if known else None
                    if event is not None:
                        untold.add(event)
                untold.tell()
        except (httpx2.HTTPError, KintsugiError) as error:
            print(f"goes on after: {error}", flush=True)
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    """Watch until the job ends, or until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", required=True)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--service", required=True, help="URL of Kintsugi; its token comes from KINTSUGI_TOKEN")
    parser.add_argument("--kubernetes", help="URL of the API server; the cluster's own by default")
    options = parser.parse_args()
    try:
        with connected(options.kubernetes) as kubernetes, Client(options.service) as client:
            watch(kubernetes, client, options.job, options.namespace)
    except KintsugiError as error:
        sys.exit(f"kubernetes_watcher: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
