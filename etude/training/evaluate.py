"""How good an agent is: whole episodes on environments of their own, with the agent's best actions and its normalisers
frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from etude.base.data import EpisodeEnd
from etude.base.seeding import generator
from etude.protocols import Environments, Explorer
from etude.rollout.actor import Actor, with_state
from etude.rollout.episodes import EpisodeStatistics


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of whole episodes, in the environment's own rewards. Those of several agents are
    summed; `returns_by_agent` has those of each, by name."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    cut_off: int = 0  # episodes that had not ended after `max_steps`, and count with what they had earned by then
    returns_by_agent: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @staticmethod
    def of(played: list[EpisodeEnd], cut_off: int, agents: tuple[str, ...]) -> Evaluation:
        """Of these episodes, in their order."""
        by_agent = {name: tuple((end.total_by_agent or {})[name] for end in played) for name in agents}
        return Evaluation(tuple(end.total for end in played), tuple(end.length for end in played), cut_off, by_agent)

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """The standard deviation of the returns over episodes."""
        return float(np.std(self.returns))

    @property
    def mean_by_agent(self) -> dict[str, float]:
        """The mean return of each of several agents, by name."""
        return {agent: float(np.mean(returns)) for agent, returns in self.returns_by_agent.items()}

    def __str__(self) -> str:
        return (
            f"return {self.mean:.1f} ± {self.std:.1f} over {len(self.returns)} episodes "
            f"(lowest {min(self.returns):.1f}, highest {max(self.returns):.1f}, mean length "
            f"{np.mean(self.lengths):.0f})" + self._of_agents() + (f"; {self.cut_off} cut off" if self.cut_off else "")
        )

    def _of_agents(self) -> str:
        spread = {agent: np.std(returns) for agent, returns in self.returns_by_agent.items()}
        each = [f"{agent} {mean:.1f} ± {spread[agent]:.1f}" for agent, mean in self.mean_by_agent.items()]
        return f"; by agent: {', '.join(each)}" if each else ""


class EvaluationRequest(NamedTuple):
    """What to play: see `Run.evaluate`."""

    episodes: int
    seed: int | None = None
    max_steps: int | None = None
    task: Any = None
    explore: bool = False
    env: Any = None


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
    statistics, state = EpisodeStatistics(n, environments.spaces.agents), np.full((n, explorer.state_size), np.nan)
    stateful = with_state(actor, np.zeros((n, actor.state_size), np.float32))
    finished: list[list[EpisodeEnd]] = [[] for _ in range(n)]
    observation, cut_off = environments.reset(), 0
    while any(len(done) < share for done, share in zip(finished, quota, strict=True)):
        if stopped():
            return None
        noise = explorer.draw(rng, n, environments.spaces.action)
        choice = explorer(stateful.act(observation), noise, 0, state)
        observation, reward, _, truncated, final = environments.step(choice.action)
        statistics.add(environments.scores, reward)
        for i in final:
            if len(finished[i]) < quota[i]:
                end = statistics.end(i, int(environments.columns[i]), len(finished[i]), bool(truncated[i]))
                finished[i].append(end)
                cut_off += end.truncated and end.length == cut_at
            state[i] = np.nan
            statistics.reset(i)
            stateful.reset(i)
    return Evaluation.of([end for done in finished for end in done], cut_off, statistics.agents)
