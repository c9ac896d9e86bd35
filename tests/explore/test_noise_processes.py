"""Noise processes for continuous actions: moments against theory, annealing, and what they refuse."""

import math

import numpy as np
import pytest

from etude.base.errors import ConfigError, NumericalError
from etude.base.spaces import Box
from etude.explore import GaussianWhiteNoiseProcess, OrnsteinUhlenbeckProcess
from etude.losses.distributions import Deterministic

N = 40_000
BOX = Box(-1.0, 1.0, (2,), np.float32)
ALIKE = {"theta": 5.0, "mu": 0.5, "sigma": 0.8, "dt": 0.02, "size": 2}  # theta dt = 0.1


def fresh(process, n=N):
    return np.full((n, process.state_size), np.nan)


def ornstein_uhlenbeck(process, steps, n=N, seed=1, at=0):
    """What is added to the actions in the first `steps` steps of n episodes: [steps, n, 2]."""
    state, output, rng = fresh(process, n), np.zeros((n, 2), np.float32), np.random.default_rng(seed)
    return np.stack([process(output, process.draw(rng, n, BOX), at, state).action.astype(float) for _ in range(steps)])


def test_white_noise_is_added_to_the_output_in_its_units():
    process = GaussianWhiteNoiseProcess(mu=3.0, sigma=20.0)
    output = np.repeat(np.array([[100.0, -100.0]], np.float32), N, 0)
    noise = process.draw(np.random.default_rng(1), N, BOX)
    action = process(output, noise, 0, fresh(process)).action
    assert action.dtype == np.float32
    assert action.mean(0) == pytest.approx([103, -97], abs=4 * 20 / math.sqrt(N))
    assert action.std(0) == pytest.approx([20, 20], rel=0.02)
    assert abs(np.corrcoef(action.T)[0, 1]) < 4 / math.sqrt(N)  # numbers of one action are independent
    assert not np.shares_memory(action, output)
    assert (output == [100, -100]).all()


def test_white_noise_by_single_calls_has_the_same_moments():
    process = GaussianWhiteNoiseProcess(mu=3.0, sigma=20.0, size=2)
    samples = np.stack([process.sample() for _ in range(10_000)])
    assert samples.shape == (10_000, 2)
    assert samples.mean(0) == pytest.approx([3, 3], abs=4 * 20 / 100)
    assert samples.std(0) == pytest.approx([20, 20], rel=0.03)


@pytest.mark.parametrize(("step", "sigma"), [(0, 2.0), (50, 1.25), (100, 0.5), (10**6, 0.5)])
def test_white_noise_anneals_with_the_steps_of_the_run(step, sigma):
    process = GaussianWhiteNoiseProcess(sigma=2.0, sigma_min=0.5, n_steps_annealing=100)
    noise = process.draw(np.random.default_rng(1), N, BOX)
    assert process(np.zeros((N, 2), np.float32), noise, step, fresh(process)).action.std() == pytest.approx(
        sigma, rel=0.02
    )


FALLING = [2.0, 1.625, 1.25, 0.875, 0.5, 0.5, 0.5]


def test_white_noise_by_single_calls_anneals_by_their_count():
    falling, plain = GaussianWhiteNoiseProcess(0, 2.0, 0.5, 4), GaussianWhiteNoiseProcess()
    assert [float(falling.sample()[0] / plain.sample()[0]) for _ in range(7)] == pytest.approx(FALLING)


def test_positions_by_single_calls_anneal_by_their_count():
    annealed = OrnsteinUhlenbeckProcess(0, sigma=2.0, sigma_min=0.5, n_steps_annealing=4)
    plain = OrnsteinUhlenbeckProcess(0)
    found = []
    for _ in range(7):
        before = annealed.x_prev, plain.x_prev
        found.append(float((annealed.sample() - before[0])[0] / (plain.sample() - before[1])[0]))
    assert found == pytest.approx(FALLING)


def test_without_a_least_deviation_nothing_is_annealed():
    process = GaussianWhiteNoiseProcess(sigma=2.0, n_steps_annealing=1)
    noise = process.draw(np.random.default_rng(1), N, BOX)
    assert process(np.zeros((N, 2), np.float32), noise, 10**6, fresh(process)).action.std() == pytest.approx(
        2, rel=0.02
    )


