"""The protocol: the one function that says what a member of a ring does. Pure; sockets and exhaustive check both call it.

    lost -> reconcile (round the ring, until a worker gets back what it passed on)
         -> accept (round the ring) -> decided, by a majority or the lease -> restart (round the ring)

It is Spotnik's algorithm (section 3.2) as a single-decree Paxos for each generation: the membership that travels carries a
ballot, and with it everybody's promise and what was accepted before; that is what makes it safe when the worker that carries it
is lost. One worker begins a ballot, one message of it is under way at a time, so one proposal at most comes of it.
"""

from collections.abc import Callable
from dataclasses import replace

from kintsugi.runtime.ring.messages import Accept, Agreement, Ballot, Hello, Joiner, Message, Promise, Proposal, Reconcile, Restart
from kintsugi.runtime.ring.quorum import is_majority, may_propose
from kintsugi.runtime.ring.signals import (
    Action,
    AskLease,
    Committed,
    Decided,
    Found,
    Install,
    Joining,
    LeaveOut,
    Lost,
    Missed,
    Probe,
    Received,
    Record,
    Renewing,
    Send,
    Signal,
)
from kintsugi.runtime.ring.state import State, following, united

Choose = Callable[[Agreement], str]
"""Gives the note of an agreement that has none yet; a pure function of it, called where the reconciliation closes."""

Step = tuple[State, tuple[Action, ...]]


def transition(state: State, signal: Signal, choose: Choose) -> Step:
    """What a member knows and does after `signal`. O(members)."""
    match signal:
        case Committed(step, note):
            assert not state.is_stopped, "asked for by whoever commits"
            return replace(state, committed_step=step, note=note), ()
        case Decided(agreement):
            return _decided(state, agreement, choose)
        case Lost():
            return _lost(state, signal, choose)
        case Missed(worker):
            return _missed(state, worker, choose)
        case Found(worker):
            return _found(state, worker, choose)
        case Joining(joiner):
            return _joining(state, joiner, choose)
        case Renewing(generation):
            is_idle = state.promised is None and not state.is_left_out and generation == state.agreement.generation
            return _begin(state, choose) if is_idle else (state, ())
        case Received(sender, message):
            return _received(state, sender, message, choose)


def _decided(state: State, agreement: Agreement, choose: Choose) -> Step:
    is_news = agreement.generation > state.agreement.generation and not state.is_left_out
    return _install(state, agreement, choose) if is_news else (state, ())


def _lost(state: State, signal: Lost, choose: Choose) -> Step:
    """Begin to reconcile where it is the next worker that is gone: then this worker's messages went nowhere.

    Where it is another one, whoever it is next to begins; if nobody does, this worker is told again.
    """
    worker = signal.worker
    if state.is_left_out or worker == state.member or worker not in state.agreement.members:
        return state, ()
    after = replace(state, lost=state.lost | {worker}, dead=state.dead | {worker} if signal.is_certain else state.dead)
    passes_on_to = {_next(state, state.lost), _next(state, state.excluded | state.lost), _next(state, state.excluded)}
    is_news, is_forgotten = worker not in state.lost, state.promised is None
    if (is_news and worker in passes_on_to) or (signal.is_reported and (is_news or is_forgotten)):
        return _begin(after, choose)
    return _propose(after, choose) if after.held is not None and after != state else (after, ())


def _missed(state: State, worker: str, choose: Choose) -> Step:
    """Say it again: under a ballot of its own while one is under way, else which generation this is, for who may lack it."""
    if state.is_left_out or worker not in state.agreement.members or worker in state.lost:
        return state, ()
    return _begin(state, choose) if state.promised is not None else (state, (Send(worker, Hello(state.agreement.generation)),))


def _found(state: State, worker: str, choose: Choose) -> Step:
    """Nothing could be decided without a member that lives: take it back. Whoever gave it up may be gone since."""
    if state.is_left_out or state.promised is None or worker not in state.missing:
        return state, ()
    return _begin(replace(state, lost=state.lost - {worker}), choose)


def _joining(state: State, joiner: Joiner, choose: Choose) -> Step:
    """Begin to agree on a membership with a new worker; where one is being agreed on already, after that."""
    if state.is_left_out or joiner.worker in state.agreement.members:
        return state, ()
    after = replace(state, joining=united((joiner,), state.joining))
    return _begin(after, choose) if state.promised is None else (after, ())


def _received(state: State, sender: str, message: Message, choose: Choose) -> Step:
    """Refuse what speaks of a generation that is over, and tell the one that goes on; take in the rest."""
    own = state.agreement.generation
    if sender in state.dead:
        return state, ()
    if message.generation < own:
        return state, () if isinstance(message, Restart) else (Send(sender, Restart(state.agreement)),)
    if state.is_left_out:
        return state, ()
    match message:
        case Hello(generation):
            return state, (Send(sender, Hello(own)),) if generation > own else ()
        case Restart(agreement):
            return _decided(state, agreement, choose)
        case Reconcile(base=base):
            known = _decided(state, base, choose)
            return _then(known, lambda after: _reconcile(after, message, choose))
        case Accept():
            return _accept(state, message, choose)


def _accept(state: State, message: Accept, choose: Choose) -> Step:
    """Accept what the reconciliation led to, and pass it on; whoever has accepted it already began this, and concludes."""
    if message.generation != state.agreement.generation or message.proposal.ballot != state.promised:
        return state, ()
    if state.accepted is not None and state.accepted.ballot == message.proposal.ballot:
        return _conclude(state, message, choose)
    state = replace(state, accepted=message.proposal, dead=state.dead | message.dead, lost=state.lost | message.dead)
    return _pass_on(state, replace(message, accepted_by=message.accepted_by | {state.member}), choose)


