"""Intrinsic rewards of RND and ICM: trained beside the agent, in the checkpoints of a run."""

from __future__ import annotations

import copy
import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from run_cases import DQN_TINY, PPO_TINY, SAC_TINY, differences

import etude
from etude import Linear, Mlp, Run
from etude.base.errors import CheckpointError, ConfigError
from etude.base.events import Collected, Learned
from etude.rewrite import E3B, ICM, RND
from etude.run import from_state
from etude.training.description import Execution

SMALL = {"network": Mlp((8,)), "features": 4, "batch_size": 24, "learning_rate": 1e-2}
MADE = {
    "rnd": RND(**SMALL, coefficient=Linear(1.0, 0.5)),
    "icm": ICM(**SMALL, model_network=Mlp((8,))),
    "e3b": E3B(**SMALL, model_network=Mlp((8,)), ridge=0.3),
}
CASES = {"ppo": ("CartPole-v1", PPO_TINY), "dqn": ("CartPole-v1", DQN_TINY), "sac": ("Pendulum-v1", SAC_TINY)}


def made(engine_name, algorithm="ppo", rewrite="rnd", **more):
    env, config = CASES[algorithm]
    given = MADE[rewrite] if isinstance(rewrite, str) else rewrite
    return Run(
        algorithm,
        env,
        config=config,
        environments=4,
        seed=3,
        engine=engine_name,
        execution=Execution(rewrite=given),
        **more,
    )


def rewriter(run, name="rnd"):
    return run.learner.rewriters._rewriters[name]


def plain(state):
    return {name: part for name, part in state.items() if name != "description"}


@pytest.mark.long_but("ppo", "sac")
@pytest.mark.variant
@pytest.mark.parametrize(("algorithm", "rewrite"), [("ppo", "rnd"), ("dqn", "icm"), ("sac", "icm"), ("dqn", "e3b")])
def test_a_run_goes_on_from_a_checkpoint_with_the_same_numbers_and_in_workers(
    algorithm, rewrite, engine_name, tmp_path
):
    with made(engine_name, algorithm, rewrite) as run:
        run.train(136)
        run.save(tmp_path / "run.etude")
        events = list(run.steps(120))
        expected = plain(run.state())
    learned = [event for event in events if isinstance(event, Learned)]
    assert learned[-1].metrics[f"{rewrite}_reward"] > 0
    with etude.load(tmp_path / "run.etude", workers=2) as again:
        assert again.description()["rewrite"][0]["class"] == rewrite.upper()
        again.train(120)
        assert differences(expected, plain(again.state())) == []


