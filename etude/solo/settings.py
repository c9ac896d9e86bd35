"""What `RL.set` configures, checked as a whole before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etude.base import checks
from etude.base.errors import ConfigError
from etude.protocols import Explorer


@dataclass(frozen=True)
class Settings:
    """How an agent explores, what its pool keeps, and what one learning phase is. See `RL.set` for each field."""

    policy: Explorer | Sequence[Explorer] | None = None
    noise: Explorer | Sequence[Explorer] | None = None
    pool_size: int = 10_000
    batch: int = 64
    num_updates: int | None = None
    num_steps: int | None = None
    update_batches: int | None = None
    update_steps: int | None = None
    trial_count: int | None = None
    criterion: float | None = None
    PPO: bool = False
    HER: bool = False
    TRL: bool = False
    MARL: bool = False
    PR: bool = False
    IRL: bool = False
    epsilon: float | None = None
    initial_ratio: float = 1.0
    initial_TD: float = 7.0
    lambda_: float = 0.5
    alpha: float = 0.7
    pool_folder: str | None = None

    def __post_init__(self) -> None:
        checks.counts(self, "pool_size", "batch")
        optional = ("num_updates", "num_steps", "update_batches", "update_steps", "trial_count")
        checks.counts(self, *(name for name in optional if getattr(self, name) is not None))
        checks.fractions(self, "lambda_", *(["epsilon"] if self.epsilon is not None else []))
        checks.not_negative(self, "alpha", "initial_ratio", "initial_TD")
        for wrong, reason in self._contradictions():
            if wrong:
                raise ConfigError(f"set: {reason}")

    def _contradictions(self) -> list[tuple[bool, str]]:
        """(whether it holds, what is wrong and what to do)."""
        targets = self.update_steps is not None, self.update_batches is not None
        several_steps = self.num_steps is not None
        return [
            (
                self.policy is not None and self.noise is not None,
                "policy and noise were given. Keep the policy for discrete actions, the noise for continuous ones.",
            ),
            (
                self.epsilon is not None and self.policy is None,
                "epsilon belongs to a policy, and none was given. Add policy=EpsGreedyQPolicy().",
            ),
            (
                self.batch > self.pool_size,
                f"batch = {self.batch} is larger than pool_size = {self.pool_size}. Nothing is learned before the pool "
                "holds one batch: raise pool_size.",
            ),
            (all(targets), "update_steps and update_batches both say when update_param is called. Keep one."),
            (
                self.PPO and not any(targets),
                "PPO=True empties the pool whenever update_param is called; say when, with update_steps or "
                "update_batches.",
            ),
            (
                self.criterion is not None and self.trial_count is None,
                "criterion is compared with the mean return of the last trial_count episodes. Give trial_count.",
            ),
            (self.HER and self.PPO, "HER=True relabels the past, PPO=True learns from the present policy. Keep one."),
            (self.HER and self.MARL, "HER=True relabels the goal of one agent; MARL=True has several. Keep one."),
            (
                self.TRL and (self.HER or self.MARL or self.IRL or several_steps),
                "TRL=True makes batches of its own kind, of triplets. Leave HER, MARL, IRL and num_steps off.",
            ),
            (
                self.IRL and (self.HER or self.MARL or several_steps),
                "IRL=True takes the rewards of single steps from a learned model. Leave HER, MARL and num_steps off.",
            ),
        ]

    @property
    def follows_each_step(self) -> bool:
        """Whether `update_param` is a part of every gradient step."""
        return self.update_steps is None and self.update_batches is None

    @property
    def explorer(self) -> Explorer | Sequence[Explorer] | None:
        """The policy or the noise, whichever was given."""
        return self.noise if self.policy is None else self.policy
