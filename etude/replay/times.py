"""A part of collected steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from etude.base import trees
from etude.base.data import Steps


def between(steps: Steps, start: int, end: int) -> Steps:
    """The time steps from `start` up to `end`; `next_observation` is what follows them."""
    times = steps.shape[0]
    finals = (steps.final_index[:, 0] >= start) & (steps.final_index[:, 0] < end)
    return replace(
        steps,
        observation=trees.rows(steps.observation, slice(start, end)),
        action=steps.action[start:end],
        reward=steps.reward[start:end],
        terminated=steps.terminated[start:end],
        truncated=steps.truncated[start:end],
        next_observation=steps.next_observation if end == times else trees.rows(steps.observation, end),
        final_observation=trees.rows(steps.final_observation, finals),
        final_index=steps.final_index[finals] - np.array([start, 0]),
        restarted=steps.restarted if start == 0 else np.zeros_like(steps.restarted),
        extras={name: array[start:end] for name, array in steps.extras.items()},
    )