def test_rnd_rewards_are_the_errors_of_the_predictor_at_the_next_observation(engine_name):
    with made(engine_name) as run:
        run.train(64)
        own = rewriter(run)
        agent = own._engine.layout.bind(own._engine.weights())
        seen = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
        following = seen[::-1].copy()
        found = own._engine.reward(seen, np.zeros(5, np.int64), following, np.zeros(5, np.float32))
        normalised = agent.normaliser(following)
        expected = ((agent.predictor(normalised) - agent.target(normalised)) ** 2).mean(-1)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_icm_rewards_are_half_the_squared_distance_between_features(engine_name):
    with made(engine_name, rewrite="icm") as run:
        run.train(64)
        own = rewriter(run, "icm")
        agent = own._engine.layout.bind(own._engine.weights())
        seen = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
        following, action = seen[::-1].copy(), np.array([0, 1, 1, 0, 1])
        found = own._engine.reward(seen, action, following, np.zeros(5, np.float32))
        before, after = (agent.model["encoder"](agent.normaliser(each)) for each in (seen, following))
        predicted = agent.model["forward"]((before, action))
        expected = [
            0.5 * sum((x - y) ** 2 for x, y in zip(p, a, strict=True)) for p, a in zip(predicted, after, strict=True)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_e3b_rewards_are_those_of_a_slow_program_which_inverts_the_covariance_of_each_episode(engine_name):
    """In parts, of environments whose episodes end at other times."""
    with made(engine_name, rewrite=None) as run:
        parts = [copy.deepcopy(p) for e in run.steps(200) if isinstance(e, Collected) for p in e.steps]
    assert len(parts) > 2 and sum(len(part.episodes) for part in parts) > 4
    with made(engine_name, rewrite="e3b") as run:
        own, before = rewriter(run, "e3b"), {}
        agent = own._engine.layout.bind(own._engine.weights())
        for part in parts:
            following = part.next_observations()
            rows = {"observation": part.observation, "action": part.action, "next_observation": following}
            reward = own._rewards(part, {name: x.reshape(-1, *x.shape[2:]) for name, x in rows.items()})
            for t, n in np.ndindex(*reward.shape):
                column = part.columns[n]
                f = np.float64(agent.model["encoder"](agent.normaliser(following[t, n][None]))[0])
                covariance = sum((np.outer(x, x) for x in before.get(column, [])), 0.3 * np.eye(4))
                assert reward[t, n] == pytest.approx(f @ np.linalg.inv(covariance) @ f, rel=1e-3, abs=1e-5)
                ended = part.terminated[t, n] | part.truncated[t, n]
                before[column] = [] if ended else [*before.get(column, []), f]


def test_what_is_seen_again_and_again_becomes_less_interesting_and_the_target_stays(engine_name):
    with made(engine_name, rewrite=RND(**SMALL, normalize_observation=False)) as run:
        own, seen, errors = rewriter(run), [], []
        target = own._engine.weights([name for name in own._engine.layout.initial if name.startswith("target")])
        for event in run.steps(64):
            seen += [copy.deepcopy(part) for part in event.steps] if isinstance(event, Collected) else []
        for _ in range(60):
            rows = {"observation": seen[0].observation, "action": seen[0].action}
            rows["next_observation"] = seen[0].next_observations()
            flat = {name: tree.reshape(-1, *tree.shape[2:]) for name, tree in rows.items()}
            errors.append(own._reward(flat, 64).mean())
            own._learn(flat)
        assert errors[-1] < 0.2 * errors[0]
        for name, weight in own._engine.weights(list(target)).items():
            np.testing.assert_array_equal(weight, target[name])


@pytest.mark.variant
def test_intrinsic_rewards_are_added_to_what_is_learned_from_and_not_to_what_is_reported(engine_name):
    totals, lengths = [], []
    with made(engine_name, "dqn") as run:
        for event in run.steps(200):
            for episode in event.episodes if isinstance(event, Collected) else ():
                totals.append(episode.total)
                lengths.append(episode.length)
        ring = run.learner.replay.ring
        reward = ring.reward[ring.locate(np.arange(len(ring)))].reshape(-1, 4)
        assert totals == lengths
        assert (reward[:4] == 1).all(), "nothing is added before batch_size steps"
        assert (reward[6:] > 1).all()
        assert differences(plain(run.state()), plain(made(engine_name, "dqn", None).state())) != []


def test_the_mean_of_what_was_added_is_told_and_any_number_of_rows_has_its_own_rewards(engine_name):
    with made(engine_name, rewrite=RND(**SMALL)) as run:
        own = rewriter(run)
        for event in run.steps(64):
            collected = [copy.deepcopy(part) for part in event.steps] if isinstance(event, Collected) else []
            if not collected:
                continue
            for part in collected:
                tree = {name: getattr(part, name) for name in ("observation", "action")}
                tree["next_observation"] = part.next_observations()
                flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in tree.items()}
                count = len(flat["action"])
                whole = own._reward(flat, count)
                for few in (count - 1, 3, 1):  # filled up to a power of two
                    np.testing.assert_allclose(
                        own._reward({name: x[:few] for name, x in flat.items()}, few), whole[:few], rtol=1e-5
                    )
                before = part.reward.copy()
                added = own(part).reward - before
                assert own.metrics()["rnd_reward"] == pytest.approx(added.mean(), rel=1e-4, abs=1e-6)
            return


@pytest.mark.variant
def test_a_coefficient_of_nothing_changes_no_number_of_the_agent(engine_name):
    states = []
    for given in (None, RND(**SMALL, coefficient=0.0)):
        with made(engine_name, rewrite=given) as run:
            run.train(128)
            states.append(run.state())
    assert differences(states[0]["engine"], states[1]["engine"]) == []


class Looking(gym.Env):
    """Small images, and several choices at a time."""

    observation_space = gym.spaces.Dict(
        {"picture": gym.spaces.Box(0, 255, (8, 8, 1), np.uint8), "place": gym.spaces.Discrete(3)}
    )
    action_space = gym.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), 0.0, False, self.t == 5, {}

    def observe(self):
        picture = self.np_random.integers(0, 255, (8, 8, 1), dtype=np.uint8)
        return {"picture": picture, "place": self.t % 3}


