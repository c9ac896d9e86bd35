"""Rules move hyperparameters as their signals say: in their direction, within their rate and their bounds."""

from types import SimpleNamespace

import numpy as np
import pytest

from etude.adapt.rules import Adapt, Adaptation, Change, LearningPhase, values_reached
from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError
from etude.optimizers import AdamW

FLOATS = {"learning_rate": 0.01, "gamma": 0.9, "tau": 0.005, "epsilon": 0.1}


def adaptation(*rules):
    return Adaptation(rules, SimpleNamespace(batch_size=64, epochs=4, optimizer=AdamW(), **FLOATS), tuple(FLOATS))


def phase(kl=None, td_error=None, ratio=None, priorities=None, gradients=None):
    metrics = {} if kl is None else {"approx_kl": kl}
    return LearningPhase(7, metrics, lambda: priorities, td_error, ratio, gradients)


def kl_rule(name, **more):
    return Adapt("kl", name, **{"target": 0.01, "every": 1, "smooth": 1.0, "rate": 0.5, **more})


def test_a_rate_falls_where_the_policy_moves_too_far_by_the_ratio_or_by_the_largest_step():
    own = adaptation(kl_rule("learning_rate"))
    (event,) = own.observe(phase(kl=0.0125), FLOATS)
    assert (event.name, event.step, event.before) == ("learning_rate", 7, 0.01)
    assert event.after == pytest.approx(0.01 / 1.25)
    assert "kl 0.0125" in event.reason
    (event,) = own.observe(phase(kl=1.0), FLOATS)
    assert event.after == pytest.approx(0.01 / 1.25 / 1.5)
    assert own.floats(FLOATS) == {**FLOATS, "learning_rate": event.after}


def test_schedules_go_on_underneath():
    own = adaptation(kl_rule("learning_rate"))
    own.observe(phase(kl=0.0125), FLOATS)
    assert own.floats({**FLOATS, "learning_rate": 0.005})["learning_rate"] == pytest.approx(0.004)


def test_bounds_hold_and_what_does_not_move_is_not_reported():
    own = adaptation(kl_rule("learning_rate", low=0.009))
    assert [event.after for event in own.observe(phase(kl=1.0), FLOATS)] == [pytest.approx(0.009)]
    assert own.observe(phase(kl=1.0), FLOATS) == ()
    own = adaptation(kl_rule("learning_rate"))
    for _ in range(20):
        own.observe(phase(kl=1.0), FLOATS)
    assert own.floats(FLOATS)["learning_rate"] == pytest.approx(0.001)


def test_sizes_of_batches_move_in_powers_of_two_and_counts_are_whole():
    own, sizes = adaptation(kl_rule("batch_size", rate=0.3), kl_rule("epochs", rate=0.2)), set()
    for _ in range(12):
        own.observe(phase(kl=0.02), FLOATS)
        sizes.add(own.counts()["batch_size"])
    assert sizes == {64, 128, 256}
    assert own.counts() == {"batch_size": 256, "epochs": 1}


@pytest.mark.parametrize(
    ("bounds", "expected"), [({"low": 10.0, "high": 100.0}, [64, 16]), ({"low": 16.0, "high": 256.0}, [256, 16])]
)
def test_sizes_of_batches_stay_within_bounds_that_are_no_powers_of_two(bounds, expected):
    change, found = Change("batch_size", 1, **bounds), []
    for ratio in (1e9, 1e-9):
        found.append(change.value(change.moved(1.0, 64.0, ratio), 64.0))
    assert found == expected


@pytest.mark.parametrize(("sign", "expected"), [(1, 2.0 * 3.0), (-1, 3.0 / 2.0)])
def test_a_scale_multiplies_the_ratio_of_the_signal_to_its_target(sign, expected):
    change = Change("learning_rate", sign, scale=3.0)
    assert change.value(change.moved(1.0, 0.01, 2.0), 0.01) == pytest.approx(0.01 * expected)