def _reconcile(state: State, message: Reconcile, choose: Choose) -> Step:
    """Remove whom this worker knows to be lost, and pass the rest on; or close, once everybody has."""
    if state.is_left_out or (state.promised is not None and state.promised > message.ballot):
        return state, ()
    lost, is_first = message.lost | state.lost, state.promised != message.ballot
    if not is_first and lost == state.excluded:
        return _close(state, message, choose)
    promises = (*message.promises, _promise(state, message.promises)) if is_first else message.promises
    state = replace(state, promised=message.ballot, excluded=lost, held=None)
    joining = united(message.joining, state.joining)
    return _pass_on(state, replace(message, lost=lost, promises=promises, joining=joining), choose)


def _promise(state: State, others: tuple[Promise, ...]) -> Promise:
    """This worker's part. What others accepted with it travels once: a ballot has one proposal, which is as long as all notes."""
    carried = {promise.accepted.ballot for promise in others if promise.accepted is not None}
    is_news = state.accepted is not None and state.accepted.ballot not in carried
    return Promise(state.contribution, state.accepted if is_news else None)


def _begin(state: State, choose: Choose) -> Step:
    """Propose a membership without those that this worker knows to be lost, with those that join, under a ballot of its own."""
    ballot = Ballot((state.promised.round if state.promised else 0) + 1, state.member)
    return _reconcile(state, Reconcile(ballot, state.agreement, state.lost, (), state.joining), choose)


def _pass_on(state: State, message: Reconcile | Accept, choose: Choose) -> Step:
    """To the next worker that is left; who is alone has had everybody's answer."""
    if (worker := _next(state, state.excluded)) is not None:
        return state, (Send(worker, message),)
    return _close(state, message, choose) if isinstance(message, Reconcile) else _conclude(state, message, choose)


def _close(state: State, message: Reconcile, choose: Choose) -> Step:
    """All that are left have promised and know the same membership: propose it, or what may be decided already.

    Two halves may each have asked the lease for something else; so what the lease was asked for, the lease decides.
    """
    earlier = [promise.accepted for promise in message.promises if promise.accepted is not None]
    latest = max(earlier, key=lambda proposal: proposal.ballot, default=None)
    agreement = latest.agreement if latest is not None else _fresh(state, message, choose)
    is_minority = not is_majority(len(state.ring), len(state.agreement.members))
    by_lease = is_minority or any(proposal.by_lease for proposal in earlier)
    return _propose(replace(state, held=Proposal(message.ballot, agreement, by_lease)), choose)


def _fresh(state: State, message: Reconcile, choose: Choose) -> Agreement:
    brought = {promise.contribution.worker: promise.contribution for promise in message.promises}
    order = state.agreement.members
    agreement = Agreement(
        generation=state.agreement.generation + 1,
        members=(*(worker for worker in order if worker not in message.lost), *(joiner.worker for joiner in message.joining)),
        contributions=tuple(brought[worker] for worker in order if worker in brought),
        joined=message.joining,
        earlier=tuple(joiner for joiner in state.agreement.newcomers if joiner.worker not in message.lost),
    )
    return replace(agreement, note=choose(agreement))


def _propose(state: State, choose: Choose) -> Step:
    """Have what is held accepted, if enough workers are left to know what may be decided already."""
    assert state.held is not None
    if not may_propose(state.ring, state.dead, state.agreement.members):
        return state, (Probe(state.excluded - state.dead),)
    proposal = state.held
    state = replace(state, held=None, accepted=proposal)
    message = Accept(state.agreement.generation, proposal, frozenset((state.member,)), state.dead)
    return _pass_on(state, message, choose)


def _conclude(state: State, message: Accept, choose: Choose) -> Step:
    """All that are left have accepted: decided by their majority, or for the lease to decide."""
    agreement = message.proposal.agreement
    if message.proposal.by_lease:
        return state, (AskLease(agreement),)
    state, actions = _install(state, agreement, choose)
    return state, (*actions, Record(agreement))


def _install(state: State, agreement: Agreement, choose: Choose) -> Step:
    """Go on in a later generation, or not at all, and tell the next worker that does and was a member before."""
    is_member = state.member in agreement.members
    order = agreement.members if is_member else (*state.agreement.members, *agreement.members)
    veterans = set(agreement.members) - {joiner.worker for joiner in agreement.joined}
    others = [worker for worker in following(order, state.member, state.lost) if worker in veterans]
    told = (Send(others[0], Restart(agreement)),) if others else ()
    after = State(state.member, agreement, agreement.committed_step, is_left_out=not is_member)
    if not is_member:
        return after, (*told, LeaveOut(agreement))
    members = frozenset(agreement.members)
    joining = tuple(joiner for joiner in state.joining if joiner.worker not in members)
    after = replace(after, lost=state.lost & members, dead=state.dead & members, joining=joining)
    is_broken = _next(after, frozenset()) in after.lost
    rest = _begin(after, choose) if is_broken or joining else (after, ())
    return rest[0], (*told, Install(agreement), *rest[1])  # the next one need not wait for this one


def _then(step: Step, then: Callable[[State], Step]) -> Step:
    """One step after another."""
    state, actions = then(step[0])
    return state, (*step[1], *actions)


def _next(state: State, without: frozenset[str]) -> str | None:
    """Whom this worker passes messages on to; null where nobody is left."""
    return next(iter(following(state.agreement.members, state.member, without)), None)
