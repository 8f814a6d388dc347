"""`kintsugi serve`: the service in one process."""

import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import structlog
import typer
import uvicorn
from fastapi import FastAPI
from sqlalchemy import make_url

from api import garbage, lines, logs
from api.access.assembly import adopt_workers, tokens_are_needed
from api.access.certificates import check_certificate
from api.access.vault import Vault
from api.app import create_app
from api.http.connections import Descriptors, PromptProtocol
from api.overlay.assembly import overlays_of
from api.settings import Settings, settings_of
from api.spans import require_opentelemetry
from api.storage.store import Store
from kintsugi.core.descriptors import allow_most
from kintsugi.core.errors import InvalidInputError, UnavailableError, cause_of
from kintsugi.core.version import __version__
from planner.warmup import warm_up

BACKLOG = 2_048
TICKS_PER_SECOND = 10
"""Of uvicorn's server."""
PORTS_ERRORS = (errno.EADDRINUSE, errno.EACCES)
"""For which the port is to blame where nobody can listen; for all others it is the host."""
STOPPED_SHORT = 1
LEAVING_SECONDS = 10.0
"""Beyond the time that requests have to finish: what is left of a stopping service then is a search without end."""
WARMING_SECONDS = 1.0
"""How long a stopping service lets the reading of loops end; where they must be compiled first it takes much longer."""
SWITCH_SECONDS = 0.0005
"""How long a thread that plans may keep the interpreter from those that answer; Python's own 5 ms are ten times too long."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("serve")(serve)


def serve(
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one; 8000 by default.")] = None,
    database_url: Annotated[
        str | None, typer.Option(help="SQLAlchemy URL; sqlite:///kintsugi.sqlite3 in the working directory by default.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate: the service then speaks HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's private key, without a password.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error; info by default.")] = None,
    log_format: Annotated[Literal["console", "json"] | None, typer.Option(help="Lines for people, or JSON.")] = None,
) -> None:
    """Run the service until SIGTERM or SIGINT.

    Every option, and more, can also be set by environment variables such as KINTSUGI_DATABASE_URL. Once the service can
    answer, it writes `kintsugi: listening on http://HOST:PORT` to standard error. Beyond loopback it starts only where a token
    was made with `kintsugi token create`.
    """
    settings = settings_of(
        host=host,
        port=port,
        database_url=database_url,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        log_level=log_level,
        log_format=log_format,
    )
    logs.configure(settings)
    check_certificate(settings)
    if settings.otel_endpoint is not None:
        require_opentelemetry()
    allow_most()
    with _bound(settings) as listener:
        _check_database(settings)
        app = create_app(settings)
        _listen(listener, settings)
        with lines.in_a_thread() as log:
            _run(app, listener, settings, log)


def _run(app: FastAPI, listener: socket.socket, settings: Settings, log: lines.Lines) -> None:
    """Answer whoever connects until a signal comes."""
    config = uvicorn.Config(
        app,
        http=PromptProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the service itself knows which proxies are believed
        ws="none",
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        lifespan="on",
        timeout_graceful_shutdown=settings.shutdown_seconds,
    )
    warming = threading.Thread(target=_warm_up, args=(settings,), name="warm-up", daemon=True)
    server = _Server(config, app, _address(listener, is_secure=settings.tls_certificate is not None), warming, log)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.exit_before_start)
    sys.setswitchinterval(SWITCH_SECONDS)
    server.run(sockets=[listener])
    if warming.is_alive():
        warming.join(WARMING_SECONDS)
    if not server.started:
        raise UnavailableError("the service could not start; its log says why")
    if server.is_broken:
        structlog.get_logger("kintsugi.api").error("ends because a part of it ended by the error above")
        raise typer.Exit(STOPPED_SHORT)


def _warm_up(settings: Settings) -> None:
    """Read what the first plan would wait for; a service that plans nothing ahead waits with it until it is asked."""
    if settings.plans_ahead:
        warm_up()
    garbage.settle()


class _Server(uvicorn.Server):
    """Announces its address, warms up then, and lets nobody wait for plans while it stops."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, address: str, warming: threading.Thread, log: lines.Lines) -> None:
        super().__init__(config)
        self._log = log
        self._warming = warming
        self._app = app
        self._address = address
        self._descriptors = Descriptors()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where."""
        await super().startup(sockets)
        if self.started:
            database = make_url(self._app.state.desk.settings.database_url).set(query={}).render_as_string()  # without passwords
            structlog.get_logger("kintsugi.api").info("started", version=__version__, database=database, process=os.getpid())
            self._log.tell(f"kintsugi: listening on {self._address}")
            self._warming.start()

    @property
    def is_broken(self) -> bool:
        """Whether what the service does beside its requests ended by an error: it would answer, and hear and tell nobody."""
        return getattr(self.lifespan, "error_occurred", False)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second; whether to stop."""
        if counter % TICKS_PER_SECOND == 0:
            self._descriptors.look()
        return await super().on_tick(counter) or self.is_broken

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer those who wait, then stop; in the end without threads that do not come back."""
        structlog.get_logger("kintsugi.api").info("stops")
        last = threading.Timer(self._app.state.desk.settings.shutdown_seconds + LEAVING_SECONDS, self._leave)
        last.daemon = True
        last.start()
        self._app.state.desk.send_away()
        await super().shutdown(sockets)
        if self.force_exit:  # nobody waits for clients any more, but what is kept for the disk gets there
            await self.lifespan.shutdown()

    def exit_before_start(self, _number: int, _frame: FrameType | None) -> None:
        """End the process at a signal that the server does not take itself; one that was told to stop goes on with that."""
        if not self.should_exit:
            raise SystemExit(0)

    def _leave(self) -> None:
        """End the process as it stands: all that was answered is on the disk."""
        structlog.get_logger("kintsugi.api").error("ends without work that did not come to its end")
        self._log.end()
        os._exit(STOPPED_SHORT)


def _check_database(settings: Settings) -> None:
    """Open it as the service will, so that what cannot be is told before anything listens."""
    store = Store(settings.database_url)
    try:
        store.open()
        overlays_of(settings, store.database).restore(settings)
        vault = Vault(store.database)
        adopt_workers(settings, vault)
        tokens_are_needed(settings, vault)
    finally:
        store.close()


def _bound(settings: Settings) -> socket.socket:
    """A socket that has its address, and names its protocol: only then does asyncio send answers without waiting (TCP_NODELAY)."""
    with ExitStack() as failed, _errors_name_address(settings):
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        bound = failed.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
        failed.pop_all()
    return bound


def _listen(bound: socket.socket, settings: Settings) -> None:
    """Let clients connect: none does to a service that does not start."""
    with _errors_name_address(settings):
        bound.listen(BACKLOG)


@contextmanager
def _errors_name_address(settings: Settings) -> Iterator[None]:
    """Has an error say where the service was to listen."""
    try:
        yield
    except (OSError, UnicodeError) as error:  # of which the latter is how names are refused that can be none
        is_ports = getattr(error, "errno", None) in PORTS_ERRORS
        field, way_out = ("port", "choose another port") if is_ports else ("host", "name an address of this machine")
        reason = f"cannot listen on {settings.host} port {settings.port}: {cause_of(error)}; {way_out}"
        raise InvalidInputError(reason, field=field, value=getattr(settings, field)) from error


def _address(listener: socket.socket, *, is_secure: bool) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if is_secure else "http"
    return f"{scheme}://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"
