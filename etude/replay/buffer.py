"""The replay buffer: a ring of rows, a selector that samples rows, a view that makes a batch of them; and a saved one
in a ring of another size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Batch, Steps
from etude.base.errors import CheckpointError, ConfigError
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.replay.observations import numbers
from etude.replay.ring import TERMINATED, TRUNCATED, Ring
from etude.replay.selectors import NewFirst, Prioritised, Selector

PORTION = 4096  # rows that are copied at once


def _ring_as_saved(ring: Ring, saved: Stored) -> Ring:
    """A ring like this one, with the capacity and the number of environments that are saved; the ring itself where they
    are its own. CheckpointError where the two differ in more."""
    if not isinstance(saved.value, dict) or not isinstance(saved.value.get("built"), dict):
        return ring  # which says what is wrong
    built, own = saved.table()["built"].table(), ring.built()
    shape = ("capacity", "environments")
    if not set(shape) <= built.keys() or all(built[name].value == own[name] for name in shape):
        return ring
    environments = built["environments"].whole(1)
    extras = {name: (array.shape[1:], array.dtype) for name, array in ring.extras.items()}
    try:
        return Ring(
            ring.spaces, built["capacity"].whole(environments), environments, extras, ring.frame_stack,
            ring.reward.shape[1:],
        )  # fmt: skip
    except ConfigError as error:
        raise CheckpointError(f"The saved replay is of another size, and to copy it takes memory: {error}") from error


def copy_rows(old: Ring, new: Ring) -> tuple[np.ndarray, np.ndarray]:
    """Fill an empty ring with the newest rows of another one that it has room for: (rows there, rows here), flat.

    Columns go on where both rings have as many. Else episodes are dealt out, the oldest first, to the column with the
    fewest rows; those that are open end where they are, as truncations, and so do those that fill a column, whose other
    rows begin the next one.
    """
    columns = [old.oldest(np.where(np.arange(old.environments) == c, old.filled, 0)) for c in range(old.environments)]
    there, here, cuts = [], [], np.zeros(0, np.int64)
    if old.environments != new.environments:
        columns, cuts = _dealt_out(old, columns, new.environments, new.limit)
    for column, rows in enumerate(columns):
        rows = rows[-new.limit :]
        for start in range(0, len(rows), PORTION):
            part = rows[start : start + PORTION]
            written = new.add(_steps(old, part, column, np.isin(part, cuts)))
            there.append(part)
            here.append(np.arange(written.start, written.stop) if isinstance(written, slice) else written)
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *there]), np.concatenate([nothing, *here])


def _dealt_out(old: Ring, columns: list[np.ndarray], count: int, limit: int) -> tuple[list[np.ndarray], np.ndarray]:
    """(the rows of so many columns of at most `limit`, from those of the columns of another ring; the last row of each
    episode or part of one)."""
    ages = np.concatenate([np.arange(len(rows), 0, -1) for rows in columns])
    newest = np.zeros(len(ages), bool)
    newest[np.argsort(ages, kind="stable")[: count * limit]] = True
    starts = np.cumsum([len(rows) for rows in columns])[:-1]
    pieces = []
    for rows in (rows[kept] for rows, kept in zip(columns, np.split(newest, starts), strict=True)):
        ends = np.flatnonzero(old.kind[rows[:-1]]) + 1
        pieces += [(len(rows) - start, piece) for start, piece in zip([0, *ends], np.split(rows, ends), strict=True)]
    found: list[list[np.ndarray]] = [[] for _ in range(count)]
    sizes = np.zeros(count, np.int64)
    for _, left in sorted(pieces, key=lambda each: -each[0]):
        while len(left):
            column = int(sizes.argmin())
            part, left = np.split(left, [limit - sizes[column]])
            found[column].append(part)
            sizes[column] += len(part)
    nothing = np.zeros(0, np.int64)
    return [np.concatenate([nothing, *parts]) for parts in found], np.array([own[-1] for each in found for own in each])


def _steps(old: Ring, rows: np.ndarray, column: int, cut: np.ndarray) -> Steps:
    """Rows [T] of a ring as steps of one environment. cut: [T] which of them end there, if not otherwise."""
    reward, kind = old.outcome(rows)
    truncated = (kind & TRUNCATED != 0) | ((kind == 0) & cut)
    ended = np.flatnonzero((kind & TERMINATED != 0) | truncated)
    observation, following = old.pair(rows)
    extras: dict[str, Any] = {name: array[:, None] for name, array in old.stored(rows).items()}
    return Steps(
        observation=trees.map(lambda leaf: leaf[:, None], observation), action=old.actions(rows)[:, None],
        reward=reward[:, None], terminated=(kind & TERMINATED != 0)[:, None], truncated=truncated[:, None],
        next_observation=old.observation(old.ahead(rows[-1:])), final_observation=trees.rows(following, ended),
        final_index=np.stack([ended, np.zeros_like(ended)], 1), columns=np.array([column]), restarted=np.zeros(1, bool),
        extras=extras,
    )  # fmt: skip


class View(Protocol):
    """Makes batches of the rows of a ring."""

    def adjust(self, hyper: Mapping[str, float]) -> None: ...

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch: ...

    def state(self) -> dict[str, Any]: ...

    def check_state(self, saved: Stored) -> None: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Buffer:
    """Ring x selector x view. `rng` is the buffer's own and part of its state. fixed: a saved ring of another size
    is refused, as it is one of other recorded data."""

    def __init__(self, ring: Ring, selector: Selector, view: View, rng: np.random.Generator, fixed: bool = False):
        self.selector: Selector = selector
        self.view: View = view
        self.rng: np.random.Generator = rng
        self.ring: Ring = ring
        self._fixed = fixed

    def __len__(self) -> int:
        """How many rows can be sampled."""
        return len(self.ring)

    def share(self, ring: Ring) -> None:
        """Store into this ring of another buffer, and sample from it, in the place of its own; selector, view and
        generator stay. ConfigError where the rings differ, or the selector has to know of every row that is stored."""
        if isinstance(self.selector, Prioritised):
            raise ConfigError(
                f"A buffer with the selector {type(self.selector).__name__} cannot share its ring: others store rows "
                "without a priority there. Sample uniformly (priority_exponent=0)."
            )
        own, other = self.ring.built(), ring.built()
        if differ := [
            f"{name} is {own[name]!r}, shared is {other[name]!r}" for name in own if own[name] != other[name]
        ]:
            raise ConfigError(f"A buffer can share a ring of the same rows and columns only: {'; '.join(differ)}.")
        self.ring = ring

    @property
    def full(self) -> bool:
        """Whether every column is: a rollout is complete, or old rows are being overwritten."""
        return self.ring.full

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present values of the hyperparameters that the selector and the view depend on."""
        self.selector.adjust(hyper)
        self.view.adjust(hyper)

    def add(self, steps: Steps) -> None:
        """Store steps. Their extra `priority` [T, N], where they have it, is reported as the errors of the new rows,
        but where it is NaN."""
        rows = self.ring.add(steps)
        self.selector.added(self.ring, rows)
        if "priority" in steps.extras:
            errors, new = steps.extras["priority"].reshape(-1), numbers(rows)
            errors = errors[len(errors) - len(new) :]  # the last ones stay, of more steps than the ring holds
            known = ~np.isnan(errors)
            if known.any():
                self.selector.update(new[known], errors[known])

    def sample(self, k: int, n: int) -> Batch:
        """k batches of n, stacked: every array is [k, n, ...]. ConfigError where there is nothing to sample from."""
        if not len(self.ring):
            raise ConfigError("The replay is empty; add steps before sampling from it.")
        rows, weight = self.selector.select(self.ring, k, n, self.rng)
        return self.view(self.ring, rows, weight)

    def importance(self, batches: Batch) -> np.ndarray:
        """Importance weights [k, n] of the batches that were sampled last, before they are divided by the largest of
        their batch: what weights of several buffers are compared by."""
        return self.selector.importance(self.ring, batches.index)

    def update(self, batches: Batch, td_error: np.ndarray, ratio: np.ndarray | None = None) -> None:
        """Report errors, and probability ratios, [k, n] of sampled batches; selectors without priorities ignore them.

        To be called before rows are added: those that are overwritten would get the errors of what was there before.
        """
        self.selector.update(batches.index, td_error, ratio)

    def trim(self, keep: int | np.ndarray) -> None:
        """Forget all but the newest `keep` rows, counted over all columns; or so many of each column, [N]."""
        gone = self.ring.trim(keep)
        if len(gone):
            self.selector.removed(self.ring, gone)

    def clear(self) -> None:
        """Forget all rows, as on-policy learning does after each phase."""
        self.ring.clear()
        self.selector.removed(self.ring, slice(0, self.ring.rows))

    def close(self) -> None:
        """Remove the files of a ring in a folder; the buffer must not be used afterwards."""
        self.ring.close()

    def state(self) -> dict[str, Any]:
        """Arrays and plain data for `restore`. The arrays are views of the ring: write them before the next `add`."""
        return {
            "ring": self.ring.state(),
            "selector": self.selector.state(),
            "view": self.view.state(),
            "generator": generator_state(self.rng),
        }

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""
        held = saved.fields(("ring", "selector", "view", "generator"))
        ring = self.ring if self._fixed else _ring_as_saved(self.ring, held["ring"])
        stored = ring.check_state(held["ring"])
        anew = _begins_anew(self.selector, held["selector"].value)
        if ring is self.ring and not anew:
            self.selector.check_state(held["selector"], stored)
        elif isinstance(self.selector, Prioritised | NewFirst) and not anew:
            self.selector.check_state(held["selector"], stored, ring.rows)
        if not _begins_anew(self.view, held["view"].value):
            self.view.check_state(held["view"])
        check_generator(held["generator"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed: of a buffer like this one, or whose ring, selector or
        view was another. A larger ring gives its newest rows, and a selector or a view without a state begins anew."""
        saved = self.ring if self._fixed else _ring_as_saved(self.ring, Stored(state["ring"], "ring"))
        saved.restore(state["ring"])
        selected = None if _begins_anew(self.selector, state["selector"]) else state["selector"]
        if saved is not self.ring:
            self.clear()
            there, here = copy_rows(saved, self.ring)
            if isinstance(self.selector, Prioritised | NewFirst) and selected is not None:
                selected = self.selector.moved(selected, there, here)
            else:
                selected = None
        if selected is None:
            self.selector.removed(self.ring, slice(0, self.ring.rows))
            self.selector.added(self.ring, self.ring.oldest(self.ring.filled))
        else:
            self.selector.restore(selected)
        if not _begins_anew(self.view, state["view"]):
            self.view.restore(state["view"])
        restore_generator(self.rng, state["generator"])


def _begins_anew(part: Selector | View, saved: Any) -> bool:
    """Whether one of a part and of what was saved in its place has a state, and the other has none."""
    return (saved == {}) != (part.state() == {})
