"""A binary tree of sums, which finds for many masses at once where a running total of its values passes them."""

from __future__ import annotations

import numpy as np

from etude.base.errors import ConfigError, EtudeError

# The nodes of a level this wide and of those above it are few: whole levels are added up, or searched through a
# running total, in less time than it takes to pick single nodes from them.
WIDE = 1024


class SumTree:
    """`size` values of at least 0, float64. Node 1 is the total; the children of node i are 2 i and 2 i + 1.

    Every node is exactly the rounded sum of its children after any number of changes: errors never build up.
    """

    def __init__(self, size: int):
        if size < 1:
            raise ConfigError(f"SumTree: size = {size}; expected at least 1 value.")
        self.size = size
        self.depth: int = (size - 1).bit_length()
        self.nodes: np.ndarray = np.zeros(2 << self.depth)
        self._first = 1 << self.depth  # the node of value 0
        self._pairs = self.nodes.reshape(-1, 2)  # row i: the children of node i
        self._top = min(self._first, WIDE)  # nodes of the level that searches start from
        self._running = np.zeros(self._top + 1)

    @property
    def total(self) -> float:
        return float(self.nodes[1])

    def values(self, leaves: np.ndarray) -> np.ndarray:
        """The values [m] at `leaves` [m]."""
        return self.nodes.take(leaves + self._first)

    def set(self, leaves: np.ndarray, values: np.ndarray) -> None:
        """Change the values at `leaves` [m] to `values` [m]. Of a leaf that is named twice, the last value counts.

        ConfigError, and nothing changed, where a leaf is not in [0, size) or a value is negative, NaN or infinite.
        """
        if not len(leaves):
            return
        if leaves.min() < 0 or leaves.max() >= self.size:
            raise ConfigError(
                f"SumTree: leaves from {leaves.min()} to {leaves.max()}; expected numbers from 0 to {self.size - 1}."
            )
        _require_values(values)
        nodes = leaves + self._first
        put_last(self.nodes, nodes, values)
        level = self._first
        while level > max(WIDE, 8 * len(nodes)):
            level >>= 1
            nodes >>= 1
            pairs = self._pairs.take(nodes, 0)
            self.nodes[nodes] = pairs[:, 0] + pairs[:, 1]
        self._add_up(level)

    def fill(self, values: np.ndarray) -> None:
        """Change all values, [size]. ConfigError, and nothing changed, where one is negative, NaN or infinite."""
        _require_values(values)
        self.nodes[self._first : self._first + self.size] = values
        self._add_up(self._first)

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The leaves [m] in which the running total of all values passes each of `masses` [m] in [0, total].

        A leaf of value 0 is never among them, however sums and masses were rounded. ConfigError where all values are 0.
        """
        if not self.nodes[1] > 0:
            raise ConfigError("SumTree: every value is 0; expected one above 0. Set values before you look for any.")
        top, running = self._top, self._running
        np.cumsum(self.nodes[top : 2 * top], out=running[1:])
        nodes = running[1:].searchsorted(masses, "right")
        np.minimum(nodes, running[1:].searchsorted(running[-1]), out=nodes)  # the last one that adds anything
        rest = masses - running.take(nodes)
        nodes += top
        starts, begun = nodes.copy(), rest.copy()
        for _ in range(self.depth - top.bit_length() + 1):
            nodes += nodes
            left = self.nodes.take(nodes)
            right = rest >= left
            rest -= left * right
            nodes += right
        lost = self.nodes.take(nodes) == 0
        if lost.any():  # sums that were rounded differently led beyond the last value of a part
            nodes[lost] = [self._descend(*start) for start in zip(starts[lost], begun[lost], strict=True)]
        return nodes - self._first

    def check(self) -> None:
        """Raise EtudeError where a node is not the sum of its children, or a value is not one."""
        faults = []
        inner = np.flatnonzero(self._pairs[1:].sum(1) != self.nodes[1 : self._first]) + 1
        if len(inner):
            faults.append(f"{len(inner)} nodes are not the sums of their children, the first of them {inner[0]}")
        leaves = self.nodes[self._first :]
        if not (np.isfinite(leaves) & (leaves >= 0)).all() or leaves[self.size :].any():
            faults.append("there are values that are negative, not finite, or beyond the size")
        if faults:
            raise EtudeError("The sum tree is inconsistent: " + "; ".join(faults) + ".")

    def _add_up(self, level: int) -> None:
        """Recompute all nodes above the level that begins with node `level`."""
        while level > 1:
            below, level = level, level >> 1
            children = self.nodes[below : 2 * below]
            np.add(children[::2], children[1::2], out=self.nodes[level:below])

    def _descend(self, node: int, rest: float) -> int:
        """As `find` from one node on, but never into a part whose values are all 0."""
        while node < self._first:
            left, right = self._pairs[node]
            node = 2 * node
            if rest >= left and right > 0:
                node, rest = node + 1, rest - left
        return node


def put_last(array: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """`array[places] = values`; of a place that is named twice the last value counts, which NumPy does not promise."""
    array[places] = values
    if not np.array_equal(array.take(places), values):
        _, back = np.unique(places[::-1], return_index=True)
        last = len(places) - 1 - back
        array[places[last]] = values[last]


def _require_values(values: np.ndarray) -> None:
    if not (values.min() >= 0 and values.max() < np.inf):
        raise ConfigError(
            f"SumTree: values from {values.min()} to {values.max()}; expected finite numbers of at least 0."
        )