def test_each_step_follows_the_equation_of_ornstein_and_uhlenbeck():
    process, state = OrnsteinUhlenbeckProcess(0.5, mu=1.0, sigma=2.0, dt=0.25, size=2), np.array([[3.0, -1.0]])
    action = process(np.array([[10, 20]], np.float32), np.array([[0.5, -1]], np.float32), 0, state).action
    # x + 0.5 (1 - x) 0.25 + 2 * 0.5 * noise
    np.testing.assert_allclose(state, [[3 - 0.25 + 0.5, -1 + 0.25 - 1]])
    np.testing.assert_allclose(action, [[13.25, 18.25]])


def test_positions_tend_to_the_stationary_distribution_and_keep_its_correlation():
    process = OrnsteinUhlenbeckProcess(**ALIKE)
    path = ornstein_uhlenbeck(process, 75)
    last = path[-1]
    stationary = 0.8 / math.sqrt(2 * 5 - 25 * 0.02)
    assert last.mean(0) == pytest.approx([0.5, 0.5], abs=5 * stationary / math.sqrt(N))
    assert last.std(0) == pytest.approx([stationary] * 2, rel=0.02)
    for k in (1, 5, 20):
        correlation = np.corrcoef(path[-1 - k, :, 0], last[:, 0])[0, 1]
        assert correlation == pytest.approx(0.9**k, abs=0.02)
    assert abs(np.corrcoef(last.T)[0, 1]) < 5 / math.sqrt(N)
    assert abs(np.corrcoef(last[:-1, 0], last[1:, 0])[0, 1]) < 5 / math.sqrt(N)  # environments are independent


def test_single_calls_have_the_same_stationary_distribution_and_correlation():
    process = OrnsteinUhlenbeckProcess(**(ALIKE | {"size": 300}))
    path = np.stack([process.sample() for _ in range(400)])[100:]
    stationary = 0.8 / math.sqrt(2 * 5 - 25 * 0.02)
    assert path.mean() == pytest.approx(0.5, abs=0.02)
    assert path.std() == pytest.approx(stationary, rel=0.03)
    centred = path - path.mean()
    assert (centred[5:] * centred[:-5]).mean() / path.var() == pytest.approx(0.9**5, abs=0.03)


def test_a_new_episode_begins_as_single_calls_do_after_a_reset():
    process = OrnsteinUhlenbeckProcess(20.0, mu=0.5, sigma=0.8, dt=0.02, size=2)
    first = ornstein_uhlenbeck(process, 1)[0]
    singles = []
    for _ in range(10_000):
        process.reset_states()
        singles.append(process.sample())
    expected = 0.8 * math.sqrt((1 - 20 * 0.02) ** 2 + 0.02)
    for found in (first, np.stack(singles)):
        assert found.mean() == pytest.approx(0.5, abs=0.02)
        assert found.std() == pytest.approx(expected, rel=0.02)


def test_only_the_environments_whose_episode_begins_start_anew():
    process = OrnsteinUhlenbeckProcess(theta=0.15, size=2)
    state = np.array([[500.0, 500.0], [np.nan, np.nan], [-500.0, -500.0]])
    process(np.zeros((3, 2), np.float32), process.draw(np.random.default_rng(1), 3, BOX), 0, state)
    assert (state[0] > 490).all()
    assert (np.abs(state[1]) < 10).all()
    assert (state[2] < -490).all()


@pytest.mark.parametrize(("step", "sigma"), [(0, 2.0), (50, 1.25), (100, 0.5), (10**6, 0.5)])
def test_the_deviation_of_positions_anneals_with_the_steps_of_the_run(step, sigma):
    process = OrnsteinUhlenbeckProcess(0, sigma=2.0, dt=0.5, size=2, sigma_min=0.5, n_steps_annealing=100)
    path = ornstein_uhlenbeck(process, 2, at=step)
    assert (path[1] - path[0]).std() == pytest.approx(sigma * math.sqrt(0.5), rel=0.02)


def test_a_sample_is_not_changed_by_later_ones():
    process = OrnsteinUhlenbeckProcess(0.15, size=3)
    first = process.sample()
    kept = first.copy()
    first += 100
    assert (np.abs(process.sample() - kept) < 1).all()


