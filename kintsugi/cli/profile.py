"""`kintsugi profile`: measure a model's profile on this machine, or import one; only measuring needs torch."""

from collections.abc import Callable

import typer
import typer.main
from typer.core import TyperGroup

from kintsugi.cli import load

_MEASURE, _IMPORT = "measure", "import"
_WHERE = {_MEASURE: ("profile_measure", "profile"), _IMPORT: ("profile_import", "import_profile")}
"""Module and function of each subcommand."""


class _MeasureByDefault(TyperGroup):
    """`profile MODULE:FUNCTION` measures; `profile import FILE` imports."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Whatever is no subcommand belongs to `measure`."""
        named = args if args and args[0] in _WHERE else [_MEASURE, *args]
        return super().parse_args(ctx, named)

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
        """Both."""
        return list(_WHERE)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> typer.core.TyperCommand | None:  # type: ignore[override]  # noqa: ARG002
        """A subcommand, its module imported only now."""
        module, function = _WHERE[cmd_name]
        command: Callable[..., None] = getattr(load(module), function)
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        epilog = "kintsugi profile import FILE imports the layer profile of another system." if cmd_name == _MEASURE else None
        app.command(cmd_name, epilog=epilog)(command)
        return typer.main.get_command(app)  # type: ignore[return-value]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    group = typer.Typer(cls=_MeasureByDefault, add_completion=False, pretty_exceptions_enable=False)
    group.callback(help="Measure a model's profile on this machine, or import one.")(lambda: None)
    app.add_typer(group, name="profile")
