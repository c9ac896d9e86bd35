"""The replay buffer: a ring of rows, a selector that samples rows, a view that makes a batch of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from etude.base.checks import Stored
from etude.base.data import Batch, Steps
from etude.base.errors import ConfigError
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.replay.observations import Where, numbers
from etude.replay.prioritised import Prioritised
from etude.replay.resized import copy_rows, ring_as_saved
from etude.replay.ring import Ring
from etude.replay.selectors import Selection, Unprioritised


class View(Protocol):
    """Makes batches of the rows of a ring."""

    reward_scale: Any  # a number; of several agents one for each, too

    def adjust(self, hyper: Mapping[str, float]) -> None: ...

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch: ...

    def state(self) -> dict[str, Any]: ...

    def check_state(self, saved: Stored) -> None: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Selector(Protocol):
    """Samples rows of a ring."""

    def adjust(self, hyper: Mapping[str, float]) -> None: ...

    def select(self, ring: Ring, k: int, n: int, rng: np.random.Generator) -> Selection: ...

    def importance(self, ring: Ring, rows: np.ndarray) -> np.ndarray:
        """Importance weights [k, n] of rows just selected, before they are divided by the largest of their batch."""

    def added(self, ring: Ring, rows: Where) -> None: ...

    def removed(self, ring: Ring, rows: Where) -> None: ...

    def update(self, rows: np.ndarray, errors: np.ndarray, ratios: np.ndarray | None = None) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def check_state(self, saved: Stored, stored: int) -> None:
        """Raise CheckpointError where this is not the state of such a selector from so many stored rows."""

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
        if not isinstance(self.selector, Unprioritised):
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
            self._report(numbers(rows), steps.extras["priority"].reshape(-1))

    def _report(self, rows: np.ndarray, errors: np.ndarray) -> None:
        errors = errors[len(errors) - len(rows) :]  # the last ones stay, of more steps than the ring holds
        known = ~np.isnan(errors)
        if known.any():
            self.selector.update(rows[known], errors[known])

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
        ring = self.ring if self._fixed else ring_as_saved(self.ring, held["ring"])
        stored = ring.check_state(held["ring"])
        anew = _begins_anew(self.selector, held["selector"].value)
        if ring is self.ring and not anew:
            self.selector.check_state(held["selector"], stored)
        elif isinstance(self.selector, Prioritised) and not anew:
            self.selector.check_state(held["selector"], stored, ring.rows)
        if not _begins_anew(self.view, held["view"].value):
            self.view.check_state(held["view"])
        check_generator(held["generator"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed: of a buffer like this one, or whose ring, selector or
        view was another. A larger ring gives its newest rows, and a selector or a view without a state begins anew."""
        saved = self.ring if self._fixed else ring_as_saved(self.ring, Stored(state["ring"], "ring"))
        saved.restore(state["ring"])
        selected = None if _begins_anew(self.selector, state["selector"]) else state["selector"]
        if saved is not self.ring:
            self.clear()
            there, here = copy_rows(saved, self.ring)
            if isinstance(self.selector, Prioritised) and selected is not None:
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
