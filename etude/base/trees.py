"""Trees of arrays: an array, or dicts, tuples and named tuples of trees, nested to any depth.

A Dict observation is a dict of arrays, a Tuple observation a tuple. Every container of etude handles such trees
through the functions below and nowhere else. Dict keys are visited in sorted order, as JAX does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

Tree = Any  # an array, or a dict[str, Tree], or a tuple of Tree


def map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to the corresponding leaves of trees of one structure; returns a tree of that structure."""
    if isinstance(tree, np.ndarray):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {key: map(function, tree[key], *(other[key] for other in others)) for key in sorted(tree)}
    if isinstance(tree, tuple):
        parts = [map(function, part, *(other[i] for other in others)) for i, part in enumerate(tree)]
        return tuple(parts) if type(tree) is tuple else type(tree)(*parts)
    return function(tree, *others)


def items(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `(path, leaf)`; a path joins keys and positions with dots, as in `camera.0`; a lone array has path ''."""
    if isinstance(tree, dict):
        pairs: Any = [(key, tree[key]) for key in sorted(tree)]
    elif isinstance(tree, tuple):
        pairs = enumerate(tree)
    else:
        yield prefix, tree
        return
    for key, part in pairs:
        yield from items(part, f"{prefix}.{key}" if prefix else str(key))


def leaves(tree: Tree) -> list[Any]:
    """The leaves of a tree, in the order of `items`."""
    return [leaf for _, leaf in items(tree)]


def from_items(structure: Tree, leaves: Mapping[str, Any]) -> Tree:
    """The tree of this structure whose leaves have the paths of `items`."""
    found = iter([leaves[path] for path, _ in items(structure)])
    return map(lambda _: next(found), structure)


def rows(tree: Tree, index: Any) -> Tree:
    """`leaf[index]` for every leaf."""
    if isinstance(tree, np.ndarray):
        return tree[index]
    return map(lambda leaf: leaf[index], tree)


def put(tree: Tree, index: Any, value: Tree) -> None:
    """`leaf[index] = value` for every leaf, in place."""
    if isinstance(tree, np.ndarray):
        tree[index] = value
        return
    map(lambda leaf, new: leaf.__setitem__(index, new), tree, value)


def flat(tree: Tree) -> Tree:
    """Leaves [A, B, ...] as [A * B, ...]."""
    return map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def stack(trees: list[Tree]) -> Tree:
    """Stack trees of one structure along a new first axis."""
    return map(lambda *parts: np.stack(parts), *trees)


def concatenate(trees: list[Tree], axis: int = 0) -> Tree:
    """Join trees of one structure along an axis that they have."""
    return map(lambda *parts: np.concatenate(parts, axis), *trees)


def count_bytes(tree: Tree) -> int:
    """Bytes held by the leaves."""
    return sum(leaf.nbytes for leaf in leaves(tree))
