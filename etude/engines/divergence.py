"""Whether learning diverges: what its losses report after every learning phase, and now and then the trained weights.

Bounds are relative to the run's own start, and wide. In runs of 10,000 to 20,000 steps (torch, one seed: DQN and PPO on
CartPole, PPO and SAC on Pendulum) losses and norms of gradients grew at most 19 times above their early scale, weights
32 times above theirs; both largest in SAC.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np

from etude.base.events import Learned
from etude.protocols import Weights

EARLY = 10  # learning phases whose largest loss, or norm of gradients, is the scale of the run
GROWTH = 1e5  # above that scale, which counts as 1 at least
WEIGHT_GROWTH = 1e3  # of the root mean square of a weight above its initial one, which counts as 0.1 at least
CLIPPED = 0.95  # the fraction of clipped steps above which next to nothing is learned
ENTROPY_LEFT = 1e-4  # the fraction of its first entropy below which a policy of choices no longer explores
PATIENCE = 5  # learning phases in a row for the two fractions
LOOK_EVERY = 100  # gradient steps between two looks at the weights
RECOVERED = 1_000  # learning phases without a finding after which it is reported again
_LARGEST = sys.float_info.max
LOWER_RATE = "Learning has probably diverged: lower learning_rate or set max_gradient_norm, and go on from an earlier "
LOWER_RATE += "checkpoint."


class Divergence:
    """Reports each kind of divergence once, and again when it comes back after it was gone.

    read: the trained weights by name; those at the start are the scale of later ones.
    """

    def __init__(self, read: Callable[[], Weights]):
        self._read = read
        self._initial = {name: _size(weight) for name, weight in read().items()}
        self._bounds: dict[str, tuple[float, float]] = {}  # of each number that is reported
        self._first: dict[str, list[float]] = {}  # its early sizes
        self._streak: dict[str, int] = {}  # how many phases in a row it has been out of its bounds
        self._phase, self._looked_at = 0, -LOOK_EVERY
        self._found_at: dict[str, int] = {}  # kind -> the last phase at which it was found

    def notes(self, learned: Learned) -> list[str]:
        """What to warn of after a learning phase."""
        self._phase += 1
        found: dict[str, str] = {}
        for numbers, scaled in ((learned.losses, True), (learned.metrics, False)):
            for name, value in numbers.items():
                low, high = self._bounds.get(name) or self._learn_bounds(name, value, scaled)
                if low <= value <= high:
                    if self._streak:
                        self._streak.pop(name, None)
                else:
                    found |= self._judge(name, value, low, high)
        if learned.gradient_steps - self._looked_at >= LOOK_EVERY:
            self._looked_at = learned.gradient_steps
            found |= self._of_weights()
        return self._fresh(found) if found else []

    def last_notes(self) -> list[str]:
        """What to warn of when training ends."""
        return self._fresh(self._of_weights()) if self._phase else []

    def explained(self, error: Exception, step: int, gradient_steps: int) -> str:
        """The message of an error about numbers that are not finite, with the step and the first such weight."""
        bad = next((name for name, weight in self._read().items() if not np.isfinite(weight).all()), None)
        state = "All weights are still finite." if bad is None else f"The first weight that is not finite is {bad}."
        return f"At step {step}, after {gradient_steps} gradient steps: {error} {state}"

    def _learn_bounds(self, name: str, value: float, scaled: bool) -> tuple[float, float]:
        """The bounds of a number, which some have only after EARLY phases."""
        own = name.rpartition(".")[2]
        if own == "clip_fraction":
            self._bounds[name] = (-_LARGEST, CLIPPED)
        elif scaled or own.endswith("gradient_norm") or own in ("entropy", "policy_entropy"):
            first = self._first.setdefault(name, [])
            first.append(abs(value))
            if len(first) == EARLY or own.endswith("entropy"):
                most = max(1.0, *first)
                entropy = (ENTROPY_LEFT * first[0], _LARGEST)
                self._bounds[name] = entropy if own.endswith("entropy") else (-GROWTH * most, GROWTH * most)
        else:
            self._bounds[name] = (-_LARGEST, _LARGEST)
        return self._bounds.get(name, (-_LARGEST, _LARGEST))

    def _judge(self, name: str, value: float, low: float, high: float) -> dict[str, str]:
        """The kind and the message of a number that is out of its bounds."""
        if not math.isfinite(value):
            return {"not finite": f"{name} became {value}. {LOWER_RATE}"}
        own = name.rpartition(".")[2]
        if own.endswith("entropy") and value < 0:  # of numbers, not of choices: it may have any sign
            self._bounds[name] = (-_LARGEST, _LARGEST)
            return {}
        if own != "clip_fraction" and not own.endswith("entropy"):
            early = f"it was {high / GROWTH:.3g} at most in the first {EARLY} learning phases"
            return {"scale": f"{name} is {value:.3g}; {early}. {LOWER_RATE}"}
        self._streak[name] = self._streak.get(name, 0) + 1
        if self._streak[name] < PATIENCE:
            return {}
        if own == "clip_fraction":
            return {
                "clipped": f"{name} is {value:.2f}: nearly all steps are beyond the clip range and teach nothing. "
                "Lower learning_rate, or take fewer epochs."
            }
        return {
            "entropy": f"{name} fell from {self._first[name][0]:.3g} to {value:.3g}: the policy no longer explores. "
            "Raise the coefficient of the entropy, or lower learning_rate."
        }

    def _of_weights(self) -> dict[str, str]:
        """The first weight that is not finite, or has grown out of scale."""
        for name, weight in self._read().items():
            size, early = _size(weight), max(self._initial.get(name, 0.0), 0.1)
            if not math.isfinite(size) and not np.isfinite(weight).all():
                return {"not finite": f"The weight {name} is no longer finite. {LOWER_RATE}"}
            if size > WEIGHT_GROWTH * early:
                grown = f"has grown to {size:.3g}, from {self._initial.get(name, 0.0):.3g} (root mean squares)"
                return {"weights": f"The weight {name} {grown}. {LOWER_RATE}"}
        return {}

    def _fresh(self, found: dict[str, str]) -> list[str]:
        """The messages of the kinds that were not reported lately."""
        fresh = [m for kind, m in found.items() if self._phase - self._found_at.get(kind, -RECOVERED) >= RECOVERED]
        self._found_at |= dict.fromkeys(found, self._phase)
        return fresh


def _size(weight: np.ndarray) -> float:
    """The root mean square; infinity where it overflows."""
    flat = np.asarray(weight).reshape(-1)
    return math.sqrt(float(flat.dot(flat)) / max(1, flat.size))
