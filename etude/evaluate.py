"""How good an agent is: whole episodes on environments of their own, with the agent's best actions and its normalisers
frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from etude.protocols import Environments, Explorer
from etude.rollout.recall import Actor, recall_of
from etude.seeding import generator


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of whole episodes, in the environment's own rewards."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    cut_off: int = 0  # episodes that had not ended after `max_steps`, and count with what they had earned by then

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """The standard deviation of the returns over episodes."""
        return float(np.std(self.returns))

    def __str__(self) -> str:
        return (
            f"return {self.mean:.1f} ± {self.std:.1f} over {len(self.returns)} episodes "
            f"(lowest {min(self.returns):.1f}, highest {max(self.returns):.1f}, mean length "
            f"{np.mean(self.lengths):.0f})" + (f"; {self.cut_off} cut off" if self.cut_off else "")
        )


def evaluate(
    environments: Environments,
    actor: Actor,
    explorer: Explorer,
    episodes: int,
    seed: int,
    cut_at: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Play exactly `episodes` whole episodes; None where `stopped`, which is asked before every step, says so.

    Each environment plays a fixed share of them, so that short episodes are not counted more often than long ones.
    cut_at: the length of the episodes that the environments truncate for this evaluation alone.
    """
    n = len(environments.columns)
    quota = np.full(n, episodes // n)
    quota[: episodes % n] += 1
    rng, explorer = generator(seed, "evaluation"), explorer.of(environments.columns)
    totals, lengths, memory = np.zeros(n), np.zeros(n, int), np.full((n, explorer.memory), np.nan)
    recall = recall_of(actor, np.zeros((n, actor.memory), np.float32))
    finished: list[list[tuple[float, int]]] = [[] for _ in range(n)]
    observation, cut_off = environments.reset(), 0
    while any(len(done) < share for done, share in zip(finished, quota, strict=True)):
        if stopped():
            return None
        noise = explorer.draw(rng, n, environments.spaces.action)
        choice = explorer(recall.act(observation), noise, 0, memory)
        observation, _, _, truncated, final = environments.step(choice.action)
        totals += environments.scores
        lengths += 1
        for i in final:
            if len(finished[i]) < quota[i]:
                finished[i].append((float(totals[i]), int(lengths[i])))
                cut_off += bool(truncated[i]) and lengths[i] == cut_at
            totals[i], lengths[i], memory[i] = 0.0, 0, np.nan
            recall.forget(i)
    played = [episode for done in finished for episode in done]
    return Evaluation(tuple(total for total, _ in played), tuple(length for _, length in played), int(cut_off))
