"""Rewriting of collected steps before they are learned from: `Run(rewrite=...)`."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY, tiny
from run_worlds import Counted

import etude
from etude import Run
from etude.base.errors import CallbackError, CheckpointError, ConfigError
from etude.base.events import Collected
from etude.rewrite import Rewriter
from etude.run import from_state
from etude.training.description import Execution

OVERLAP = {"workers": 2, "overlap": True}
PLACES = [("dqn", {}), ("ppo", {}), ("ppo", {"workers": 2}), ("dqn", OVERLAP)]
in_each_place = pytest.mark.parametrize(("algorithm", "settings"), PLACES, ids=["dqn", "ppo", "pool", "overlap"])


def zeroed(steps):
    return dataclasses.replace(steps, reward=np.zeros_like(steps.reward))


def shaped(steps):
    """A reward for the next observation."""
    bonus = np.float32(0.25) * np.abs(steps.next_observations()[..., 2])
    return dataclasses.replace(steps, reward=steps.reward + bonus)


class Shaped(gym.Wrapper):
    """The same by a wrapper."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        bonus = np.float32(0.25) * np.abs(np.float32(observation[2]))
        return observation, np.float32(reward) + bonus, terminated, truncated, info


class Decaying(Rewriter):
    """Adds rewards that shrink with the number of steps that it has seen."""

    def __init__(self):
        self.seen, self.totals = 0, np.zeros(4)

    def __call__(self, steps):
        bonus = np.float32(1.0 / (1 + self.seen)) * np.ones_like(steps.reward)
        self.seen += len(steps)
        self.totals[steps.columns] += bonus.sum(0)
        return dataclasses.replace(steps, reward=steps.reward + bonus)

    def metrics(self):
        return {"seen": float(self.seen)}

    def state(self):
        return {"seen": self.seen, "totals": self.totals}

    def restore(self, state):
        self.seen, self.totals = state["seen"], np.array(state["totals"])


def weights_after(steps, env="CartPole-v1", **more):
    with tiny(env, **more) as run:
        run.train(steps)
        return run.engine.weights()


def assert_same(one, other):
    for name, weight in one.items():
        np.testing.assert_array_equal(weight, other[name])


@pytest.mark.long_but("ppo", "overlap")
@in_each_place
def test_shaped_rewards_train_as_an_environment_with_these_rewards_does(algorithm, settings):
    by_wrapper = weights_after(256, "CartPole-v1", algorithm=algorithm, wrappers=[Shaped], **settings)
    by_rewriter = weights_after(256, "CartPole-v1", algorithm=algorithm, rewrite=shaped, **settings)
    plain = weights_after(256, "CartPole-v1", algorithm=algorithm, **settings)
    assert_same(by_wrapper, by_rewriter)
    assert any((plain[name] != by_rewriter[name]).any() for name in plain)


def test_whole_episodes_are_rewritten_too():
    by_wrapper, by_rewriter = (
        Run("reinforce", "CartPole-v1", environments=3, engine="torch", seed=1, **more)
        for more in ({"wrappers": [Shaped]}, {"rewrite": [shaped]})
    )
    by_wrapper.train(150)
    by_rewriter.train(150)
    assert_same(by_wrapper.engine.weights(), by_rewriter.engine.weights())


def test_without_rewards_nothing_is_learned_and_the_reported_returns_stay_the_environments():
    totals, ended = [], []
    config = dataclasses.replace(PPO_TINY, normalize_reward=False, gae_lambda=1.0, entropy_coefficient=0.0)
    with tiny("CartPole-v1", "ppo", config=config, rewrite=[zeroed]) as run:
        for event in run.steps(512):
            if isinstance(event, Collected):
                totals += [episode.total for episode in event.episodes]
                ended += [episode.length for episode in event.episodes]
                assert all((steps.reward == 1.0).all() for steps in event.steps), "events hold what was collected"
        ring = run.learner.replay.ring
        assert not ring.reward.any()
    assert totals == ended
    assert totals


def test_rewriters_are_called_in_order_and_get_what_the_one_before_returned():
    seen = []

    def first(steps):
        return dataclasses.replace(steps, reward=np.full_like(steps.reward, 7))

    def second(steps):
        seen.append(steps.reward.copy())
        return steps

    with tiny(rewrite=[first, second]) as run:
        run.train(8)
    assert (np.concatenate(seen) == 7).all()


def test_a_rewriter_that_changes_nothing_changes_no_number():
    assert_same(weights_after(128), weights_after(128, rewrite=lambda steps: steps))


