"""How much of an agent's networks still works: measured while it learns, as metrics of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.base import checks, trees
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.events import Finished, Started
from etude.engines.activations import ActivationSample, Inputs, in_numpy, layer_inputs
from etude.networks.layers import labelled, unflattened
from etude.training.callbacks import Callback
from etude.training.learner import Learner

HIDDEN = 2**36  # labels of units begin here, those of observations are smaller
LAYER = 2**20  # labels from one layer to the next


class Plasticity(Callback):
    """Measures the networks of a run while it learns: metrics `train/<network>_dormant`, `_effective_rank` and
    `_weight_norm`, for each network that a loss trains. Training goes on with the same numbers.

    every: gradient steps between two measurements, each with the weights after a learning phase and on the steps that
        it learned from, up to `rows` of them.
    tau: a unit is dormant whose mean absolute activation is at most this part of the mean over its layer. Sokar et al.
        2023, arXiv:2302.12902, equation 1.
    delta: the effective rank is the least number of singular values of the last hidden layer's activations whose sum is
        1 - delta of all. Kumar et al. 2021, arXiv:2010.14498, section 3.

    Modules of a user's own, and networks of a loss that NumPy cannot compute, have a weight norm alone.
    """

    def __init__(self, every: int = 1_000, tau: float = 0.025, delta: float = 0.01, rows: int = 512):
        for name, count in {"every": every, "rows": rows}.items():
            checks.whole_number(f"Plasticity: {name}", count)
        for name, part in {"tau": tau, "delta": delta}.items():
            if not 0 <= part < 1:
                raise ConfigError(f"Plasticity: {name} = {part!r}; expected a number from 0 to below 1.")
        self.every: int = every
        self.tau: float = tau
        self.delta: float = delta
        self.rows: int = rows

    def on_train_begin(self, run: Any, event: Started) -> None:
        for learner in _learners(run):
            learner.measured_by = [*(each for each in learner.measured_by if each is not self), self]

    def on_train_end(self, run: Any, event: Finished) -> None:
        for learner in _learners(run):
            learner.measured_by = [each for each in learner.measured_by if each is not self]

    def __call__(self, learner: Learner, batches: Any, gradient_steps: int) -> dict[str, float]:
        """The metrics of a learner after so many gradient steps, the last of them on these batches; none where none is
        due."""
        done = learner.progress.gradient_steps
        if (done + gradient_steps) // self.every == done // self.every:
            return {}
        layout: Any = learner.engine.layout
        values, found = learner.engine.weights(), dict[str, float]()
        inputs: Inputs = {}
        if isinstance(batches, Batch) and in_numpy(layout):
            n = max(1, self.rows // learner.agent.config.example_length)  # the first rows of batches [k, B, ...]
            sample = ActivationSample(None, batches.map(lambda leaf: trees.flat(leaf)[:n]))
            inputs = layer_inputs(layout, values, sample)
        for name, part in layout.parts.items():
            trained = [values[f"{name}.{v}"] for v in part.variables if v not in part.frozen]
            if not any(x.ndim > 1 for x in trained):  # no network, or a target network
                continue
            found[f"{name}_weight_norm"] = float(np.sqrt(sum(np.square(x, dtype=float).sum() for x in trained)))
            dormant, ranks = [], []
            for prefix, architecture in part.architectures.items():
                own = {n.removeprefix(prefix): x for n, x in inputs.get(name, {}).items() if n.startswith(prefix)}
                units, features = _activations(architecture, own)
                dormant += [layer <= self.tau * layer.mean(-1, keepdims=True) for layer in units]
                ranks += [self._rank(x) for x in features]
            if dormant:
                found[f"{name}_dormant"] = float(np.concatenate([each.reshape(-1) for each in dormant]).mean())
            if ranks:
                found[f"{name}_effective_rank"] = float(np.mean(ranks))
        return found

    def _rank(self, features: np.ndarray) -> float:
        if not np.isfinite(features).all():
            return float("nan")
        values = np.linalg.svd(features.astype(float), compute_uv=False)
        return int(np.searchsorted(np.cumsum(values), (1 - self.delta) * values.sum())) + 1 if values.any() else 0


def _learners(run: Any) -> list[Learner]:
    return [run.learner] if isinstance(run.learner, Learner) else list(run.learner.of.values())


def _activations(architecture: Any, inputs: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(the mean absolute activations of the units of each hidden layer, [units] or, of several networks in one,
    [members, units]; the activations [N, units] that the last layer reads, of each network), where they were recorded.
    """
    layers = architecture.layer_units()
    if not layers:
        return [], []
    labels = {name: labelled(i, layer.units) for i, (name, layer) in enumerate(layers.items())}
    units: dict[int, np.ndarray] = {}
    features: list[np.ndarray] = []
    for name, read in architecture.input_labels(labels).items():
        if name not in inputs:
            continue
        x, read = inputs[name], unflattened(read)
        x = x.reshape(-1, x.shape[-1]) if x.ndim == 4 else x  # pixels of images
        size = np.abs(x).mean(-2, dtype=float)
        for layer in np.unique(read[read >= HIDDEN] - HIDDEN) // LAYER:
            at = (read - HIDDEN) // LAYER == layer
            own, place = np.unique(read[at], return_inverse=True)  # several places where a unit has pixels
            shares = np.eye(len(own))[place] / np.bincount(place)
            units[int(layer)] = size[..., at] @ shares
        if name == list(layers)[-1] and (read >= HIDDEN).any():
            features = [*x] if x.ndim == 3 else [x]
    return list(units.values()), features
