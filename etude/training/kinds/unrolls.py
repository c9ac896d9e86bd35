"""Learning from whole rollouts of a policy that may be a few updates old, corrected by importance ratios."""

from __future__ import annotations

from typing import Any

from etude.config import UnrollsConfig
from etude.replay import ColumnEpochs, Selector, Unrolls, View
from etude.training.kinds.context import TrainingContext
from etude.training.kinds.on_policy import OnPolicyLearning


class UnrollLearning(OnPolicyLearning):
    """The whole rollout of each environment."""

    name = "unrolls"
    config = UnrollsConfig
    multi_agent = False

    def selector(self, config: Any) -> Selector:
        return ColumnEpochs()

    def view(self, context: TrainingContext) -> View:
        return Unrolls(context.agent.config.gamma)