@pytest.mark.long_but("dqn", "pool")
@in_each_place
def test_a_resumed_run_goes_on_with_the_state_of_its_rewriters(algorithm, settings, tmp_path):
    with tiny("CartPole-v1", algorithm, rewrite=[Decaying()], **settings) as run:
        run.train(128)
        run.save(tmp_path / "run.etude")
        events = list(run.steps(128))
        expected, seen = run.engine.weights(), run.learner.rewriters.state()["Decaying"]
    assert any(event.metrics.get("seen") == 256.0 for event in events if hasattr(event, "metrics"))
    with pytest.raises(ConfigError, match=r"rewrites its steps with Decaying, which is not in its checkpoints"):
        etude.load(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude", rewrite=[Decaying()]) as again:
        assert again.learner.rewriters.state()["Decaying"]["seen"] == 128
        again.train(128)
        assert_same(expected, again.engine.weights())
        assert again.learner.rewriters.state()["Decaying"]["seen"] == seen["seen"] == 256
    with etude.load(tmp_path / "run.etude", rewrite=None) as again:
        again.train(128)
        assert "rewrite" not in again.description()


def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed(tmp_path):
    with tiny(rewrite=[Decaying()]) as run:
        run.train(16)
        state = run.state()
    with pytest.raises(CheckpointError, match=r"holds 'Decaying' at rewriters; expected the state of one of this run"):
        from_state(state, Counted, rewrite=[zeroed])
    state["rewriters"]["Decaying"]["totals"] = np.zeros(3)
    with pytest.raises(CheckpointError, match="rewriters/Decaying/totals"):
        from_state(state, Counted, rewrite=[Decaying()])


def test_a_run_that_only_acts_needs_no_rewriters():
    with tiny(rewrite=[Decaying()]) as run:
        run.train(16)
        state = run.state()
    del state["replay"]
    with from_state(state, Counted) as acting:
        acting.act(acting.engine.spaces.observation.sample())


class Failing:
    """Fails once, from a number of calls on."""

    def __init__(self, calls):
        self.calls = calls

    def __call__(self, steps):
        self.calls -= 1
        if self.calls == 0:
            raise ZeroDivisionError("no reason")
        return shaped(steps)


@pytest.mark.parametrize(
    ("algorithm", "settings", "call"), [("dqn", {}, 1), *((*place, 3) for place in PLACES)],
    ids=["first", "dqn", "ppo", "pool", "overlap"],
)  # fmt: skip
@pytest.mark.long_but("first", "ppo", "overlap")
def test_a_rewriter_that_raises_ends_the_run_which_is_saved_and_loses_nothing(algorithm, settings, call, tmp_path):
    expected = weights_after(256, algorithm=algorithm, rewrite=shaped, **settings)
    with tiny("CartPole-v1", algorithm, rewrite=Failing(call), run_dir=tmp_path / "run", **settings) as run:
        said = (
            r"Rewriter Failing raised ZeroDivisionError: no reason \(.*test_rewriting.py.*The run stopped. It is saved:"
        )
        with pytest.raises(ZeroDivisionError, match=said):
            run.train(256)
        at = run.step
        assert at == (call - 1) * (8 if algorithm == "dqn" else 64)
        if not settings.get("overlap"):  # steps that were collected ahead of those that failed are collected again
            run.train(256 - at)
            assert_same(expected, run.engine.weights())
    with etude.load(tmp_path / "run", rewrite=shaped) as again:
        again.train(64)


def test_whole_episodes_that_could_not_be_rewritten_come_again():
    def run(rewrite):
        return Run(
            "reinforce", "CartPole-v1", environments=3, engine="torch", seed=1, execution=Execution(rewrite=rewrite)
        )

    whole, failing = run(shaped), run(Failing(5))
    whole.train(150)
    with pytest.raises(ZeroDivisionError, match="no reason"):
        failing.train(150)
    failing.train(150 - failing.step)
    assert failing.step == whole.step
    assert_same(whole.engine.weights(), failing.engine.weights())


def changed(**fields):
    return lambda steps: dataclasses.replace(steps, **{name: make(steps) for name, make in fields.items()})


@pytest.mark.parametrize(
    ("rewrite", "said"),
    [
        (lambda steps: None, r"a NoneType at step 0; expected Steps, such as dataclasses.replace"),
        (
            changed(reward=lambda s: s.reward[:1]),
            r"reward of shape \(1, 4\), float32 at step 0; expected shape \(2, 4\)",
        ),
        (changed(reward=lambda s: s.reward * np.float64(2.0) + np.zeros(s.shape)), r"Write .astype\(np.float32\)"),
        (
            changed(reward=lambda s: s.reward * np.float32(np.nan)),
            r"reward with nan at \[0, 0\] at step 0; expected fin",
        ),
        (changed(reward=lambda s: 1.0), r"reward as a float at step 0; expected an array of float32 of shape \(2, 4\)"),
        (changed(terminated=lambda s: ~s.terminated), "another 'terminated' at step 0; .*targets bootstrap"),
        (changed(truncated=lambda s: ~s.truncated), "another 'truncated'"),
        (changed(columns=lambda s: s.columns[::-1]), "another 'columns'"),
        (
            changed(action=lambda s: s.action + 9),
            r"action with \d+ at \[0, 0\] at step 0; expected values of its space",
        ),
        (changed(observation=lambda s: s.observation * np.float32(np.inf)), "observation with -?(inf|nan)"),
        (changed(extras=lambda s: {}), "other extras at step 0; expected those of the collected steps: log_prob"),
        (changed(episodes=lambda s: (1,)), "other 'episodes' at step 0; expected those of the environment"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_by_name_and_the_run_is_saved(rewrite, said, tmp_path):
    config = dataclasses.replace(PPO_TINY, rollout_length=2, minibatch_size=8)
    rewrite.__name__ = "made_up"
    with (
        tiny("CartPole-v1", "ppo", config=config, rewrite=[rewrite], run_dir=tmp_path / "run") as run,
        pytest.raises(CallbackError, match=f"Rewriter made_up returned .*{said}"),
    ):
        run.train(64)
    with etude.load(tmp_path / "run", rewrite=None) as again:
        again.train(64)


def test_a_rewriter_cannot_write_into_what_was_collected():
    def in_place(steps):
        steps.reward[...] = 0
        return steps

    with tiny(rewrite=in_place) as run, pytest.raises(ValueError, match="in_place raised ValueError.*read-only"):
        run.train(8)


def test_observations_and_actions_may_be_relabelled():
    def relabelled(steps):
        return dataclasses.replace(steps, action=1 - steps.action, observation=steps.observation * np.float32(0.5))

    with tiny("CartPole-v1", rewrite=relabelled) as run, tiny("CartPole-v1") as plain:
        run.train(8)
        plain.train(8)
        rows = run.learner.replay.ring.locate(np.arange(8))
        one, other = run.learner.replay.ring, plain.learner.replay.ring
        np.testing.assert_array_equal(one.action[rows], 1 - other.action[rows])
        np.testing.assert_array_equal(one.observation(rows), other.observation(rows) * np.float32(0.5))


@pytest.mark.parametrize(
    ("algorithm", "more", "said"),
    [
        ("a3c", {}, "A3C collects none: it learns from recorded data, or from gradients"),
        ("es", {}, "ES learns from the returns of whole episodes"),
        ("apex_dqn", {}, "Give ApexDQN actor_priorities=False"),
    ],
)
def test_where_other_steps_are_learned_from_rewriting_is_refused(algorithm, more, said):
    with pytest.raises(ConfigError, match=said):
        Run(algorithm, "CartPole-v1", engine="torch", execution=Execution(rewrite=zeroed), **more)


def test_hindsight_and_imitation_refuse_rewriting():
    from etude.presets import POINT

    with pytest.raises(ConfigError, match="rewrite= changes rewards that hindsight = 'future' computes again"):
        Run("ddpg", POINT, engine="torch", hindsight="future", execution=Execution(rewrite=zeroed))
    data = etude.record("CartPole-v1", 1)
    with pytest.raises(ConfigError, match="GAIL learns from rewards of its own model"):
        Run("gail", "CartPole-v1", data=data, engine="torch", execution=Execution(rewrite=zeroed))
    with pytest.raises(ConfigError, match="BC collects none"):
        Run("bc", "CartPole-v1", data=data, engine="torch", execution=Execution(rewrite=zeroed))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "rewrite = 3; expected functions of Steps"),
        ([zeroed, "rnd"], "rewrite = 'rnd'"),
        (Decaying, "is a class; make one"),
    ],
)
def test_what_is_no_rewriter_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        tiny(config=DQN_TINY, rewrite=given)


def test_the_rewards_of_several_agents_are_rewritten():
    pytest.importorskip("mpe2")
    seen = []

    def halved(steps):
        seen.append(steps.reward.shape)
        return dataclasses.replace(steps, reward=steps.reward / 2)

    with Run(
        "ppo",
        "mpe2:simple_spread_v3",
        config=PPO_TINY,
        environments=2,
        engine="torch",
        execution=Execution(rewrite=halved),
    ) as run:
        run.train(64)
    assert seen[0] == (16, 2, 3)


def test_next_observations_are_the_true_ones_where_episodes_end():
    found = []
    with tiny("CartPole-v1") as run:
        for event in run.steps(200):
            if isinstance(event, Collected):
                for steps in event.steps:
                    found.append((steps, steps.next_observations()))
                    ended = steps.terminated | steps.truncated
                    following = found[-1][1]
                    np.testing.assert_array_equal(following[ended], steps.final_observation)
                    np.testing.assert_array_equal(following[:-1][~ended[:-1]], steps.observation[1:][~ended[:-1]])
                    np.testing.assert_array_equal(following[-1][~ended[-1]], steps.next_observation[~ended[-1]])
