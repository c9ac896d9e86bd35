"""What counts as divergence, from what a learning phase reports."""

import numpy as np
import pytest

from etude.base.events import Learned
from etude.engines.divergence import EARLY, PATIENCE, RECOVERED, Divergence


def healthy():
    return {"weight": np.full(4, 0.5, np.float32)}


class Phases:
    """Learning phases of one gradient step each; `weights` are those that are read."""

    def __init__(self):
        self.weights, self.count = healthy(), 0
        self.watch = Divergence(lambda: self.weights)

    def __call__(self, times=1, losses=None, **metrics):
        found = []
        for _ in range(times):
            self.count += 1
            found += self.watch.notes(Learned(self.count, self.count, losses or {}, metrics, 0.0))
        return found


@pytest.fixture
def phases():
    return Phases()


def test_a_loss_far_above_its_first_ones_is_reported_once(phases):
    assert phases(EARLY, {"q": 3.0}) == phases(50, {"q": 1e5}) == []
    (message,) = phases(50, {"q": -1e6})
    assert message.startswith("q is -1e+06; it was 3 at most in the first 10 learning phases. ")


@pytest.mark.parametrize("sign", [1, -1])
def test_the_bound_is_100_000_times_the_largest_early_size_in_both_directions(sign, phases):
    """Of losses and of norms of gradients; sizes below 1 count as 1."""
    own = {"q": (-3.0 * sign, 3e5), "actor": (0.2 * sign, 1e5)}
    assert phases(EARLY, {name: early for name, (early, _) in own.items()}, q_gradient_norm=2.0) == []
    assert phases(1, {name: sign * most for name, (_, most) in own.items()}, q_gradient_norm=2e5) == []
    for name, (_, most) in own.items():
        watch = Phases()
        watch(EARLY, {name: own[name][0]})
        assert len(watch(1, {name: 1.01 * sign * most})) == 1
    assert len(phases(1, q_gradient_norm=2.01e5)) == 1


def test_enormous_losses_of_enormous_rewards_are_no_divergence(phases):
    assert phases(100, {"q": 1e9}, q_gradient_norm=1e9) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_reported_by_name_at_once(bad, phases):
    (message,) = phases(3, {"q": 1.0}, approx_kl=bad)
    assert message.startswith(f"approx_kl became {bad}") and "max_gradient_norm" in message


def test_updates_that_are_all_clipped_are_reported_where_they_last(phases):
    assert phases(PATIENCE - 1, clip_fraction=1.0) == phases(1, clip_fraction=0.9) == []
    (message,) = phases(3 * PATIENCE, **{"ann.clip_fraction": 1.0})
    assert "ann.clip_fraction is 1.00" in message and "Lower learning_rate" in message


def test_an_entropy_that_collapses_is_reported_and_that_of_a_density_is_not(phases):
    assert phases(EARLY, entropy=0.7) == phases(50, entropy=0.01) == []
    (message,) = phases(50, entropy=1e-6)
    assert "entropy fell from 0.7 to 1e-06" in message
    density = Phases()
    assert density(EARLY, entropy=1.4) == density(50, entropy=-3.0) == density(50, entropy=0.0) == []


@pytest.mark.parametrize(("value", "said"), [(1e6, "has grown to 1e+06, from 0.5"), (np.nan, "no longer finite")])
def test_weights_are_looked_at_now_and_then_and_at_the_end(value, said, phases):
    phases(1)
    phases.weights = {"weight": np.full(4, value, np.float32)}
    assert phases(98) == []
    (message,) = phases.watch.last_notes()
    assert message.startswith("The weight weight ") and said in message
    assert phases(200) == []


def test_what_recovered_is_reported_again(phases):
    phases(EARLY, {"q": 1.0})
    assert len(phases(100, {"q": 1e9})) == 1
    assert phases(RECOVERED, {"q": 1.0}) == []
    assert len(phases(100, {"q": 1e9})) == 1
