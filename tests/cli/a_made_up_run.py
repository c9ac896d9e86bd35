"""A stand-in for `etude.run.Run` that takes no step: it tells made-up events and saves tiny checkpoints."""

from __future__ import annotations

from types import SimpleNamespace

from gymnasium.spaces import Discrete

from etude.base.data import EpisodeEnd
from etude.base.events import Collected, Evaluated, Finished, Saved, Started
from etude.report import RunHistory


class MadeUpRun:
    def __init__(self, directory, step=0, reason="steps", best=120.0):
        self.directory, self.reason = directory, reason
        self.step = step
        self.learner = SimpleNamespace(progress=SimpleNamespace(best=best, total=1_000))
        self.algorithm, self.environment = "dqn", "CartPole-v1"
        self.asked, self.chief, self.group = None, True, None
        self.history = RunHistory()
        self.engine = SimpleNamespace(spaces=SimpleNamespace(observation=Discrete(2)))

    def description(self):
        return {
            "algorithm": "dqn",
            "environment": "CartPole-v1",
            "setup": {"seed": 5},
            "total": self.learner.progress.total,
        }

    def train(self, steps, report, schedule):
        self.asked = (steps, vars(schedule))
        first, last = self.step, self.step + steps
        self.step = last
        path = str(self.directory.save(last, {"progress": {"step": last}}))
        finished = Finished(last, self.reason, 1.0, {})
        for event in (
            Started(first, self.description()),
            Collected(last, (EpisodeEnd(0, 0, 9, 9.0, False),), 0.1),
            Evaluated(last, (100.0, 140.0), (100, 140), True),
            Saved(last, path, "last"),
            finished,
        ):
            for reporter in report:
                reporter(event)
        return finished
