"""Tuning: studies, which try hyperparameters of an algorithm in trials.

study = Study("ppo", "CartPole-v1", {"learning_rate": Log(1e-5, 1e-2)}, trials=20, scheduler=ASHA(), jobs=2)
study.run()
print(study.best.values)
"""

from etude.tuning.executors import Executor, ProcessExecutor, RayExecutor, SerialExecutor
from etude.tuning.finding import LRFinder, LRSuggestion, OptFinder, ParallelFinder
from etude.tuning.results import Result
from etude.tuning.schedulers import ASHA, PBT, Fifo, GridSearch, MedianStopping, OptunaSearch, RandomSearch
from etude.tuning.segment import TrialTraining
from etude.tuning.space import Choices as Choice
from etude.tuning.space import LogInterval as Log
from etude.tuning.space import Space
from etude.tuning.space import UniformInterval as Uniform
from etude.tuning.study import Study
from etude.tuning.sweep import Sweep, SweepResult
from etude.tuning.trial import (
    Configuration,
    Copy,
    Genome,
    Go,
    New,
    Scheduler,
    Score,
    Search,
    Stop,
    StudyPlan,
    StudyState,
    Trial,
)  # fmt: skip

__all__ = [
    "ASHA", "Choice", "Configuration", "Copy", "Executor", "Fifo", "Genome", "Go", "GridSearch", "LRFinder",
    "LRSuggestion", "Log", "MedianStopping", "New", "OptFinder", "OptunaSearch", "PBT", "ParallelFinder",
    "ProcessExecutor", "RandomSearch", "RayExecutor", "Result", "Scheduler", "Score", "Search", "SerialExecutor",
    "Space", "Stop", "Study", "StudyPlan", "StudyState", "Sweep", "SweepResult", "Trial",
    "TrialTraining", "Uniform",
]  # fmt: skip
