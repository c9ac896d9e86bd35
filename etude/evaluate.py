"""How good an agent is: whole episodes on environments of their own, with the agent's best actions and its normalisers
frozen."""

from __future__ import annotations

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
            f"{np.mean(self.lengths):.0f})"
        )


def evaluate(environments: Environments, actor: Actor, explorer: Explorer, episodes: int, seed: int) -> Evaluation:
    """Play exactly `episodes` whole episodes.

    Each environment plays a fixed share of them, so that short episodes are not counted more often than long ones.
    """
    n = len(environments.columns)
    quota = np.full(n, episodes // n)
    quota[: episodes % n] += 1
    rng, explorer = generator(seed, "evaluation"), explorer.of(environments.columns)
    totals, lengths, memory = np.zeros(n), np.zeros(n, int), np.full((n, explorer.memory), np.nan)
    recall = recall_of(actor, np.zeros((n, actor.memory), np.float32))
    finished: list[list[tuple[float, int]]] = [[] for _ in range(n)]
    observation = environments.reset()
    while any(len(done) < share for done, share in zip(finished, quota, strict=True)):
        noise = explorer.draw(rng, n, environments.spaces.action)
        choice = explorer(recall.act(observation), noise, 0, memory)
        observation, _, _, _, final = environments.step(choice.action)
        totals += environments.scores
        lengths += 1
        for i in final:
            if len(finished[i]) < quota[i]:
                finished[i].append((float(totals[i]), int(lengths[i])))
            totals[i], lengths[i], memory[i] = 0.0, 0, np.nan
            recall.forget(i)
    played = [episode for done in finished for episode in done]
    return Evaluation(tuple(total for total, _ in played), tuple(length for _, length in played))
