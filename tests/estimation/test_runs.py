"""Estimates of runs: from files and memory, of greedy, softened and exploring policies, while training, and resumed."""

from __future__ import annotations

import dataclasses
import functools
import json

import numpy as np
import pytest

import etude
from etude import offline
from etude.base.data import Episode
from etude.base.errors import ConfigError, DataError
from etude.base.events import Estimated, Warned
from etude.base.spaces import Box
from etude.estimation.estimator import behaviour_of
from etude.estimation.fqe import FQEConfig
from etude.estimation.target import TargetPolicy
from etude.explore import Boltzmann, EpsilonZGreedy, GaussianNoise, Sample, Softened
from etude.explore.explorer import with_log_prob
from etude.losses.distributions import Deterministic, TanhGaussian
from etude.report import JsonLines

SMALL = {"network": etude.Mlp((16,)), "engine": "torch"}
OFTEN = {"learning_starts": 20, "train_every": 20, "gradient_steps": 2}
FAST = FQEConfig(network=etude.Mlp((16,)), steps=200)


@functools.cache
def agent():
    """A DQN that knows little; its policy at temperature 0.1 is far from greedy and from uniform."""
    run = etude.Run("dqn", "CartPole-v1", seed=0, **SMALL)
    run.train(600)
    return run


@functools.cache
def recorded(temperature=0.1, episodes=60):
    return etude.record("CartPole-v1", episodes, agent().actor(), Boltzmann(temperature), seed=5)


def without(name, data=None):
    data = recorded() if data is None else data
    episodes = [
        dataclasses.replace(each, extras={key: value for key, value in each.extras.items() if key != name})
        for each in data.episodes
    ]
    return dataclasses.replace(data, episodes=tuple(episodes))


def changed(**extras):
    """The data with the first episode's extras changed by these functions."""
    first, *rest = recorded().episodes
    first = dataclasses.replace(first, extras={name: change(first.extras[name]) for name, change in extras.items()})
    return dataclasses.replace(recorded(), episodes=(first, *rest))


def test_recorded_data_hold_the_log_probabilities_of_explorers():
    data = recorded()
    actions, values = data.episodes[0].action, agent().actor().act(data.episodes[0].observation[:-1])
    scaled = np.asarray(values, np.float64) / 0.1
    expected = scaled - np.log(np.exp(scaled - scaled.max(1, keepdims=True)).sum(1))[:, None] - scaled.max(1)[:, None]
    np.testing.assert_allclose(data.episodes[0].extras["log_prob"], expected[np.arange(len(actions)), actions], 1e-3)


def test_exploring_runs_record_log_probabilities_and_greedy_ones_none():
    assert set(etude.record("CartPole-v1", 1, run=agent(), explore=True).episodes[0].extras) == {"log_prob"}
    assert etude.record("CartPole-v1", 1, run=agent()).episodes[0].extras == {}


def test_the_behaviour_itself_gains_nothing():
    found = etude.estimate(agent(), recorded(), ["is", "pdis", "wis", "trajectory_wis"], explorer=Boltzmann(0.1))
    for each in found.values():
        assert each.gain == pytest.approx(1.0, abs=0.02)
        assert each.effective_episodes == pytest.approx(60, abs=0.1) and each.largest_weight == pytest.approx(1, 0.01)
    discounted = [np.sum(each.reward * 0.99 ** np.arange(len(each.reward))) for each in recorded().episodes]
    assert found.behaviour == pytest.approx(np.mean(discounted))
    assert found.notes == ()


def test_every_method_estimates_and_the_same_again():
    options = {"softened": 0.3, "model": FAST, "episodes": 5}
    methods = ["is", "pdis", "wis", "trajectory_wis", "dm", "dr", "wdr", "fqe", "simulation"]
    found, again = (etude.estimate(agent(), recorded(), methods, **options) for _ in range(2))
    assert list(found) == methods and found == again
    assert all(each.low <= each.value <= each.high for each in found.values())
    assert found["dm"].value == found["fqe"].value and found["fqe"].effective_episodes == 60
    text = str(found)
    assert "simulation" in text and "behaviour's own value" in text


def test_estimates_do_not_depend_on_what_else_is_estimated():
    together = etude.estimate(agent(), recorded(), ["pdis", "wis"], softened=0.3)
    assert together["wis"] == etude.estimate(agent(), recorded(), "wis", softened=0.3)["wis"]


