"""`kintsugi token`: issue, list and revoke the service's tokens, in its database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.table import Table

from api.access.tokens import LONGEST_LIFE_SECONDS, IssuedToken, NewToken, Scope, Token
from api.access.vault import Vault
from api.moments import text_of, utc_now
from api.settings import settings_of
from api.storage.database import Database
from api.storage.store import Store
from api.storage.upgrade import require_current, upgrade
from kintsugi.cli.output import Format, print_json, to_the_second
from kintsugi.cli.terminal import terminal
from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError

SECONDS_PER_DAY = 86_400.0
MOST_DAYS = int(LONGEST_LIFE_SECONDS / SECONDS_PER_DAY)
PAGE = 1_000
ID_WIDTH = 16

DatabaseUrl = Annotated[str | None, typer.Option(help="SQLAlchemy URL of the service's database; by default the service's own.")]
FormatOption = Annotated[Format, typer.Option("--format", help="A table, or one JSON document.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    commands = typer.Typer(no_args_is_help=True, help="Issue, list and revoke the service's tokens, in its database.")
    for command in (create, list_, revoke):
        commands.command(command.__name__.rstrip("_"))(command)
    app.add_typer(commands, name="token")


def create(
    *,
    name: Annotated[str, typer.Option(help="Who or what it is for; the audit log shows it.")],
    scope: Annotated[Scope, typer.Option(help="What it allows; each scope allows what those before it do.")] = Scope.READ,
    job: Annotated[str | None, typer.Option(help="The only job that it is for; all by default.")] = None,
    expires_in_days: Annotated[float | None, typer.Option(help="How long it is good for; until revoked by default.")] = None,
    database_url: DatabaseUrl = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Issue a token; its secret, the only line on standard output, is shown this once."""
    new = NewToken(name=name, scope=scope, job=job, expires_in_seconds=_seconds(expires_in_days))
    url = _url(database_url)
    with _vault(url) as vault:
        issued = vault.issue(new)
    if job is not None and not _has_job(url, job):
        typer.echo(f"note: there is no job {job} yet; the token is for no other one", err=True)
    if output is Format.JSON:
        print_json({"token": issued.token, "secret": issued.secret})
        return
    typer.echo(issued.secret)
    typer.echo(_advice(issued), err=True)


def list_(database_url: DatabaseUrl = None, output: FormatOption = Format.TABLE) -> None:
    """List all tokens, without their secrets."""
    with _existing_vault(database_url) as vault:
        tokens = tuple(_all(vault))
    if output is Format.JSON:
        print_json({"tokens": tokens})
        return
    shown, now = Table(), text_of(utc_now())
    shown.add_column("id", no_wrap=True, min_width=ID_WIDTH)  # whole on narrow screens, too: `revoke` asks for it
    for name in ("name", "scope", "job", "issued", "standing"):
        shown.add_column(name, overflow="fold")
    for token in tokens:
        issued, standing = to_the_second(token.created_at), _standing(token, now)
        shown.add_row(token.id, token.name, token.scope.value, token.job or "all", issued, standing)
    terminal().print(shown)


def revoke(
    token: Annotated[str, typer.Argument(help="Id of the token, as the list shows it.")], database_url: DatabaseUrl = None
) -> None:
    """Revoke a token; a running service refuses it within five seconds."""
    with _existing_vault(database_url) as vault:
        revoked = vault.revoke(token)
    typer.echo(f"{revoked.id} ({revoked.name}) is revoked since {revoked.revoked_at}", err=True)


def _seconds(expires_in_days: float | None) -> float | None:
    if expires_in_days is None:
        return None
    checks.positive("expires_in_days", expires_in_days)
    if expires_in_days > MOST_DAYS:
        message = f"must be at most {MOST_DAYS:,}; leave it out for a token without an end"
        raise InvalidInputError(message, field="expires_in_days", value=expires_in_days)
    return expires_in_days * SECONDS_PER_DAY


def _url(given: str | None) -> str:
    return settings_of(database_url=given).database_url


def _has_job(url: str, job: str) -> bool:
    store = Store(url, read_only=True)
    try:
        return store.job(job) is not None
    finally:
        store.close()


@contextmanager
def _existing_vault(database_url: str | None) -> Iterator[Vault]:
    """The tokens of a database that a service or `token create` made; none is made here."""
    url = _url(database_url)
    database = Database(url, read_only=True)
    try:
        require_current(database)
    finally:
        database.close()
    with _vault(url) as vault:
        yield vault


@contextmanager
def _vault(url: str) -> Iterator[Vault]:
    database = Database(url)
    try:
        upgrade(database)
        yield Vault(database)
    finally:
        database.close()


def _all(vault: Vault) -> Iterator[Token]:
    cursor: str | None = None
    while True:
        page = vault.page(cursor, PAGE)
        yield from page.tokens
        cursor = page.next_cursor
        if cursor is None:
            return


def _standing(token: Token, now: str) -> str:
    if token.revoked_at is not None:
        return f"revoked {to_the_second(token.revoked_at)}"
    if token.expires_at is None:
        return "usable"
    return f"{'until' if token.is_usable(now) else 'expired'} {to_the_second(token.expires_at)}"


def _advice(issued: IssuedToken) -> str:
    return f"token {issued.token.id}: keep the line above, it is shown this once; clients take it from KINTSUGI_TOKEN"
