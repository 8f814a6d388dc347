"""One job under one policy, incident by incident."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.errors import InfeasibleError
from kintsugi.simulator.adviser import Advice, Adviser, Fleet, Held
from kintsugi.simulator.faults import Incident, newcomer
from kintsugi.simulator.ledger import Account, Ledger, Span
from kintsugi.simulator.outcome import Outcome
from kintsugi.simulator.running import Response, Running
from kintsugi.simulator.transitions import restart_pause_seconds

CLOCK_ULPS = 4
"""By how many of its last digits the difference of two moments may be wrong: by a half each for both sums and the difference."""

NOBODY = "alive: no worker ever came"
"""Why a job stood still about which no policy was asked."""


def simulate(
    adviser: Adviser,
    cluster: Cluster,
    incidents: Sequence[Incident],
    *,
    duration_seconds: float,
    seed: int,
    is_traced: bool = False,
    watch: Callable[[], None] = lambda: None,
) -> Outcome:
    """Let a job run under a policy while incidents happen. Deterministic: chance is in the incidents alone.

    Args:
        adviser: of the policy, for the job.
        cluster: workers at the beginning.
        incidents: in order of time.
        duration_seconds: of the run.
        seed: that the incidents were drawn with, for the record.
        watch: called before every incident and whatever was put off; raises to give the run up.
        is_traced: whether incidents bring all workers, so that none is there at the beginning.
    """
    run = _Run(adviser, cluster, is_traced=is_traced)
    run.begin()
    for incident in incidents:
        if incident.at_seconds >= duration_seconds:
            break
        watch()
        run.reach(incident.at_seconds, watch)
        run.happen(incident)
    run.reach(duration_seconds, watch)
    run.cut(duration_seconds)
    return run.outcome(seed, duration_seconds)


class _Run:
    """The state of a job: training under `held`, on the way to `pending`, or stopped."""

    def __init__(self, adviser: Adviser, cluster: Cluster, *, is_traced: bool) -> None:
        self._adviser, self._job = adviser, adviser.job
        self._workers: dict[str, Worker] = dict(cluster.by_id)
        self._is_equal = self._job.workers_per_host == 1 and self._job.faults.straggler_mtbf_seconds is None
        self._alive: dict[str, None] = {} if is_traced else dict.fromkeys(cluster.by_id)
        self._held: Held | None = None
        self._pending: tuple[Advice, float] | None = None
        self._ask_at: float | None = None
        self._save_at: float | None = None
        """When the checkpoint that `pending` begins with is complete."""
        self._has_run = False
        """Whether there was a plan before that could have trained something: without one a start rolls nothing back."""
        self._now = 0.0
        """Up to here all time is in the ledger; the beginning of a step while the job trains."""
        self._ledger = Ledger()
        self._spans: list[Span] = []
        self._trained: list[tuple[float, int]] = [(0.0, 0)]
        self._live = [(0.0, len(self._alive))]
        self._num_transitions = self._num_rollbacks = 0
        self._choices: Counter[str] = Counter()
        self._refused: tuple[int, str] | None = None
        """The most workers that could not run the job, and why not."""

    def begin(self) -> None:
        """The first plan, if these workers can run the job."""
        if self._alive:
            try:
                self._held = self._adviser.start(self._fleet())
                self._has_run = True
            except InfeasibleError as error:
                self._stop(error)

    def reach(self, at: float, watch: Callable[[], None]) -> None:
        """Carry out what was put off, up to a moment; the job goes on after it."""
        while self._ask_at is not None and self._ask_at <= at:
            watch()
            moment, self._ask_at = self._ask_at, None
            self._ask(moment)
        self._settle(at)

    def happen(self, incident: Incident) -> None:
        """Workers are lost, come, or change their speed; the job is in step with the incident's time."""
        is_hit = any(self._is_used(worker) for worker in incident.lost)
        for worker in incident.lost:
            self._alive.pop(worker, None)
        self._forget(incident.lost)
        for worker in incident.joined:
            self._workers.setdefault(worker, newcomer(worker))
            self._alive[worker] = None
        for worker, speed_ratio in incident.speeds:
            self._workers[worker] = replace(self._workers[worker], speed_ratio=speed_ratio)
        self._live.append((incident.at_seconds, len(self._alive)))
        if is_hit:
            self.cut(incident.at_seconds, incident.notice_seconds)
            self._respond(incident.at_seconds, is_announced=incident.notice_seconds > 0)
        else:
            self._ask(incident.at_seconds)

    def cut(self, at: float, notice_seconds: float = 0.0) -> None:
        """Whatever goes on ends here: a transition is given up, and the step that is under way is lost.

        A loss that was announced early enough lets the last step end: what comes after it belongs to the transition.
        """
        self._settle(at)
        self._ledger.give_up()
        self._ask_at = None
        begun = at - self._now
        if self._pending is not None:
            self._spend(Account.TRANSITION, at)
            self._pending = self._save_at = None
        elif self._held is None:
            self._spend(Account.STOPPED, at)
        else:
            self._spend(Account.TRANSITION if begun <= notice_seconds else Account.LOST, at)

    def outcome(self, seed: int, duration_seconds: float) -> Outcome:
        """The accounts."""
        self._record(duration_seconds)
        return Outcome(
            policy=self._adviser.strategy.name,
            seed=seed,
            duration_seconds=duration_seconds,
            num_samples=self._ledger.num_microbatches * self._job.profile.microbatch_size,
            seconds=self._ledger.shares(),
            num_transitions=self._num_transitions,
            num_rollbacks=self._num_rollbacks,
            choices=dict(sorted(self._choices.items())),
            spans=tuple(self._spans),
            trained=tuple(self._trained),
            live=tuple(self._live),
            stopped_because=self._stopped_because(),
        )

    def _stopped_because(self) -> str | None:
        if self._refused is not None:
            return self._refused[1]
        return None if any(count for _, count in self._live) else NOBODY

    def _settle(self, at: float) -> None:
        """Keep a transition's checkpoint and end a transition that are over by then, and enter all complete steps."""
        if self._save_at is not None and self._save_at <= at:
            self._ledger.checkpoint()
            self._save_at = None
        if self._pending is not None and self._pending[1] <= at:
            advice, until = self._pending
            self._spend(Account.TRANSITION, until)
            self._held, self._pending, self._has_run = self._still(advice.held), None, True
        if self._held is not None and self._pending is None:
            self._train(self._held.running, at)

    def _train(self, running: Running, at: float) -> None:
        """Enter all complete steps; where none is, the present one begins when it did, with no rounding."""
        begun, slack = at - self._now, CLOCK_ULPS * math.ulp(at)
        mixed = self._ledger.under_way
        left = self._ledger.train(running, begun, self._job.checkpoint_pause_seconds, slack)
        if mixed is not None and self._ledger.under_way is None:
            own = mixed.iteration_seconds
            self._mark(min(at, self._now + own), running.plan.num_microbatches / own)
        if left < begun:
            self._mark(at - left, running.microbatches_per_second)
            self._now = at - left
        self._record(self._now)

    def _still(self, held: Held) -> Held:
        return replace(held, name_of={worker: name for worker, name in held.name_of.items() if worker in self._alive})

    def _ask(self, at: float) -> None:
        """Nobody is missing: a transition that goes on ends first, and a step that is under way, too."""
        self._settle(at)
        if self._pending is not None:
            self._ask_at = self._pending[1]
        elif self._held is None:
            self._spend(Account.STOPPED, at)
            self._respond(at, is_announced=True)
        else:
            self._offer(at)

    def _offer(self, at: float) -> None:
        """Go on as the policy says: undisturbed, or by a transition that begins when the present step ends."""
        assert self._held is not None
        try:
            advice = self._adviser.respond(self._held, self._fleet())
        except InfeasibleError:
            return
        if advice.response.pause_seconds == 0.0:
            self._ledger.reprice(self._held.running, advice.held.running, at - self._now)
            self._held = advice.held
            if self._ask_at is not None:
                self._put_off(self._held, at)
        elif self._now == at:
            self._move(advice, at, is_announced=True)
        else:
            self._put_off(self._held, at)

    def _put_off(self, held: Held, at: float) -> None:
        """Ask again at the end of what is under way."""
        end = self._now + self._ledger.next_end(held.running, self._job.checkpoint_pause_seconds)
        self._ask_at = max(end, math.nextafter(at, math.inf))

    def _respond(self, at: float, *, is_announced: bool) -> None:
        """Ask the policy, and set off at once."""
        try:
            if self._held is None:
                self._move(self._restarted(), at, is_announced=is_announced)
            else:
                self._move(self._adviser.respond(self._held, self._fleet()), at, is_announced=is_announced)
        except InfeasibleError as error:
            self._stop(error)
            self._roll_back()

    def _stop(self, error: InfeasibleError) -> None:
        """Stand still until there are other workers."""
        self._held = None
        if self._refused is None or self._refused[0] < len(self._alive):
            self._refused = len(self._alive), str(error)

    def _restarted(self) -> Advice:
        """A job that was stopped begins anew, from its last checkpoint; one that never ran has nothing to roll back.

        Raises:
            InfeasibleError: these workers cannot run the job.
        """
        if not self._alive:
            raise InfeasibleError("no worker is left", field="alive", value=[])
        held = self._adviser.start(self._fleet())
        pause = restart_pause_seconds(self._job.profile)
        return Advice(Response(running=held.running, pause_seconds=pause, rolls_back=self._has_run), held.name_of, held.cluster)

    def _move(self, advice: Advice, at: float, *, is_announced: bool) -> None:
        """Set off to another plan; what was announced needs no detection."""
        response = advice.response
        if response.rolls_back:
            self._roll_back()
            self._num_rollbacks += 1
        detection = self._job.profile.recovery.detect_seconds if is_announced else 0.0
        pause = max(0.0, response.pause_seconds - detection) + self._job.planning_seconds
        self._num_transitions += 1
        self._choices[response.running.plan.policy.value] += 1
        self._pending = advice, at + pause
        if response.saves:
            self._save_at = at + min(pause, self._job.planning_seconds + self._job.checkpoint_pause_seconds)

    def _roll_back(self) -> None:
        self._ledger.roll_back()
        self._record(self._now)

    def _record(self, at: float) -> None:
        """What counts at a moment, where that is news."""
        entry = at, self._ledger.num_microbatches
        if self._trained[-1] != entry:
            self._trained.append(entry)

    def _spend(self, account: Account, until: float) -> None:
        self._ledger.spend(account, until - self._now)
        self._mark(until, 0.0)
        self._now = until

    def _mark(self, until: float, rate: float) -> None:
        """Continue the record of the rate."""
        start = self._spans[-1].stop_seconds if self._spans else 0.0
        if until <= start:
            return
        if self._spans and self._spans[-1].microbatches_per_second == rate:
            start = self._spans.pop().start_seconds
        self._spans.append(Span(start, until, rate))

    def _is_used(self, worker: str) -> bool:
        """Whether a worker's loss disturbs the job: it holds a stage now or shall hold one."""
        present, coming = self._held, self._pending and self._pending[0].held
        return any(held is not None and held.name_of.get(worker) in held.running.plan.slots_of for held in (present, coming))

    def _forget(self, lost: Sequence[str]) -> None:
        """Lost workers play no part in what runs any more; when they are back they are others."""
        if self._held is not None and any(worker in self._held.name_of for worker in lost):
            self._held = self._still(self._held)

    def _fleet(self) -> Fleet:
        alive = tuple(self._alive)
        if self._is_equal:
            return Fleet(alive, None)
        return Fleet(alive, Cluster(name="simulated", workers=tuple(self._workers.values())))