def test_files_give_the_estimates_of_memory(tmp_path):
    offline.write(tmp_path / "data.h5", recorded())
    here = etude.estimate(agent(), recorded(), "wis", softened=0.3)["wis"]
    assert etude.estimate(agent(), tmp_path / "data.h5", "wis", softened=0.3)["wis"] == here


def test_a_greedy_target_is_said_loudly():
    with pytest.warns(UserWarning) as said:
        etude.estimate(agent(), recorded(), ["pdis"])
    texts = [str(each.message) for each in said]
    assert any("never takes some of the recorded actions" in text and "softened=0.1" in text for text in texts)
    assert any("equally weighted ones" in text for text in texts)


def test_a_model_of_ones_own_gives_the_values():
    class Model:
        def q(self, observation, action):
            return np.full(len(action), 2.0)

        def v(self, observation):
            return np.full(len(observation), 2.0)

    found = etude.estimate(agent(), recorded(), ["dm", "dr"], explorer=Boltzmann(0.1), model=Model())
    assert found["dm"].value == 2.0
    assert found["dr"].value == pytest.approx(found.behaviour, rel=1e-3)  # q and v cancel where all weights are 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"methods": ["wsi"]}, "no method 'wsi'"),
        ({"confidence": 95}, "expected a number between 0 and 1"),
        ({"gamma": 1.1}, "gamma = 1.1; expected a number from 0 to 1"),
        ({"softened": 0.0}, "softened = 0.0; expected a positive number"),
        ({"softened": 0.1, "explore": True}, "explore and softened each say"),
        ({"episodes": 0}, "episodes = 0; expected a whole number"),
        ({"model": 3}, "model = 3 has no q and no v"),
        ({"sofened": 0.1}, "did you mean softened"),
        ({"explorer": EpsilonZGreedy(0.1)}, "EpsilonZGreedy does not know the probabilities"),
        ({"explorer": GaussianNoise(0.1)}, "GaussianNoise needs a distribution"),
        ({"data": None}, "give data"),
        ({"data": 3}, "data is a int; expected the path"),
    ],
)
def test_what_cannot_be_estimated_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        etude.estimate(agent(), **{"data": recorded(), **options})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda: without("log_prob"), "has no 'log_prob'; it has no extras. Record it with"),
        (lambda: changed(log_prob=lambda x: x + np.nan), "log_prob' of step 0 is nan; expected"),
        (lambda: changed(log_prob=np.exp), "expected the natural log"),
        (lambda: changed(log_prob=lambda x: x[:-1]), "one number for each of its"),
        (list, "There are no episodes"),
        (lambda: etude.record("Acrobot-v1", 1), "The data holds observations of"),
    ],
)
def test_data_that_cannot_be_estimated_from_are_refused(data, said):
    with pytest.raises(DataError, match=said):
        etude.estimate(agent(), data(), "wis", softened=0.1)


def test_methods_without_ratios_need_no_log_probabilities():
    found = etude.estimate(agent(), without("log_prob"), "fqe", model=FAST)
    assert np.isfinite(found["fqe"].value) and found.notes == ()


def test_continuous_actions_are_estimated_sampled_or_softened():
    run = etude.Run("sac", "Pendulum-v1", seed=0, **SMALL)
    data = etude.record("Pendulum-v1", 3, run=run, explore=True)
    found = etude.estimate(run, data, ["wis", "fqe", "dr"], explore=True, model=FAST)
    assert found["wis"].value == pytest.approx(found.behaviour, rel=1e-2) and np.isnan(found["wis"].gain)
    assert found["fqe"].value < 0
    with pytest.raises(ConfigError, match="has no probability density"):
        etude.estimate(run, data, "is")
    with pytest.warns(UserWarning, match="equally weighted"):
        assert np.isfinite(etude.estimate(run, data, "pdis", softened=1.0)["pdis"].value)


class Seen:
    """Acts by its observation, which is the mean of its actions."""

    state_size = 0

    def __init__(self, kind=Deterministic):
        self._kind = kind

    def act(self, observation):
        return Deterministic(observation) if self._kind is Deterministic else self._kind(observation, observation * 0)


