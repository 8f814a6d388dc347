"""The decisions that were made ahead for a job, as they are told: JSON put together from what lies in the database."""

from api.http.cursors import Cursors
from api.records import Records
from api.storage.wording import Detail, Wording
from kintsugi.core import codec


def contingency_page(records: Records, job: str, cursor: str | None, limit: int) -> bytes:
    """Up to `limit` decisions made ahead behind `cursor`, a `ContingencyPage` in JSON.

    Raises:
        NotFoundError: there is no such job.
        InvalidInputError: the cursor is of another list.
    """
    cursors = Cursors("contingencies", job)
    generation = records.state(job).history.generation + 1
    found = records.store.shelf.page(job, generation, after=cursors.text(cursor), limit=limit + 1)
    documents = ",".join(_document(fingerprint, wording) for fingerprint, wording in found[:limit])
    following = cursors.after(found[limit - 1][0]) if len(found) > limit else None
    return f'{{"contingencies":[{documents}],"generation":{generation},"next_cursor":{codec.dumps(following)}}}'.encode()


def _document(fingerprint: str, wording: Wording) -> str:
    return f'{{"decision":{wording.text(Detail.BRIEF)},"fingerprint":"{fingerprint}"}}'