@pytest.mark.variant
@pytest.mark.parametrize("kind", [RND, ICM, E3B])
def test_images_choices_and_several_actions_are_seen(kind, engine_name):
    config = dataclasses.replace(PPO_TINY, network=Mlp((8,)))
    with Run(
        "ppo",
        Looking,
        config=config,
        environments=2,
        engine=engine_name,
        execution=Execution(rewrite=kind(batch_size=16)),
    ) as run:
        event = [event for event in run.steps(64) if isinstance(event, Learned)][-1]
    assert event.metrics[f"{kind.name}_reward"] > 0


@pytest.mark.variant
def test_two_of_a_kind_and_a_function_work_together(engine_name):
    def zeroed(steps):
        return dataclasses.replace(steps, reward=np.zeros_like(steps.reward))

    with made(engine_name, rewrite=[zeroed, RND(**SMALL), RND(**SMALL)]) as run:
        event = [event for event in run.steps(128) if isinstance(event, Learned)][-1]
        one, other = rewriter(run), rewriter(run, "rnd_2")
        assert differences(one._engine.weights(), other._engine.weights()) != []
    assert {"rnd_reward", "rnd_2_reward"} <= event.metrics.keys()


@pytest.mark.variant
@pytest.mark.parametrize("name", ["rnd", "icm", "e3b"])
def test_a_run_goes_on_with_another_number_of_environments(name, engine_name):
    with made(engine_name, rewrite=name) as run:
        run.train(72)
        state = run.state()
    with pytest.warns(UserWarning, match="had 4 environments and has 3"):
        again = from_state(state, "CartPole-v1", environments=3)
    with again:
        own, was = rewriter(again, name), state["rewriters"][name]
        assert differences(own._engine.weights(), was["engine"]["values"]) == []
        if name == "e3b":
            assert np.array_equal(own._inverse, np.tile(own._fresh, (3, 1, 1)))
        event = [event for event in again.steps(96) if isinstance(event, Learned)][-1]
    assert event.metrics[f"{name}_reward"] > 0


@pytest.mark.variant
def test_a_state_that_does_not_fit_is_refused(engine_name):
    with made(engine_name) as run:
        run.train(72)
        state = run.state()
    with made(engine_name, rewrite="e3b") as run:
        run.train(72)
        episodic = run.state()
    for wrong in (np.eye(4), None, np.full((4, 4, 4), np.nan, np.float32)):
        episodic["rewriters"]["e3b"]["inverse"] = wrong
        with pytest.raises(CheckpointError, match="rewriters/e3b/inverse"):
            from_state(episodic, "CartPole-v1")
    for place, wrong in (("waiting", {}), ("scale", 3), ("engine", {}), ("metrics", {"a": "b"})):
        changed = copy.deepcopy(state)
        changed["rewriters"]["rnd"][place] = wrong
        with pytest.raises(CheckpointError, match=f"rewriters/rnd/{place}"):
            from_state(changed, "CartPole-v1")
    changed = copy.deepcopy(state)
    changed["description"]["rewrite"] = [{"class": "Linear", "start": 0.0, "end": 1.0}]
    with pytest.raises(CheckpointError, match="expected a rewriter"):
        from_state(changed, "CartPole-v1")


@pytest.mark.variant
def test_what_cannot_be_is_refused(engine_name):
    for wrong in ({"coefficient": -1.0}, {"features": 0}, {"batch_size": 0}, {"gamma": 2.0}, {"optimizer": "adam"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            RND(**wrong)
    with pytest.raises(ConfigError, match="ridge"):
        E3B(ridge=0.0)
    with pytest.raises(ConfigError, match="forward_share"):
        ICM(forward_share=2.0)
    pytest.importorskip("mpe2")
    with pytest.raises(ConfigError, match=r"RND\(\) adds one reward for each step; this environment has several"):
        Run("ppo", "mpe2:simple_spread_v3", engine=engine_name, execution=Execution(rewrite=RND()))


@pytest.mark.long
@pytest.mark.variant
def test_e3b_finds_goals_that_lie_elsewhere_in_every_episode_and_that_random_walks_miss(engine_name):
    """Without it a tenth of the episodes and fewer reach a goal 20 steps away by then."""
    world = etude.Environment("etude.examples.far_goal:FarGoal", args={"distance": 20})
    ended = []
    rewrite = Execution(rewrite=E3B(coefficient=0.1))
    with Run("ppo", world, environments=8, seed=1, engine=engine_name, execution=rewrite) as run:
        for event in run.steps(32_768):
            ended += event.episodes if isinstance(event, Collected) else ()
    assert np.mean([episode.total for episode in ended[-200:]]) > 0.4