@pytest.mark.parametrize("target", [GaussianNoise(0.3), Softened(0.3)], ids=["noise", "softened"])
def test_data_with_clipped_noise_estimate_another_noise(target):
    """Of the actions that are carried out, about 40 % are at a bound."""
    count, space = 20_000, Box(-1, 1, (1,), np.float32)
    rng, behaviour = np.random.default_rng(0), with_log_prob(GaussianNoise(0.6))
    mean = Deterministic(rng.uniform(-1, 1, (count, 1)).astype(np.float32))
    action, extras = behaviour(mean, behaviour.draw(rng, count, space), 0, np.empty((count, 0)))
    episodes = [
        Episode(np.repeat(mean.action[i : i + 1], 2, 0), action[i : i + 1], action[i] ** 2, True, False,
                {name: values[i : i + 1] for name, values in extras.items()})
        for i in range(count)
    ]  # fmt: skip
    policy = TargetPolicy(Seen(), target, space)
    weight = np.exp(policy.log_prob(episodes) - behaviour_of(episodes, space, "is"))
    carried_out = np.clip(mean.action + 0.3 * rng.standard_normal((count, 1)), -1, 1)
    assert abs(weight.mean() - 1) < 4 * weight.std() / np.sqrt(count)
    found = weight * action[:, 0] ** 2
    assert abs(found.mean() - (carried_out**2).mean()) < 4 * np.hypot(found.std(), 0.4) / np.sqrt(count)
    never = TargetPolicy(Seen(TanhGaussian), Sample(), space).log_prob(episodes)
    np.testing.assert_array_equal(np.isneginf(never), extras["action_clipped"] == 1)


def test_a_run_with_noise_is_estimated_as_it_explores(tmp_path):
    """TD3's own exploration is the behaviour: all weights are 1, in memory and from a file."""
    run = etude.Run("td3", "Pendulum-v1", seed=0, exploration_noise=1.0, random_steps=0, learning_starts=10, **SMALL)
    data = etude.record("Pendulum-v1", 3, run=run, explore=True)
    assert data.episodes[0].extras["action_clipped"].any()
    offline.write(tmp_path / "noisy.h5", data)
    for source in (data, tmp_path / "noisy.h5"):
        found = etude.estimate(run, source, ["is", "wis"], explore=True)
        assert found["is"].value == pytest.approx(found.behaviour, rel=1e-2)
        assert found["wis"].effective_episodes == pytest.approx(3, abs=1e-2)
    first, *others = data.episodes
    wrong = dataclasses.replace(first, extras={**first.extras, "action_clipped": np.zeros((len(first.reward), 2))})
    with pytest.raises(DataError, match=r"Episode 0: 'action_clipped' has the shape \[200, 2\]; expected one number"):
        etude.estimate(run, dataclasses.replace(data, episodes=(wrong, *others)), "wis", explore=True)
    with pytest.raises(ConfigError, match="standard deviation of 0 leaves one action"):
        etude.estimate(run, data, "wis", explorer=GaussianNoise(0.0))


def test_recurrent_policies_are_estimated_with_their_states():
    small = {"network": etude.Recurrent(etude.Mlp((8,)), 4), "engine": "torch"}
    run = etude.Run("recurrent_ppo", "CartPole-v1", seed=0, **small)
    data = etude.record("CartPole-v1", 6, run=run, explore=True)
    found = etude.estimate(run, data, ["is", "fqe"], explore=True, model=FAST)
    assert found["is"].value == pytest.approx(found.behaviour, rel=1e-3)


def offline_run(**options):
    return etude.Run("bc", "CartPole-v1", data=recorded(), seed=0, gradient_steps=20, **SMALL, **options)


SCHEDULE = {"estimate_every": 40, "estimate": {"methods": ["wis", "fqe"], "softened": 0.3, "model": FAST}}


def estimated(events):
    return [event for event in events if isinstance(event, Estimated)]


def test_runs_estimate_while_they_train_and_learn_the_same():
    with offline_run() as one, offline_run() as other:
        events = list(one.steps(100, **SCHEDULE))
        other.train(100)
        assert [event.step for event in estimated(events)] == [40, 80]
        assert all(np.array_equal(value, other.engine.weights()[name]) for name, value in one.engine.weights().items())


