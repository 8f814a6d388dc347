"""`kintsugi replay`: make the decisions of jobs again from what the service stored, play overlays back, and compare."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from api.dashboard.formats import count
from api.differences import Difference
from api.overlay.assembly import planner_of
from api.overlay.book import Book
from api.overlay.replay import OverlayReplay
from api.replay import Replay, Replayed, lacking
from api.settings import settings_of
from api.storage.store import Store
from kintsugi.cli.deciding import native_lines_apart
from kintsugi.cli.output import Format, print_json, to_the_second
from kintsugi.cli.progress import tracked
from kintsugi.cli.terminal import styled, terminal
from kintsugi.core.codec import encode
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.version import __version__
from planner.overlay.synchronization import SynchronizationPlanner

PAGE = 1_000
MOST_SHOWN = 20
"""Differences of one entry, or of all logs, that the table shows."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    help_text = "Make the decisions of jobs again from a service's database, play overlays back, and compare."
    app.command("replay", help=help_text)(replay)


def replay(
    database_url: Annotated[
        str | None,
        typer.Option(help="SQLAlchemy URL of the service's database, which is only read; KINTSUGI_DATABASE_URL by default."),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Id of the one job to replay; all by default.")] = None,
    generation: Annotated[
        int | None, typer.Option(min=0, help="The one decision of the job to make again; all by default.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TABLE,
) -> int:
    """Replay the logs of jobs and overlays; exit 1 where anything comes out differently."""
    if generation is not None and job is None:
        raise InvalidInputError("says which decision of a job; name it by --job", field="generation", value=generation)
    settings = settings_of()
    store = Store(database_url or settings.database_url, read_only=True)
    try:
        store.open()
        overlays = _overlays(store, planner_of(settings), job) if generation is None else []
        jobs = [Replay(store, name, generation=generation) for name in _jobs(store, job, may_lack=bool(overlays))]
        with native_lines_apart():
            found = Found(
                jobs={one.job: list(_tracked(one)) for one in jobs},
                overlays={one.job: list(_tracked(one)) for one in overlays},
                lacks=lacking(store) if job is None else (),
            )
    finally:
        store.close()
    if form is Format.JSON:
        print_json(_document(found))
    else:
        _print(found)
    return int(not found.is_same)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What every line came out as, by the job's name, and what is missing among all."""

    jobs: Mapping[str, Sequence[Replayed]]
    overlays: Mapping[str, Sequence[Replayed]]
    lacks: Sequence[Difference]

    @property
    def entries(self) -> Iterator[Replayed]:
        """All of them."""
        return chain.from_iterable((*self.jobs.values(), *self.overlays.values()))

    @property
    def is_same(self) -> bool:
        """Whether nothing came out differently, and nothing is missing."""
        return not self.lacks and not any(entry.differences for entry in self.entries)


def _jobs(store: Store, only: str | None, *, may_lack: bool) -> Iterator[str]:
    """The jobs to replay; one that is named and is not there only where it need not be."""
    if only is not None:
        yield from () if may_lack and store.job(only) is None else (only,)
        return
    after = ""
    while page := store.job_ids(after=after, limit=PAGE):
        yield from page
        after = page[-1]


def _overlays(store: Store, planner: SynchronizationPlanner, only: str | None) -> list[OverlayReplay]:
    names = Book(store.database).jobs()
    return [OverlayReplay(store.database, name, planner) for name in names if only in (None, name)]


def _tracked(one: Replay | OverlayReplay) -> Iterable[Replayed]:
    """A job's entries, with their progress."""
    return tracked(one, one.num_entries + 1, escape(one.job))


def _document(found: Found) -> dict[str, Any]:
    jobs = [
        _json_of(job, entries) | {"num_decisions": sum(entry.policy is not None for entry in entries)}
        for job, entries in found.jobs.items()
    ]
    overlays = [_json_of(job, entries) for job, entries in found.overlays.items()]
    return {
        "planner_version": __version__,
        "is_same": found.is_same,
        "differences": encode(found.lacks),
        "jobs": jobs,
        "overlays": overlays,
    }


def _json_of(job: str, entries: Sequence[Replayed]) -> dict[str, Any]:
    return {
        "job": job,
        "is_same": not any(entry.differences for entry in entries),
        "entries": [{**encode(entry), "is_same": not entry.differences} for entry in entries],
    }


def _print(found: Found) -> None:
    console = terminal()
    for name, outcomes in (("job", found.jobs), ("overlay of job", found.overlays)):
        for job, entries in outcomes.items():
            console.print(_table(f"{name} {job}", entries))
            for entry in entries:
                _print_differences(console, f"entry {entry.number}", entry.differences)
    _print_differences(console, "all logs", found.lacks)
    decisions = [entry for entry in found.entries if entry.policy is not None]
    others = sorted({str(entry.planner_version) for entry in decisions} - {__version__})
    made = f"; some were made by {', '.join(others)}" if others else ""
    num_different = sum(bool(entry.differences) for entry in found.entries)
    verdicts = [f"{num_different} {'entry' if num_different == 1 else 'entries'} came out differently"] if num_different else []
    verdicts += ["others are missing"] if found.lacks else []
    verdict = styled("red", " and ".join(verdicts)) if verdicts else styled("green", "all the same")
    played = f" and {count(len(found.overlays), 'overlay')} played back" if found.overlays else ""
    again = f"{count(len(decisions), 'decision')} made again{played} by planner {__version__}{made}: "
    console.print(Text(again).append_text(verdict))


def _table(title: str, entries: Sequence[Replayed]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("entry", "time", "what, and policy", "generation", "planner", "replayed"):
        table.add_column(name, no_wrap=not name.startswith("what"), overflow="fold")  # rather than cut off, on narrow screens
    for entry in entries:
        generation, planner = (str(entry.generation), entry.planner_version or "") if entry.decided else ("", "")
        what = "\n".join(filter(None, (entry.what, entry.policy if entry.decided else None)))
        at = to_the_second(entry.at).replace(" ", "\n")  # one below the other: with them the table has room in 80 columns
        verdict = styled("red", "different") if entry.differences else "same"
        table.add_row(str(entry.number), at, what, generation, planner, verdict)
    return table


def _print_differences(console: Console, where: str, found: Sequence[Difference]) -> None:
    for difference in found[:MOST_SHOWN]:
        console.print(styled("red", f"{where}: {_described(difference)}"))
    if len(found) > MOST_SHOWN:
        console.print(f"{where}: and {len(found) - MOST_SHOWN} more fields")


def _described(difference: Difference) -> str:
    return f"{difference.field} is stored as {difference.stored!r}, replayed as {difference.replayed!r}"