@pytest.mark.parametrize("process", [GaussianWhiteNoiseProcess(), OrnsteinUhlenbeckProcess(0.15, size=2)], ids=repr)
def test_drawing_in_parts_gives_the_same_numbers_as_at_once(process):
    whole, rng = process.draw(np.random.default_rng(5), 8, BOX), np.random.default_rng(5)
    parts = [process.draw(rng, steps, BOX) for steps in (3, 5)]
    assert (whole.dtype, whole.shape) == (np.float32, (8, 2))
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_equality_is_of_parameters_and_not_of_where_samples_are():
    one, other = OrnsteinUhlenbeckProcess(0.15), OrnsteinUhlenbeckProcess(0.15)
    other.sample()
    assert one == other
    other.sigma = 0.5
    assert one != other
    assert GaussianWhiteNoiseProcess() != GaussianWhiteNoiseProcess(sigma_min=0.1)


@pytest.mark.parametrize("process", [GaussianWhiteNoiseProcess(), OrnsteinUhlenbeckProcess(0.15, size=2)], ids=repr)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_not_finite_are_refused(process, bad):
    output = np.array([[0, 0], [0, bad]], np.float32)
    with pytest.raises(NumericalError, match="environment 1 of 2"):
        process(output, process.draw(np.random.default_rng(1), 2, BOX), 0, fresh(process, 2))


@pytest.mark.parametrize("process", [GaussianWhiteNoiseProcess(), OrnsteinUhlenbeckProcess(0.15, size=2)], ids=repr)
@pytest.mark.parametrize(
    "output", [Deterministic(np.zeros((2, 2), np.float32)), np.zeros((2, 2), int)], ids=lambda v: type(v).__name__
)
def test_outputs_that_are_no_continuous_actions_are_refused(process, output):
    with pytest.raises(ConfigError, match=r"adds noise \[environments, A\] to the agent's actions.*GaussianNoise"):
        process(output, process.draw(np.random.default_rng(1), 2, BOX), 0, fresh(process, 2))


def test_a_size_that_is_not_that_of_the_actions_is_refused():
    process = OrnsteinUhlenbeckProcess(0.15)
    with pytest.raises(ConfigError, match="has size = 1, the agent's actions have 2 numbers. Give it that size"):
        process(np.zeros((3, 2), np.float32), process.draw(np.random.default_rng(1), 3, BOX), 0, fresh(process, 3))
    state, process.size = fresh(process, 3), 2
    with pytest.raises(ConfigError, match="keeps 1 numbers.*size is now 2"):
        process(np.zeros((3, 2), np.float32), process.draw(np.random.default_rng(1), 3, BOX), 0, state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianWhiteNoiseProcess(sigma=-1), "sigma = -1; expected a number of at least 0"),
        (lambda: GaussianWhiteNoiseProcess(mu=math.nan), "mu = nan; expected a finite number"),
        (lambda: GaussianWhiteNoiseProcess(sigma=1, sigma_min=2), "sigma_min = 2 is above sigma = 1"),
        (lambda: GaussianWhiteNoiseProcess(n_steps_annealing=0), "n_steps_annealing = 0"),
        (lambda: GaussianWhiteNoiseProcess(size=0), "size = 0"),
        (lambda: OrnsteinUhlenbeckProcess(theta=-1), "theta = -1"),
        (lambda: OrnsteinUhlenbeckProcess(1, dt=0), "dt = 0"),
        (lambda: OrnsteinUhlenbeckProcess(5, dt=0.5), r"theta \* dt = 2.5; expected less than 2"),
        (lambda: OrnsteinUhlenbeckProcess(1, sigma_min=-1), "sigma_min = -1"),
    ],
)
def test_impossible_parameters_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("process", [GaussianWhiteNoiseProcess(), OrnsteinUhlenbeckProcess(0.15, size=2)], ids=repr)
def test_a_parameter_that_became_impossible_is_refused_when_it_is_used(process):
    noise, process.sigma = process.draw(np.random.default_rng(1), 2, BOX), -1.0
    with pytest.raises(ConfigError, match="sigma = -1.0"):
        process(np.zeros((2, 2), np.float32), noise, 0, fresh(process, 2))
    with pytest.raises(ConfigError, match="sigma = -1.0"):
        process.sample()