def test_a_resumed_run_estimates_what_it_would_have(tmp_path):
    data = recorded()
    with offline_run() as whole:
        expected = estimated(whole.steps(80, **SCHEDULE))
    with offline_run() as first:
        list(first.steps(40, **SCHEDULE))
        first.save(tmp_path / "run.etude")
    schedule = {**SCHEDULE, "estimate": {**SCHEDULE["estimate"], "data": data}}
    with etude.load(tmp_path / "run.etude") as again:
        assert estimated(again.steps(40, **schedule))[-1] == expected[-1]
        with pytest.raises(ConfigError, match="this run holds none: give data"):
            again.train(40, **SCHEDULE)


@pytest.mark.parametrize("setup", [{}, {"workers": 1}, {"workers": 1, "overlap": True}], ids=str)
def test_runs_that_step_environments_estimate_from_data_that_are_given(setup):
    with etude.Run("dqn", "CartPole-v1", seed=1, environments=2, **OFTEN, **SMALL, **setup) as run:
        options = {"data": recorded(), "methods": ["wis"], "softened": 0.5}
        events = list(run.steps(200, estimate_every=100, estimate=options))
        assert [event.step for event in estimated(events)] == [100, 200]
        assert estimated(events)[-1].estimates == etude.estimate(run, **options)


def test_callbacks_and_metrics_get_estimates(tmp_path):
    class Kept(etude.Callback):
        def __init__(self):
            self.events = []

        def on_estimate(self, run, event):
            self.events.append(event)

    kept, path = Kept(), tmp_path / "metrics.jsonl"
    with offline_run() as run:
        lines = JsonLines(path)
        run.train(40, [kept, lines], schedule=etude.Schedule(estimate_every=40, estimate={"softened": 0.3}))
        lines.close()
    (event,) = kept.events
    (record,) = [each for each in map(json.loads, path.read_text().splitlines()) if "estimate/wis" in each]
    assert record["estimate/wis"] == pytest.approx(event.estimates["wis"].value)
    assert record["estimate/wis_gain"] == pytest.approx(event.estimates["wis"].gain)


def test_an_estimate_that_fails_does_not_stop_the_run(monkeypatch):
    with offline_run() as run:
        steps = run.steps(80, estimate_every=40, estimate={"softened": 0.3})

        def fails(self):
            raise DataError("It is too far.")

        monkeypatch.setattr("etude.estimation.estimator.Estimator.__call__", fails)
        events = list(steps)
        assert [event.step for event in events if isinstance(event, Warned)] == [40, 80]
        assert run.step == 80


@pytest.mark.parametrize(
    ("schedule", "error", "said"),
    [
        ({"estimate_every": 0}, ConfigError, "estimate_every = 0; expected a whole number of at least 1, or None"),
        ({"estimate": {"softened": 0.1}}, ConfigError, "give estimate_every, too"),
        ({"estimate_every": 40, "estimate": {"method": "wis"}}, ConfigError, "did you mean methods"),
        ({"estimate_every": 40, "estimate": 3}, ConfigError, "expected a dict of arguments of etude.estimate"),
        ({"estimate_every": 40, "estimate": {"data": "no.h5"}}, DataError, "no.h5"),
    ],
)
def test_bad_schedules_of_estimates_are_refused_before_the_first_step(schedule, error, said):
    with offline_run() as run:
        with pytest.raises(error, match=said):
            run.train(80, **schedule)
        assert run.step == 0


def test_several_agents_are_refused():
    with (
        etude.Run("dqn", "mpe2:simple_spread_v3", seed=0, **SMALL) as run,
        pytest.raises(ConfigError, match="environments of one agent"),
    ):
        etude.estimate(run, recorded(), "wis")


def test_a_target_that_cannot_be_estimated_is_refused_before_the_first_step():
    run = etude.Run("sac", "Pendulum-v1", seed=0, **SMALL)
    data = etude.record("Pendulum-v1", 1, run=run, explore=True)
    with pytest.raises(ConfigError, match="has no probability density"):
        run.train(10, schedule=etude.Schedule(estimate_every=5, estimate={"data": data, "methods": ["is"]}))
    assert run.step == 0


def test_a_model_that_raises_ends_the_run_saved(tmp_path):
    class Model:
        def q(self, observation, action):
            raise ZeroDivisionError("no values")

        v = q

    with (
        offline_run(run_dir=tmp_path / "run") as run,
        pytest.raises(ZeroDivisionError, match="ZeroDivisionError: no values"),
    ):
        run.train(80, schedule=etude.Schedule(estimate_every=40, estimate={"methods": ["dm"], "model": Model()}))
    with etude.load(tmp_path / "run") as again:
        assert again.step == 40
