"""Watching a run through its public seams: the losses that it asks an agent for, and its events.

A watched agent notes each batch that it is asked to learn from, as arrays of NumPy, with the hyperparameters of that
gradient step, while `watch` runs. Run it on torch, which calls `loss` once for each gradient step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

import etude
from etude.base.data import EpisodeEnd, Steps
from etude.base.events import Adjusted, Collected, Event, Learned

NOTED: list[GradientStep] = []  # what agents in this process were asked since `watch` took it last


@dataclass(frozen=True)
class GradientStep:
    """One call of `loss`: a batch, the present hyperparameters, and what the agent adds about itself."""

    observation: Any
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    next_observation: Any
    weight: np.ndarray
    extras: dict[str, Any]
    hyper: dict[str, float]
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """A learning phase: at which environment step, its gradient steps, and what the run reported."""

    step: int
    gradient_steps: int  # since the run began
    calls: tuple[GradientStep, ...]
    losses: dict[str, float]
    metrics: dict[str, float]
    adjusted: tuple[Adjusted, ...]


@dataclass(frozen=True)
class Collection:
    """What was collected between two learning phases, in arrays of its own."""

    step: int  # after it
    steps: tuple[Steps, ...]
    episodes: tuple[EpisodeEnd, ...]


class Watched:
    """A mixin before a class of agents: notes what `loss` is called with."""

    config: Any

    def loss(self, batch: Any, noise: dict[str, Any]) -> etude.Losses:
        if isinstance(batch.weight, torch.Tensor):  # and not of a worker, or of a check of shapes
            NOTED.append(self.note(batch))
        return super().loss(batch, noise)  # type: ignore[misc]

    def note(self, batch: Any) -> GradientStep:
        """What to note of a batch."""
        names = ("observation", "action", "reward", "discount", "next_observation", "weight", "extras")
        arrays = {name: in_numpy(getattr(batch, name)) for name in names}
        return GradientStep(**arrays, hyper=numbers_of(self.config), more=self.more(batch))

    def more(self, batch: Any) -> dict[str, Any]:
        """What else to note, by name, in NumPy."""
        return {}


def watch(run: etude.Run, steps: int, **arguments: Any) -> list[Collection | Phase]:
    """Train, and tell what was collected and what was learned from, in the order in which that happened."""
    return list(watched_events(run.steps(steps, **arguments)))


def watched_events(events: Iterable[Event]) -> Iterator[Collection | Phase]:
    """What was collected and learned, as a run's events come."""
    NOTED.clear()
    for event in events:
        found = _of(event)
        if found is not None:
            yield found


def _of(event: Event) -> Collection | Phase | None:
    if isinstance(event, Collected):
        return Collection(event.step, tuple(steps.copied() for steps in event.steps), event.episodes)
    if isinstance(event, Learned):
        calls, NOTED[:] = tuple(NOTED), []
        return Phase(event.step, event.gradient_steps, calls, event.losses, event.metrics, event.adjusted)
    return None


def phases(diary: list[Collection | Phase]) -> list[Phase]:
    """The learning phases of what was watched."""
    return [entry for entry in diary if isinstance(entry, Phase)]


def calls(diary: list[Collection | Phase]) -> list[GradientStep]:
    """The gradient steps of what was watched."""
    return [call for phase in phases(diary) for call in phase.calls]


def in_numpy(tree: Any) -> Any:
    """A tree of tensors in NumPy, in arrays of its own."""
    if isinstance(tree, dict):
        return {name: in_numpy(part) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(in_numpy(part) for part in tree)
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu().numpy().copy()
    return None if tree is None else np.array(tree)


def numbers_of(config: Any) -> dict[str, float]:
    """The numbers of a config."""
    found = {own.name: getattr(config, own.name) for own in fields(config)}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float | torch.Tensor)}
