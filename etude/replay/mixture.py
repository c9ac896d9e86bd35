"""Batches of several replay buffers: in fixed shares, such as recorded and collected transitions, half of every batch
from prior data in Ball et al. 2023, arXiv:2302.02948 (RLPD); beside a run's own replay, for terms of a loss; or an
expert's steps beside rollouts."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from etude.base.checks import Stored
from etude.base.data import RECORDED, Batch, Steps
from etude.base.errors import ConfigError
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.replay.advantages import Advantages
from etude.replay.buffer import Buffer
from etude.replay.ring import Ring
from etude.replay.views import AroundView, discounts


class _BuffersByName:
    """Buffers, and what is done with each of them."""

    buffers: dict[str, Buffer]

    def state(self) -> dict[str, Any]:
        """Arrays and plain data for `restore`, with which rows are drawn alike; see `Buffer.state`."""
        return {name: buffer.state() for name, buffer in self.buffers.items()}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""
        held = saved.fields(self.buffers)
        for name, buffer in self.buffers.items():
            buffer.check_state(held[name])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        for name, buffer in self.buffers.items():
            buffer.restore(state[name])


class MixedReplay(_BuffersByName):
    """A replay of several buffers. Each batch of n holds n * share rows of every buffer, rounded up or down at random
    so that the expected number is exact; the rows of one buffer stand together, in the order of `buffers`.

    buffers: by name; each keeps its selector, its view and its priorities. shares: a positive number for each; they are
        divided by their sum. online: the buffer that `add` and `trim` are for; None: nothing is added.
    rng: of the rounding, part of the state.

    Importance weights of prioritised buffers correct for the priorities and keep the shares. With the shares s and P of
    a row within its buffer of N rows, rows are drawn with probability s P and count as if drawn with s / N: their
    weights are (N P)**-beta, as in one buffer, here divided by the largest of the whole batch. Schaul et al. 2016,
    arXiv:1511.05952, section 3.4; separate priorities and a fixed ratio as in Paine et al. 2019 (R2D3),
    arXiv:1909.01387.
    """

    def __init__(
        self, buffers: Mapping[str, Buffer], shares: Mapping[str, float], rng: np.random.Generator, online: str | None
    ):
        good = buffers and shares.keys() == buffers.keys() and (online is None or online in buffers)
        if not good or not all(math.isfinite(share) and share > 0 for share in shares.values()):
            raise ConfigError(
                f"MixedReplay: buffers {list(buffers)}, shares {dict(shares)}, online = {online!r}; expected a "
                "positive share for each buffer, and the name of one of them, or None."
            )
        extras = {name: sorted(buffer.ring.extras) for name, buffer in buffers.items()}
        if len(set(map(tuple, extras.values()))) > 1:
            raise ConfigError(f"MixedReplay: the buffers store the extras {extras}; expected the same in each.")
        self.buffers: dict[str, Buffer] = dict(buffers)
        self.rng: np.random.Generator = rng
        self._online = online
        total = sum(shares.values())
        self.shares: dict[str, float] = {name: shares[name] / total for name in buffers}
        rows = [buffer.ring.rows for buffer in self.buffers.values()]
        self._first = dict(zip(self.buffers, np.cumsum([0, *rows[:-1]]).tolist(), strict=True))  # in `Batch.index`

    def __len__(self) -> int:
        """How many rows can be sampled."""
        return sum(len(buffer) for buffer in self.buffers.values())

    @property
    def ring(self) -> Ring:
        """The ring of what is collected."""
        return self._collected().ring

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present values of the hyperparameters that selectors and views depend on."""
        for buffer in self.buffers.values():
            buffer.adjust(hyper)

    def add(self, steps: Steps) -> None:
        """Store collected steps."""
        self._collected().add(steps)

    def sample(self, k: int, n: int) -> Batch:
        """k batches of n, stacked: every array is [k, n, ...]. ConfigError where a buffer is empty."""
        parts, places = [], []
        for name, drawn, at in self._drawn(k, n):
            part = self.buffers[name].sample(*at.shape)
            weight = self.buffers[name].importance(part)
            parts.append(dataclasses.replace(part, weight=weight, index=part.index + drawn))
            places.append(at.reshape(-1))
        order = np.concatenate(places)  # among the k * n rows, the places of the rows of all parts
        every_batch = all(len(part.index) == k for part in parts)  # has as many rows of each buffer

        def join(*leaves: np.ndarray) -> np.ndarray:
            if every_batch:
                return np.concatenate(leaves, 1)
            found = np.empty((k * n, *leaves[0].shape[2:]), leaves[0].dtype)
            start = 0
            for leaf in leaves:
                end = start + leaf.shape[0] * leaf.shape[1]
                found[order[start:end]] = leaf.reshape(end - start, *leaf.shape[2:])
                start = end
            return found.reshape(k, n, *leaves[0].shape[2:])

        batch = parts[0].map(join, *parts[1:])
        return dataclasses.replace(batch, weight=batch.weight / batch.weight.max(1, keepdims=True))

    def _drawn(self, k: int, n: int) -> Iterator[tuple[str, int, np.ndarray]]:
        """For each buffer, and each number m of its rows in a batch: (its name, where its rows begin in `Batch.index`,
        the places [batches, m] of these rows among all k * n)."""
        # Systematic sampling: with one uniform number for each batch, all counts are rounded shares that sum to n.
        ends = n * np.cumsum(list(self.shares.values()))
        ends[-1] = n
        edges = np.floor(np.concatenate([np.zeros((k, 1)), ends + self.rng.random((k, 1))], 1)).astype(np.int64)
        edges[:, -1] = n
        counts = np.diff(edges)
        for i, name in enumerate(self.buffers):
            for count in np.unique(counts[:, i]).tolist():
                if count:
                    batches = np.flatnonzero(counts[:, i] == count)
                    at = (batches * n + edges[batches, i])[:, None] + np.arange(count)
                    yield name, self._first[name], at

    def update(self, batches: Batch, td_error: np.ndarray, ratio: np.ndarray | None = None) -> None:
        """Report errors, and probability ratios, [k, n] of sampled batches to the buffers that they are from."""
        for name, buffer in self.buffers.items():
            rows = batches.index - self._first[name]
            own = (rows >= 0) & (rows < buffer.ring.rows)
            buffer.selector.update(rows[own], td_error[own], None if ratio is None else ratio[own])

    def trim(self, keep: int | np.ndarray) -> None:
        """Forget all but the newest `keep` collected rows, counted over all columns."""
        self._collected().trim(keep)

    def clear(self) -> None:
        """Forget all collected rows."""
        self._collected().clear()

    def close(self) -> None:
        """Remove the files of rings in folders; nothing may be used afterwards."""
        for buffer in self.buffers.values():
            buffer.close()

    def state(self) -> dict[str, Any]:
        """That of the buffers, those of recorded rows among them, and the generator."""
        return {"buffers": super().state(), "generator": generator_state(self.rng)}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""
        held = saved.fields(("buffers", "generator"))
        super().check_state(held["buffers"])
        check_generator(held["generator"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        super().restore(state["buffers"])
        restore_generator(self.rng, state["generator"])

    def _collected(self) -> Buffer:
        if self._online is None:
            raise ConfigError("This mixture holds recorded data alone; nothing is collected for it.")
        return self.buffers[self._online]


FIELDS = ("observation", "action", "reward", "discount", "next_observation", "weight")


class RecordedTerms(_BuffersByName):
    """The recorded transitions of the terms of a loss, drawn for each gradient step.

    buffers: by term. sizes: how many transitions a gradient step gets of each.
    """

    def __init__(self, buffers: dict[str, Buffer], sizes: dict[str, int]):
        self.buffers: dict[str, Buffer] = buffers
        self._sizes = sizes

    def added_to(self, batches: Batch, k: int, hyper: dict[str, float]) -> Batch:
        """k batches with as many of the recorded transitions of each term, in the extra that holds these."""
        drawn: dict[str, Any] = {}
        for name, buffer in self.buffers.items():
            buffer.adjust(hyper)
            sampled = buffer.sample(k, self._sizes[name])
            drawn[name] = {field: getattr(sampled, field) for field in FIELDS}
        return dataclasses.replace(batches, extras={**batches.extras, RECORDED: drawn})


class Demonstrations(AroundView):
    """Advantages of learned rewards, with next observations, and as the extra `expert` as many steps of an expert: a
    dict of `observation`, `action`, `next_observation` and `discount`. The rewards in the ring are not read.

    expert: the recorded steps; sampled at every call.
    reward: `reward(observations, actions, next observations, discounts) -> [M]`, called once for all rows, and again
        only after the ring or gamma changed, so that one learning phase has the rewards of one model.
    """

    def __init__(self, advantages: Advantages, expert: Buffer, reward: Callable[..., np.ndarray]):
        self.view, self._expert, self._reward = advantages, expert, reward
        self._basis: tuple[object, ...] = ()
        self._ring: Any = None  # the ring with learned rewards

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma and lambda."""
        super().adjust(hyper)
        self._expert.adjust(hyper)

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        basis = (ring, ring.version, self.view.gamma)
        if basis != self._basis:
            self._ring, self._basis = self._relabelled(ring), basis
        batch, expert = self.view(self._ring, rows, weight), self._expert.sample(*rows.shape)
        names = ("observation", "action", "next_observation", "discount")
        return dataclasses.replace(
            batch,
            next_observation=ring.following(rows),
            extras=batch.extras | {"expert": {name: getattr(expert, name) for name in names}},
        )

    def _relabelled(self, ring: Ring) -> Ring:
        """The same arrays with another array of rewards; the collected rewards stay as they are."""
        rows = ring.locate(np.arange(len(ring)))
        discount = discounts(self.view.gamma).take(ring.kind.take(rows))
        relabelled = copy.copy(ring)
        relabelled.reward = np.zeros(ring.rows, np.float32)
        relabelled.reward[rows] = self._reward(
            ring.observation(rows), ring.actions(rows), ring.following(rows), discount
        )
        return relabelled

    def state(self) -> dict[str, Any]:
        """The expert's steps, and the generator that they are drawn with."""
        return {"expert": self._expert.state()}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this."""
        self._expert.check_state(saved.fields(("expert",))["expert"])

    def restore(self, state: dict[str, Any]) -> None:
        self._expert.restore(state["expert"])