def test_sizes_are_multiples_of_an_alignment_and_probabilities_are_at_most_1():
    aligned = Change("batch_size", 1, align=24)
    assert [aligned.value(factor, 64.0) for factor in (0.1, 0.75, 1.0, 1.5)] == [24.0, 48.0, 48.0, 96.0]
    epsilon = Change("epsilon", 1)
    assert epsilon.value(epsilon.moved(1.0, 0.4, 1e9), 0.4) == 1.0
    beta = Change("beta1", -1)
    assert beta.value(beta.moved(1.0, 0.5, 1e9), 0.5) == 0.0
    assert Change("beta1", 1).movable(0.9)
    assert not Change("beta1", 1).movable(1.0)
    assert not Change("weight_decay", 1).movable(0.0)


def test_rules_step_by_their_alignment_and_refuse_bounds_that_are_no_multiples():
    own, sizes = adaptation(kl_rule("batch_size", rate=0.3, align=16, low=32, high=112)), []
    for kl in (0.02, 0.02, 0.02, 0.02, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9):
        own.observe(phase(kl=kl), FLOATS)
        sizes.append(own.counts()["batch_size"])
    assert sizes == [80, 96, 112, 112, 80, 64, 48, 32, 32, 32]
    with pytest.raises(ConfigError, match="low = 30; expected a multiple of align = 16"):
        kl_rule("batch_size", align=16, low=30)
    with pytest.raises(ConfigError, match="align = 16; learning_rate is no whole number"):
        kl_rule("learning_rate", align=16)
    with pytest.raises(ConfigError, match="batch_size = 64, and its rule has align = 24; expected a multiple"):
        adaptation(kl_rule("batch_size", align=24))


def test_values_reached_bound_what_a_rule_makes_of_a_whole_number():
    for rule, expected in (
        (kl_rule("rollout_length"), (8, 32, 128)),
        (kl_rule("rollout_length", align=8, low=16, high=64), (16, 24, 32, 64)),
        (Adapt("ess", "buffer_size", low=20), (20, 1000)),
    ):
        config = SimpleNamespace(rollout_length=32, buffer_size=1000, adapt=(rule,))
        assert values_reached(config, rule.hyperparameter) == expected
    assert values_reached(config, "rollout_length") == (32,)


def test_gamma_moves_by_its_distance_from_one():
    own = adaptation(Adapt("ess", "gamma", target=0.5, every=1, smooth=1.0, rate=1.0))
    (event,) = own.observe(phase(td_error=np.ones(8)), FLOATS)  # all alike: an effective sample size of 100 %
    assert event.after == pytest.approx(1 - 0.1 / 2)


def test_the_effective_sample_size_is_of_priorities_or_else_of_errors_times_ratios():
    rule = Adapt("ess", "learning_rate", target=0.5, every=1, smooth=1.0, rate=1.0)
    for given in (
        {"priorities": np.array([1.0, 0, 0, 0]), "td_error": np.ones(4)},
        {"td_error": np.array([-1.0, 0, 0, 0])},
        {"td_error": np.ones(4), "ratio": np.array([1.0, 0, 0, 0])},
    ):
        (event,) = adaptation(rule).observe(phase(**given), FLOATS)
        assert event.after == pytest.approx(0.01 * 0.25 / 0.5)


def test_gradients_are_asked_for_in_as_many_parts_as_the_rule_says():
    asked = []

    def gradients(parts):
        asked.append(parts)
        return [{"w": np.array([1.0])}, {"w": np.array([3.0])}], 8

    own = adaptation(Adapt("gradient_variance", "learning_rate", target=1.0, every=1, smooth=1.0, rate=0.5, parts=2))
    (event,) = own.observe(phase(gradients=gradients), FLOATS)
    assert asked == [2]
    assert event.after == pytest.approx(0.01 / 1.5)  # a variance of 2, twice the target


def test_the_batch_grows_towards_the_noise_scale():
    rng = np.random.default_rng(0)
    many = [{"w": 0.5 + row} for row in rng.normal(0.0, 1.0, (64, 10))]
    own = adaptation(Adapt("noise_scale", "batch_size", every=1, smooth=1.0, rate=0.5))
    for _ in range(4):
        own.observe(phase(gradients=lambda parts: (many, 64)), FLOATS)  # a noise scale of about 256
    assert own.counts()["batch_size"] == 256


