"""Learning that begins with recorded data and goes on with collected steps: offline-to-online fine-tuning."""

from __future__ import annotations

from typing import Any, ClassVar

from etude.agent import ActsBy, Agent
from etude.base.spaces import Space
from etude.config import OfflineToOnlineConfig
from etude.protocols import Explorer
from etude.replay import Buffer, Ring, Selector, Uniform, View
from etude.training.kinds.context import TrainingContext
from etude.training.kinds.kind import LearningKind
from etude.training.kinds.off_policy import OffPolicyLearning
from etude.training.kinds.offline import OfflineLearning
from etude.training.kinds.recorded import BufferRequest
from etude.training.sources import Sources


class OfflineToOnlineLearning(OfflineLearning):
    """Recorded transitions, which collected ones may join."""

    config: ClassVar[type[Any]] = OfflineToOnlineConfig

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        return FineTuning(self) if data.online else self


class FineTuning(OffPolicyLearning):
    """Collected transitions, and recorded ones in fixed shares, for an agent that learned from the latter alone.

    offline: how it learned from them.
    """

    config: ClassVar[type[Any]] = OfflineToOnlineConfig
    multi_agent = False

    def __init__(self, offline: OfflineToOnlineLearning):
        self.offline = offline

    def buffer(self, context: TrainingContext, request: BufferRequest) -> Buffer:
        return (self.offline.buffer if request.recorded else super().buffer)(context, request)

    def selector(self, config: Any, ring: Ring) -> Selector:
        return Uniform()

    def view(self, context: TrainingContext) -> View:
        return self.offline.view(context)

    def goals(self, view: View, context: TrainingContext, stream: str) -> View:
        return view

    def actor_priorities(self, context: TrainingContext) -> bool:
        return False

    def explorer(self, agent: Agent, acts_by: ActsBy, action: Space, total: int, count: int) -> Explorer:
        return LearningKind.explorer(self, agent, acts_by, action, total, count)

    def check_exploration(self, agent: Agent) -> None:
        LearningKind.check_exploration(self, agent)

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        return self.offline.for_data(agent, data)
