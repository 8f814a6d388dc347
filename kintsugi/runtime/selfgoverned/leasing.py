"""The lease of workers on one host: held by their agent, asked for over their pipes."""

import itertools
import queue
from collections.abc import Callable

from kintsugi.core import codec
from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.ring.messages import Agreement
from kintsugi.runtime.selfgoverned.words import Asked, Leased

TIMEOUT_SECONDS = 10.0
"""For one answer; the ring asks again."""


class AgentLease:
    """Asks and waits; for one thread at a time."""

    def __init__(self, tell: Callable[[Asked], None]) -> None:
        self._tell = tell
        self._answers: queue.SimpleQueue[Leased] = queue.SimpleQueue()
        self._numbers = itertools.count()

    def take(self, answer: Leased) -> None:
        """The agent answered; from any thread."""
        self._answers.put(answer)

    def decide(self, agreement: Agreement) -> Agreement:
        """What is held for the agreement's generation from now on.

        Raises:
            UnavailableError: the agent does not answer.
        """
        held = self._answer(Asked(next(self._numbers), agreement.generation, agreement))
        assert held is not None, "something is held once it was asked for"
        return held

    def held(self, generation: int) -> Agreement | None:
        """The latest that is held for a generation or one after it; null where there is none.

        Raises:
            UnavailableError: the agent does not answer.
        """
        return self._answer(Asked(next(self._numbers), generation, None))

    def _answer(self, question: Asked) -> Agreement | None:
        self._tell(question)
        try:
            while (answer := self._answers.get(timeout=TIMEOUT_SECONDS)).number != question.number:
                pass  # an answer that came too late for its question
        except queue.Empty:
            message = f"the agent did not say within {TIMEOUT_SECONDS:g} s who holds the generation"
            raise UnavailableError(message, field="generation", value=question.generation) from None
        return answer.agreement


class HeldLeases:
    """What the agent holds: the first agreement on each generation that it was asked for."""

    def __init__(self, tell: Callable[[int, str], None]) -> None:
        """`tell` is told the generation and the text of every agreement that is held from now on."""
        self._tell = tell
        self._agreements: dict[int, Agreement] = {}

    def answer(self, asked: Asked) -> Leased:
        """What is held; whoever only looks is told the latest."""
        held, wanted = self._agreements, asked.agreement
        if wanted is None:
            latest = max(held, default=-1)
            return Leased(asked.number, held[latest] if latest >= asked.generation else None)
        self.hold(wanted)
        return Leased(asked.number, held[asked.generation])

    def hold(self, agreement: Agreement) -> None:
        """Hold this one, unless another one is held for its generation."""
        if agreement.generation not in self._agreements:
            self._agreements[agreement.generation] = agreement
            self._tell(agreement.generation, codec.dumps(agreement))
