"""`kintsugi supervise`: start a job again from its latest checkpoint until it ends well."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from api.texts import escaped
from kintsugi.cli import INFEASIBLE, INTERRUPTED
from kintsugi.cli.errors import tell
from kintsugi.cli.logs import log_to_stderr
from kintsugi.runtime.supervising.supervision import TOLD_TO_END, SupervisorPolicy, SupervisorState
from kintsugi.runtime.supervising.supervisor import Supervisor


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("supervise", cls=_Forwarding, help="Start a job again from its latest checkpoint until it ends well.")(supervise)


class _Forwarding(TyperCommand):
    """Tells where the command that is to run begins, for its options are its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does."""
        is_told = "--" in args
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            if not is_told:
                said = f"{error.message.rstrip('.')}. " if error.message else ""
                error.message = f"{said}Put -- before the command, as in: {ctx.command_path} RUN -- COMMAND"
            raise


def _unseen(path: str) -> Path:
    """A folder that nobody looks at yet, as typer would: its disk may hang."""
    return Path(path)


def supervise(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=_unseen, help="The folder that the job writes its checkpoints to.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")],
    max_restarts: Annotated[int, typer.Option("--max-restarts", min=0, help="Restarts in this session.")] = 10,
    max_idle_restarts: Annotated[int, typer.Option("--max-idle-restarts", min=0, help="Restarts without a newer checkpoint.")] = 3,
    pause_seconds: Annotated[float, typer.Option("--pause-seconds", min=0.0, help="Before the first restart.")] = 1.0,
) -> int:
    """Run a command to its end; exit 1 where the policy says that it is no use, 130 where this was told to end."""
    log_to_stderr()
    policy = SupervisorPolicy(max_restarts=max_restarts, max_idle_restarts=max_idle_restarts, pause_seconds=pause_seconds)
    record = Supervisor(command=command, run=run, policy=policy, ends_process=True).supervise()
    for attempt in record.own_attempts:
        how = attempt.signal or (f"exit code {attempt.exit_code}" if attempt.exit_code is not None else attempt.not_started_because)
        before, after = ("none" if step is None else f"of step {step}" for step in (attempt.step_before, attempt.step_after))
        steps = f"checkpoint {before} -> {after}"
        tell(escaped(f"attempt {attempt.number}: {attempt.reason} {how}, {steps}"))
    if record.state is SupervisorState.FAILED:
        tell(escaped(f"gave up: {record.stopped_because}"))
    if record.state is SupervisorState.COMPLETED:
        return 0
    return INTERRUPTED if record.stopped_because == TOLD_TO_END else INFEASIBLE
