"""Which copy of a policy an episode is played against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.base.data import Choice
from etude.base.spaces import Space
from etude.protocols import Explorer

COPY = "copy"  # the extra with the number of the copy that acted: [N] float32


@dataclass(frozen=True)
class SampledOpponent:
    """Draws the copy that an environment plays its episode against, by the chances in `output` (`LeagueOutput`), and
    lets `inner` choose among what that copy returns. The number of the copy is the extra `copy`.

    newest: take the newest copy instead, for evaluations.
    """

    inner: Explorer
    newest: bool = False

    @property
    def state_size(self) -> int:
        return 1 + self.inner.state_size  # the number of the copy, and what the inner explorer keeps

    def of(self, columns: np.ndarray) -> SampledOpponent:
        return replace(self, inner=self.inner.of(columns))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """Step by step, so that chunks of any length give the same numbers."""
        drawn = [np.append(rng.random(1, np.float32), self.inner.draw(rng, 1, action_space)[0]) for _ in range(steps)]
        return np.stack(drawn) if drawn else self.draw(np.random.default_rng(0), 1, action_space)[:0]

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        numbers, sums = output.numbers, np.cumsum(output.chances, dtype=np.float64)
        fresh = ~np.isin(state[:, 0], numbers)  # NaN where an episode begins
        slots = np.searchsorted(sums, noise[fresh, 0] * sums[-1], side="right").clip(max=len(numbers) - 1)
        state[fresh, 0] = numbers.max() if self.newest else numbers[slots]
        playing = np.argmax(state[:, :1] == numbers, 1)
        parts = [np.flatnonzero(playing == slot) for slot in np.unique(playing)]
        choices = []
        for rows in parts:
            remembered = state[rows, 1:]
            choices.append(self.inner(output.act(int(playing[rows[0]]), rows), noise[rows, 1:], step, remembered))
            state[rows, 1:] = remembered
        order = np.argsort(np.concatenate(parts))
        extras = {name: np.concatenate([c.extras[name] for c in choices])[order] for name in choices[0].extras}
        action = np.concatenate([choice.action for choice in choices])[order]
        return Choice(action, {**extras, COPY: state[:, 0].astype(np.float32)})