def test_without_a_target_the_first_signal_is_it_and_nothing_moves_before_it_changes():
    own = adaptation(kl_rule("learning_rate", target=None))
    assert own.observe(phase(kl=0.02), FLOATS) == ()
    (event,) = own.observe(phase(kl=0.025), FLOATS)
    assert event.after == pytest.approx(0.01 / 1.25)


def test_signals_are_smoothed_and_read_every_so_many_phases():
    own = adaptation(kl_rule("learning_rate", every=3, smooth=0.5))
    seen = [own.observe(phase(kl=kl), FLOATS) for kl in (9, 9, 0.01, 9, 9, 0.03)]
    assert [len(events) for events in seen] == [0, 0, 0, 0, 0, 1]  # 0.01 is the target
    assert seen[5][0].after == pytest.approx(0.01 / 1.5)  # the average is 0.02, twice the target


def test_why_nothing_changes_is_said_once():
    own = adaptation(kl_rule("learning_rate"))
    (event,) = own.observe(phase(), FLOATS)
    assert event.before == event.after == 0.01
    assert event.reason == "unchanged: this algorithm reports no approx_kl"
    assert own.observe(phase(), FLOATS) == ()
    (event,) = own.observe(phase(kl=np.nan), FLOATS)
    assert event.reason == "unchanged: kl is nan"


def test_a_state_goes_on_and_one_that_was_changed_is_refused():
    rules = (kl_rule("learning_rate", every=2, smooth=0.5, target=None), kl_rule("batch_size"))
    whole, again = adaptation(*rules), adaptation(*rules)
    for kl in (0.01, 0.02, 0.03):
        whole.observe(phase(kl=kl), FLOATS)
    again.check_state(Stored(whole.state(), "adapting"))
    again.restore(whole.state())
    assert again.observe(phase(kl=0.05), FLOATS) == whole.observe(phase(kl=0.05), FLOATS) != ()
    for name, value in (
        ("factors", {"learning_rate": 0.0, "batch_size": 1.0}), ("factors", {"gamma": 1.0}), ("phases", -1),
        ("averages", [0.1]), ("targets", [0.1, "a"]),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match="adapting"):
            adaptation(*rules).check_state(Stored({**whole.state(), name: value}, "adapting"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adapt("luck", "batch_size"), "expected 'ess' or 'gradient_variance' or 'noise_scale' or 'kl'"),
        (lambda: Adapt("ess", "widths"), "no direction of its own; known are"),
        (lambda: Adapt("ess", "tau", rate=0.0), "rate"),
        (lambda: Adapt("ess", "tau", smooth=0.0), "smooth"),
        (lambda: Adapt("ess", "tau", low=2.0, high=1.0), "low = 2.0 is above high"),
        (lambda: Adapt("ess", "tau", target=-1.0), "target = -1.0"),
        (lambda: Adapt("ess", "tau", direction=2), "expected 1, -1, or 0"),
        (lambda: adaptation(Adapt("ess", "clip_range")), "expected a hyperparameter that may change .* batch_size"),
        (lambda: adaptation(Adapt("ess", "optimizer.decay", direction=1)), "expected a hyperparameter that may change"),
        (lambda: adaptation(kl_rule("tau"), kl_rule("tau")), "two rules of adapt change tau"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_numerator_and_denominator_of_the_noise_scale_are_smoothed_apart_and_negative_estimates_count():
    """A true gradient of 0.5 in one entry and noise of variance 4 for each example: a scale of 16, of which a quarter
    of the estimates have a negative denominator."""
    rng = np.random.default_rng(0)
    own = adaptation(Adapt("noise_scale", "batch_size", every=1, smooth=0.02, rate=0.5, low=1, high=4096))
    sums = np.zeros(2)
    for _ in range(2_000):
        parts = 0.5 + rng.normal(0.0, 2.0 / np.sqrt(8), 2)
        own.observe(phase(gradients=lambda _, parts=parts: ([{"w": part[None]} for part in parts], 8)), FLOATS)
        small, large = np.square(parts).mean(), parts.mean() ** 2
        sums += (small - large) * 8 * 2, 2 * large - small
    assert sums[0] / sums[1] == pytest.approx(16, rel=0.2)
    assert own.counts()["batch_size"] in (8, 16, 32)
