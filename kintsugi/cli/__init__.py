"""The command line: each command's module is imported only when the command runs or its own help is asked for."""

import errno
import importlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from api.texts import advice
from kintsugi.cli.errors import error_line, flush_output, is_output_broken, open_output, tell
from kintsugi.core.errors import InfeasibleError, InvalidInputError, KintsugiError
from kintsugi.core.garbage import without_collection
from kintsugi.core.version import __version__

COMMANDS = {
    "plan": "The best plan for a job, from its profile and its workers.",
    "replan": "The best plan after failures and arrivals, with all alternatives.",
    "simulate": "What would have happened to a job, under every policy.",
    "shards": "The fastest way to fetch shards from several neighbours.",
    "trace": "A plan's schedule, or a run's measured actions, as a trace for Perfetto.",
    "serve": "Run the service.",
    "token": "Issue, list and revoke the service's tokens.",
    "replay": "Make the decisions of jobs again from a service's database, play overlays back, and compare.",
    "demo": "Train a real job, kill its workers, and watch it go on.",
    "profile": "Measure a model's profile on this machine, or import one.",
    "export": "A plan in the words of Megatron-LM, TorchTitan or torch.distributed.pipelining.",
    "audit": "Prove from a run's journals that it trained on every sample once.",
    "supervise": "Start a job again from its latest checkpoint until it ends well.",
    "matrix": "Measure what failures and checkpoints cost, under every strategy.",
    "regress": "Compare the quality of plans with a committed baseline.",
}
"""Line in the help of each command; module `kintsugi.cli.<name>` exports `register(app)`."""

INFEASIBLE, USAGE, INTERRUPTED = 1, 2, 130

PYDANTIC_PREFIX = "Value error, "
"""What pydantic puts in front of a message: of no use to anybody at a terminal."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 success, 1 infeasible or worse than before, 2 usage or invalid input, 130 Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    open_output()
    try:
        status = _status(given)
        flush_output()
    except OSError as error:
        if error.filename is not None or not is_output_broken():
            raise
        status = INFEASIBLE
        if error.errno != errno.EPIPE:  # whoever stops reading has read enough
            tell(f"kintsugi: the output cannot be written: {error.strerror}; send it elsewhere")
    except KeyboardInterrupt:
        status = INTERRUPTED
    except SystemError as error:  # so Python tells of Ctrl-C where machine code had its result already
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        status = INTERRUPTED
    sys.exit(status)


def _status(given: list[str]) -> int:
    """Run the command; what went wrong is told, and gives its exit status."""
    try:
        _require_no_empty_text(given)
        result = _app(given)(args=given, prog_name="kintsugi", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except KintsugiError as error:
        _tell(error, given)
        return INFEASIBLE if isinstance(error, InfeasibleError) else USAGE
    except TyperException as error:
        _tell_misuse(error, given)
        return error.exit_code
    except typer.Abort:
        return INFEASIBLE


def _app(given: Sequence[str]) -> typer.Typer:
    """The application with the one command that was asked for, or with the names of all."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(help="Mends broken hybrid data-parallel/pipeline-parallel training jobs.")(_options)
    command = next((argument for argument in given if not argument.startswith("-")), None)
    if command in COMMANDS and _is_there(command):
        load(command).register(app)
        return app
    for name, line in COMMANDS.items():
        if _is_there(name):
            app.command(name, help=line)(lambda: None)
    return app


def _require_no_empty_text(given: Sequence[str]) -> None:
    """Require words with something in them, up to those of another command: an empty path would be the folder that one is in.

    Raises:
        InvalidInputError: one is empty.
    """
    own = itertools.takewhile(lambda argument: argument != "--", given)
    for before, argument in itertools.pairwise(("kintsugi", *own)):
        option, is_joined, value = argument.partition("=")
        is_empty_value = bool(is_joined) and not value and option.startswith("--")
        if is_empty_value or not argument:
            message = "is followed by an empty text, as of a shell's variable that is not set; give it a value, or leave it out"
            raise InvalidInputError(message, field=option if is_empty_value else before, value="")


def _is_there(command: str) -> bool:
    return importlib.util.find_spec(f"kintsugi.cli.{command}") is not None


def load(command: str) -> Any:
    """The module of a command.

    Raises:
        InvalidInputError: it needs torch, which is not installed.
    """
    try:
        with without_collection():
            return importlib.import_module(f"kintsugi.cli.{command}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InvalidInputError("needs PyTorch: pip install 'kintsugi[torch]'", field=command) from error


def _tell_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"kintsugi {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the command line itself: they are obeyed as they are read, for no command follows."""


def _wants_json(given: Sequence[str]) -> bool:
    return "--format=json" in given or any(pair == ("--format", "json") for pair in itertools.pairwise(given))


def _tell(error: KintsugiError, given: Sequence[str]) -> None:
    if _wants_json(given):
        typer.echo(json.dumps({"error": error.as_dict()}, default=str))
    else:
        tell(error_line(error))


def _tell_misuse(error: TyperException, given: Sequence[str]) -> None:
    param = getattr(error, "param", None)
    value = _value_of(getattr(param, "opts", ()), given)
    error.message = _in_own_words(error.message.replace(PYDANTIC_PREFIX, ""), value)
    if _wants_json(given):
        field = getattr(error, "option_name", None) or getattr(param, "name", None) or ""
        _tell(InvalidInputError(error.format_message(), field=field, value=value), given)
    elif callable(show := getattr(error, "show", None)):
        with suppress(OSError):  # the exit status says it, too
            show()


def _in_own_words(message: str, value: str | None) -> str:
    """What pydantic says of a value, with the value, which it does not show."""
    own = advice(message)
    return own if own == message or value is None else f"{own}, not {value[:200]!r}"


def _value_of(names: Sequence[str], given: Sequence[str]) -> str | None:
    """What an option that goes by these names was given last; None where it was not."""
    value = None
    for argument, follower in itertools.pairwise((*given, None)):
        name, is_joined, joined = (argument or "").partition("=")
        if name in names:
            value = joined if is_joined else follower
    return value
