"""How patient the agent is."""

from dataclasses import dataclass, field

from kintsugi.runtime.worker import WorkerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How patient the agent is, and how its workers run."""

    worker: WorkerOptions = field(default_factory=WorkerOptions)
    start_timeout_seconds: float = 120.0
    """For a worker process to know its model."""
    heartbeat_timeout_seconds: float = 5.0
    """Silence after which a worker counts as frozen and is fenced; a busy machine starves workers for a second or two."""
    stopped_timeout_seconds: float = 0.5
    """The same for a worker whose process is stopped, as the operating system tells."""
    quiesce_timeout_seconds: float = 10.0
    """For a survivor to leave the interrupted step, beyond twice the migration and three times its longest pass, as estimated,
    or the longest step that was seen where that is more. Whoever does not is fenced.
    """
    prepare_timeout_seconds: float = 300.0
    """For all members to be ready for a plan, beyond twice the time that its migration is estimated to take."""
    checkpoint_timeout_seconds: float = 60.0
    """For survivors to end writing a checkpoint that the job could go on from, once state is lost."""
    link_grace_seconds: float = 3.0
    """How long a broken link waits for the loss that explains it before the same workers regroup."""
    stall_timeout_seconds: float = 10.0
    """Without a step, beyond ten times the longest one, after which workers are asked whom they can reach.

    That disturbs nobody; a link that is cut in silence is found so.
    """
    probe_timeout_seconds: float = 2.0
    """For a worker to reach another."""
    collect_timeout_seconds: float = 300.0
    """For a holder to tell what it trained, once all steps are done. Whoever does not is fenced, and the others are asked again."""
    max_idle_attempts: int = 3
    """Attempts in a row without a loss or a step between them after which the job stops."""
    decision_timeout_seconds: float = 300.0
    """For the service to answer a failure; it may be restarting."""
