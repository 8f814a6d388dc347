import os
from pathlib import Path
from threading import Thread

from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.job import JobSettings
from kintsugi.runtime.ring.lease import FolderLease, ServiceLease
from kintsugi.runtime.ring.messages import Agreement, Contribution
from tests.builders import uniform_profile
from tests.runtime.ring.rings import Ring


def test_the_first_agreement_of_a_generation_is_kept(tmp_path: Path) -> None:
    lease = FolderLease(tmp_path / "lease")
    assert lease.held(1) is None
    first = Agreement(1, ("a", "b"), (Contribution("a", 3, "note"),), "plan")
    assert lease.decide(first) == first
    assert lease.decide(Agreement(1, ("c",))) == first
    assert FolderLease(tmp_path / "lease").held(1) == first
    assert lease.held(2) is None
    assert lease.held(0) == first
    assert [path.name for path in (tmp_path / "lease").iterdir()] == ["generation-1.json"]


def test_files_of_others_in_the_folder_are_no_agreements(tmp_path: Path) -> None:
    """Of editors, of copies, of remote disks; a name may have any bytes and any length."""
    lease = FolderLease(tmp_path)
    first = lease.decide(Agreement(3, ("a",)))
    others = ["generation-4 (copy).json", "generation-.json", "generation-04.json", "generation--5.json", "generation-9.json~"]
    others += [
        "generation-\uff15.json",
        "generation-6\n.json",
        f"generation-{'7' * 200}.json",
        ".nfs000001",
        "generation-8.json.new",
    ]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / os.fsdecode(b"generation-\xff9.json")).touch()
    assert lease.held(0) == first
    assert lease.held(4) is None


def test_the_service_holds_what_a_ring_agreed_on_and_decides_where_no_majority_is_left(tmp_path: Path) -> None:
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3", plans_ahead=False))
    with TestClient(app) as served, Client("http://testserver", transport=served._transport) as client:
        client.create_job(job="job", profile=uniform_profile(4), workers=2, settings=JobSettings(num_microbatches=8))
        with Ring(2, lease=ServiceLease(client, "job", "a")) as ring:
            ring.connect()
            ring.kill("a")
            ring.wait_for("b")
            held = ring.nodes["b"].agreement
        assert codec.loads(Agreement, client.lease("job", 1).agreement) == held
        late = ServiceLease(client, "job", "a")
        assert late.decide(Agreement(1, ("a",))) == held
        assert (late.held(0), late.held(2)) == (held, None)


def test_of_many_who_ask_at_once_one_wins(tmp_path: Path) -> None:
    answers: list[Agreement] = []
    threads = [
        Thread(target=lambda name=name: answers.append(FolderLease(tmp_path).decide(Agreement(1, (name,))))) for name in "abcdefgh"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert len(answers) == 8
    assert len(set(answers)) == 1


def test_two_halves_of_a_cut_ring_get_one_answer() -> None:
    with Ring(4) as ring:
        ring.connect()
        for name in ring.names:
            ring.freeze(name)  # nobody must mend the ring before it is cut off from both of the others
        for one in "ab":
            for other in "cd":
                ring.cut(one, other)
        for name in ring.names:
            ring.thaw(name)
        ring.wait(lambda: 1 in ring.lease.agreements)
        decided = ring.lease.agreements[1]
        ring.wait(lambda: all(decided in ring.heard[name].agreements for name in decided.members))
        ring.wait(lambda: all(ring.nodes[name].is_left_out for name in ring.names if name not in decided.members))
        told = {one for heard in ring.heard.values() for one in (*heard.agreements, *heard.left_out) if one.generation == 1}
        assert told == {decided}


def test_who_is_cut_off_from_a_majority_finds_its_decision_in_the_lease() -> None:
    with Ring(3) as ring:
        ring.connect()
        ring.freeze("a")  # it must not mend the ring with one of them before it is cut off from the other
        for other in "bc":
            ring.cut("a", other)
        ring.wait_for("bc")
        ring.thaw("a")
        ring.wait(lambda: ring.nodes["a"].is_left_out)
        assert ring.lease.agreements[1] == ring.nodes["b"].agreement


def test_nothing_is_decided_while_the_lease_is_away() -> None:
    with Ring(2) as ring:
        ring.lease.is_away = True
        ring.kill("a")
        ring.wait(lambda: ring.heard["b"].stopped == [0])
        assert not ring.nodes["b"].commit(0, 1)
        assert ring.heard["b"].agreements == []
        ring.lease.is_away = False
        ring.wait_for("b")
