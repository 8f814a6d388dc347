"""The database that the restart benchmark fills is one that a service could have filled."""

from api.records import Records
from api.replay import Replay
from api.storage.states import EVERY
from api.storage.store import Store
from benchmarks.restart import fill


def test_every_job_has_a_log_of_its_own_that_replays(tmp_path):
    url = f"sqlite:///{tmp_path}/restart.sqlite3"
    fill(url, 3, EVERY + 20)
    store = Store(url, read_only=True)
    try:
        assert store.job_ids(after="", limit=9) == ["job-0000", "job-0001", "job-0002"]
        histories = [Records(store).state(job).history for job in store.job_ids(after="", limit=9)]
        assert histories[0].number == EVERY + 20
        assert histories[0] == histories[1] == histories[2]
        assert store.latest_history("job-0002").number >= EVERY
        assert [entry for entry in Replay(store, "job-0002", generation=2) if entry.differences] == []
    finally:
        store.close()
