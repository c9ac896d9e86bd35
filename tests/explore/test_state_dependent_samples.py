"""Samples whose noise is a function of the state, drawn again at the start of an episode and every few steps."""

from __future__ import annotations

import numpy as np
import pytest

from etude.base.errors import ConfigError, NumericalError
from etude.base.spaces import Box
from etude.explore import Each, StateDependentSample
from etude.losses.distributions import Gaussian, TanhGaussian, state_dependent

FEATURES, SIZE, COLUMNS = 5, 2, 6
BOX = Box(-1, 1, (SIZE,))


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def policy_of(rng, columns=COLUMNS, kind=Gaussian):
    mean, features = (rng.normal(size=(columns, n)).astype(np.float32) for n in (SIZE, FEATURES))
    return state_dependent(kind, mean, features, np.zeros((SIZE, FEATURES), np.float32) - 1)


def fresh(explorer, columns=COLUMNS):
    return np.full((columns, explorer.state_size), np.nan)


def actions(explorer, policy, rng, steps, state):
    """[steps, N, SIZE] in states that stay the same."""
    return np.stack([explorer(policy, explorer.draw(rng, len(state), BOX), t, state).action for t in range(steps)])


@pytest.mark.parametrize(("every", "draws"), [(1, 8), (3, 3), (None, 1)])
def test_the_same_state_gets_the_same_action_until_the_noise_is_drawn_again(every, draws, rng):
    explorer, policy = StateDependentSample(FEATURES, SIZE, every), policy_of(rng)
    found = actions(explorer, policy, rng, 8, fresh(explorer))
    changes = (found[1:] != found[:-1]).all((1, 2))
    assert (found[1:] == found[:-1]).all((1, 2)).tolist() == (~changes).tolist()
    assert [t for t in range(1, 8) if changes[t - 1]] == [t for t in range(1, 8) if every and t % every == 0]
    assert len(np.unique(found[:, 0, 0])) == draws


def test_environments_have_matrices_of_their_own_and_draw_again_when_their_own_episode_begins(rng):
    explorer = StateDependentSample(FEATURES, SIZE)
    one = policy_of(rng, 1)
    policy = type(one)(Gaussian(*(np.repeat(x, 3, 0) for x in one.policy)), np.repeat(one.scale, 3, 0))
    state = fresh(explorer, 3)
    first = actions(explorer, policy, rng, 1, state)[0]
    assert len(np.unique(first[:, 0])) == 3
    state[1] = np.nan
    second = actions(explorer, policy, rng, 1, state)[0]
    assert (first == second).all(1).tolist() == [True, False, True]


def test_noise_is_linear_in_the_features(rng):
    explorer, state = StateDependentSample(FEATURES, SIZE), None
    features = rng.normal(size=(2, FEATURES)).astype(np.float32)
    noise, state = explorer.draw(rng, 1, BOX), fresh(explorer, 1)
    log_std = rng.normal(size=(SIZE, FEATURES)).astype(np.float32)
    found = []
    for z in (features[:1], features[1:], features[:1] + 2 * features[1:]):
        policy = state_dependent(Gaussian, np.zeros((1, SIZE), np.float32), z, log_std)
        found.append(explorer(policy, noise, 0, state).action)
    np.testing.assert_allclose(found[2], found[0] + 2 * found[1], rtol=1e-3)


@pytest.mark.parametrize("kind", [Gaussian, TanhGaussian])
def test_over_many_draws_actions_have_the_distribution_of_the_policy(kind, rng):
    explorer, columns = StateDependentSample(FEATURES, SIZE), 4_000
    policy = policy_of(rng, 1, kind)
    many = type(policy)(kind(*(np.repeat(x, columns, 0) for x in policy.policy)), np.repeat(policy.scale, columns, 0))
    choice = explorer(many, explorer.draw(rng, columns, BOX), 0, fresh(explorer, columns))
    x = np.arctanh(choice.action.astype(np.float64)) if kind is TanhGaussian else choice.action
    standard = (x - policy.policy.mean) / np.exp(policy.policy.log_std)
    np.testing.assert_allclose(standard.mean(0), 0.0, atol=0.06)
    np.testing.assert_allclose(standard.std(0), 1.0, atol=0.05)
    np.testing.assert_allclose(choice.extras["log_prob"], many.log_prob(choice.action), rtol=1e-3, atol=1e-3)


def test_the_bits_of_an_action_do_not_depend_on_the_other_environments(rng):
    for size in (1, 3):
        explorer = StateDependentSample(300, size)
        mean, z, log_std = (rng.normal(size=s).astype(np.float32) for s in ((7, size), (7, 300), (size, 300)))
        policy, noise = state_dependent(Gaussian, mean, z, log_std), explorer.draw(rng, 7, Box(-1, 1, (size,)))
        together = explorer(policy, noise, 0, fresh(explorer, 7))
        for i in range(7):
            part = state_dependent(Gaussian, mean[i : i + 1], z[i : i + 1], log_std)
            alone = explorer(part, noise[i : i + 1], 0, fresh(explorer, 1))
            np.testing.assert_array_equal(alone.action[0], together.action[i])
            np.testing.assert_array_equal(alone.extras["log_prob"][0], together.extras["log_prob"][i])


def test_each_environment_may_draw_at_intervals_of_its_own(rng):
    explorer = Each([StateDependentSample(FEATURES, SIZE, 1), StateDependentSample(FEATURES, SIZE, None)])
    policy, state = policy_of(rng, 2), fresh(explorer, 2)
    found = np.stack([explorer(policy, rng.random((2, 2), np.float32), t, state).action for t in range(3)])
    assert len(np.unique(found[:, 0, 0])) == 3 and len(np.unique(found[:, 1, 0])) == 1


def test_what_does_not_fit_is_refused(rng):
    for wrong, message in (((0, 1), "features = 0"), ((1, 0), "size = 0"), ((1, 1, 0), "sample_every = 0")):
        with pytest.raises(ConfigError, match=message):
            StateDependentSample(*wrong)
    explorer = StateDependentSample(FEATURES, SIZE)
    noise = explorer.draw(rng, COLUMNS, BOX)
    with pytest.raises(ConfigError, match="needs a StateDependentGaussian policy.*returned a Gaussian. Use Sample"):
        explorer(policy_of(rng).policy, noise, 0, fresh(explorer))
    other = StateDependentSample(FEATURES + 1, SIZE)
    with pytest.raises(ConfigError, match="size = 2 and features = 6, the agent's policy 2 and 5"):
        other(policy_of(rng), noise, 0, fresh(other))
    bad = policy_of(rng)
    bad.scale[1, 0, 2] = np.nan
    with pytest.raises(NumericalError, match="environment 1 of 6"):
        explorer(bad, noise, 0, fresh(explorer))
