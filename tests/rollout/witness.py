"""What must hold of the steps of environments that label their observations with (environment, episode, t)."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from etude.base.data import Steps


class Witness:
    """Sees that every transition of a rollout is what its label says, comes once and follows the one before."""

    def __init__(self):
        self.seen: set[tuple[int, int, int]] = set()
        self.expected: dict[int, tuple[int, ...]] = {}
        self.episodes: set[tuple[int, int]] = set()
        self.restarts = 0

    def check(self, steps: Steps) -> None:
        finals = {(int(t), int(n)): steps.final_observation[i] for i, (t, n) in enumerate(steps.final_index)}
        ended = steps.terminated | steps.truncated
        assert set(finals) == set(zip(*(index.tolist() for index in np.nonzero(ended)), strict=True))
        assert list(finals) == sorted(finals)
        assert np.array_equal(steps.reward, steps.action.astype(np.float32))
        for n, column in enumerate(steps.columns.tolist()):
            if steps.restarted[n]:
                self.restarts += 1
                self.expected.pop(column, None)
            for t in range(len(steps.reward)):
                label = tuple(int(x) for x in steps.observation[t, n])
                assert label[0] == column
                assert label == self.expected.get(column, label)
                assert label not in self.seen
                self.seen.add(label)
                follows = (label[0], label[1], label[2] + 1)
                if ended[t, n]:
                    assert tuple(finals[t, n]) == follows
                    follows = (label[0], label[1] + 1, 0)
                self.expected[column] = follows
            assert tuple(steps.next_observation[n]) == self.expected[column]
        self._check_episodes(steps)

    def _check_episodes(self, steps: Steps) -> None:
        assert len(steps.episodes) == len(steps.final_index)
        for end, (t, n), final in zip(steps.episodes, steps.final_index, steps.final_observation, strict=True):
            assert (end.environment, end.episode, end.length) == tuple(final)
            assert end.truncated == steps.truncated[t, n]
            assert (end.environment, end.episode) not in self.episodes
            self.episodes.add((end.environment, end.episode))


def assert_same(a: Steps, b: Steps) -> None:
    """Equal to the last bit, with the same types."""
    for field in fields(Steps):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if field.name == "extras":
            assert x.keys() == y.keys()
            assert all(x[k].dtype == y[k].dtype and np.array_equal(x[k], y[k]) for k in x)
        elif isinstance(x, np.ndarray):
            assert (x.dtype, x.shape) == (y.dtype, y.shape), field.name
            assert np.array_equal(x, y), field.name
        else:
            assert x == y, field.name
