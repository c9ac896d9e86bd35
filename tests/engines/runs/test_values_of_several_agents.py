"""Runs with several agents in environments whose values are known."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from cases import variants_but
from several_worlds import SIGN, Coming, Counting, Dominant, Hidden, Leaving, Meeting, Mixed, Pausing

import etude
from etude import Mlp, Policies, Run
from etude.algorithms import (
    QMIX,
    A2CConfig,
    DQNConfig,
    MADDPGConfig,
    MAPPOConfig,
    MATD3Config,
    PPOConfig,
    QMIXConfig,
    SACConfig,
)
from etude.base import trees
from etude.base.events import Collected
from etude.envs import make_environments, with_global_state
from etude.multi_agent.joint import ACTING
from etude.replay.observations import Whole

GAMMA = 0.8
OFF_POLICY = {"network": Mlp((16,)), "gamma": GAMMA, "learning_rate": 1e-2, "batch_size": 32, "learning_starts": 200}
OFTEN = {"train_every": 100, "gradient_steps": 100}
DQN = DQNConfig(**OFF_POLICY, **OFTEN, n_step=1, target_update_every=20, epsilon=0.5)
SAC = SACConfig(**OFF_POLICY, **OFTEN, tau=0.05, temperature=0.03, learn_temperature=False)
PPO = PPOConfig(  # one-step values: longer returns of states that look alike are others
    network=Mlp((16,), "tanh"),
    gamma=GAMMA,
    gae_lambda=0.0,
    learning_rate=1e-2,
    rollout_length=54,
    minibatch_size=108,
    epochs=10,
    normalize_reward=False,
)
MAPPO = MAPPOConfig(
    network=Mlp((16,), "tanh"),
    gamma=GAMMA,
    gae_lambda=0.0,
    learning_rate=1e-2,
    rollout_length=54,
    minibatch_size=108,
    entropy_coefficient=0.0,
)
CENTRAL = {**OFF_POLICY, **OFTEN, "tau": 0.05}
OFF = ("dqn", "sac", "maddpg", "matd3", "qmix")
CONFIGS = {
    "dqn": DQN,
    "ppo": PPO,
    "mappo": MAPPO,
    "sac": SAC,
    "maddpg": MADDPGConfig(**CENTRAL),
    "matd3": MATD3Config(**CENTRAL),
    "qmix": QMIXConfig(**OFF_POLICY, **OFTEN, target_update_every=20, epsilon=0.5, mixing_units=4),
}


def trained(algorithm, env, engine_name, steps, policies=None, config=None):
    config = config or CONFIGS[algorithm]
    with Run(algorithm, env, config=config, policies=policies, engine=engine_name, environments=4, seed=1) as run:
        run.train(steps)
        return run


def found_values(run, env):
    """What each agent takes an observation to be worth, on average over those on which it acts in one episode."""
    environments = make_environments(env, np.arange(1), run_seed=0)
    space, values, acted, final = environments.spaces.action, 0.0, 0.0, {}
    observation = environments.reset()
    while not final:
        acting = observation["status"][0] == ACTING
        if run.algorithm == "dqn":
            value = np.array([values.max() for values in run.engine.act(observation)])
        else:
            value = run.engine.value(observation)[0]
        values, acted = values + value * acting, acted + acting
        observation, _, _, _, final = environments.step(np.zeros((1, *space.shape), space.dtype))
    return (values / acted).tolist()


@pytest.mark.one_engine("jax")
@pytest.mark.long_but("dqn", "ppo")
@pytest.mark.parametrize(("algorithm", "steps"), [("dqn", 1_800), ("ppo", 4_000), ("mappo", 4_000)])
def test_agents_that_end_or_join_early_are_worth_what_they_earn_while_they_play(algorithm, steps, engine_name):
    run = trained(algorithm, Coming, engine_name, steps)
    assert found_values(run, Coming) == pytest.approx(Coming.values(GAMMA), rel=0.1)


@pytest.mark.one_engine("jax")
@pytest.mark.long_but("dqn")
@pytest.mark.parametrize(("algorithm", "steps"), [("dqn", 1_000), ("ppo", 5_000), ("mappo", 6_000)])
def test_in_turns_a_turn_is_worth_all_that_comes_before_the_next_one(algorithm, steps, engine_name):
    run = trained(algorithm, Counting, engine_name, steps)
    assert found_values(run, Counting) == pytest.approx(Counting.values(GAMMA), rel=0.08)


@pytest.mark.one_engine("jax")
def test_a_critic_of_the_state_values_what_no_agent_sees_and_bootstraps_from_the_final_state(engine_name):
    config = dataclasses.replace(MAPPO, critic_reads="state")
    world = partial(Hidden, timed=False)
    run = trained("mappo", world, engine_name, 2_500, config=config)
    environments = make_environments(with_global_state(world), np.arange(6), run_seed=0)
    observation = environments.reset()
    sides = observation["state"][:, 0]
    assert set(sides) == {0, 1}
    expected = np.stack([sides / (1 - GAMMA)] * 2, 1)
    np.testing.assert_allclose(run.engine.value(observation), expected, atol=0.4)


TOGETHER = {
    "dqn": ("dqn", False, "each", 700),
    "dqn, shared": ("dqn", False, "shared", 700),
    "ppo, shared and told apart": ("ppo", False, Policies("shared", identity=True), 1_500),
    "sac, by name": ("sac", True, Policies({"ann": "one", "bob": "one"}, identity=True), 1_000),
    "dqn, by a function": ("dqn", False, lambda agent: f"policy_{agent}", 700),
    "mappo": ("mappo", False, "shared", 1_500),
    "maddpg": ("maddpg", False, None, 500),
    "matd3": ("matd3", True, None, 1_500),
    "qmix": ("qmix", False, "shared", 1_000),
}


@pytest.mark.one_engine("jax")
@pytest.mark.long_but("dqn", "ppo", "maddpg")
@pytest.mark.parametrize("name", TOGETHER)
def test_two_agents_learn_to_do_together_what_they_see_is_asked_for(name, engine_name):
    algorithm, continuous, policies, steps = TOGETHER[name]
    run = trained(algorithm, partial(Meeting, continuous), engine_name, steps, policies)
    assert run.evaluate(episodes=20).mean > 1.85


@pytest.mark.one_engine("jax")
@pytest.mark.long_but("qmix")
@pytest.mark.parametrize(("algorithm", "earned"), [("vdn", 7), ("qmix", 8)])
def test_mixed_values_find_what_their_sum_does_not(algorithm, earned, engine_name):
    """The two-step game with the presets, of which these are the paper's figures."""
    with Run(algorithm, "etude.examples.two_step_game:TwoStepGame", engine=engine_name, seed=1) as run:
        run.train(1_500)
        assert run.evaluate(episodes=1).mean_by_agent == {"agent_0": earned, "agent_1": earned}


def test_a_team_is_worth_what_goes_on_of_it():
    status = np.array([[1, 1], [1, 2], [1, 3], [3, 3], [2, 3], [0, 3], [2, 2]])
    expected = [[1, 1], [1, 0], [1, 0], [1, 1], [0, 1], [0, 1], [0, 0]]
    assert QMIX.going_on({"status": status}).tolist() == expected


@pytest.mark.one_engine("jax")
@pytest.mark.long_but("maddpg")
@pytest.mark.parametrize(("algorithm", "steps"), [("ppo", 2_500), ("maddpg", 1_800)])
def test_agents_of_different_kinds_learn_together_and_obey_their_masks(algorithm, steps, engine_name):
    run = trained(algorithm, Mixed, engine_name, steps)  # which refuses what is masked
    assert run.evaluate(episodes=20).mean > 1.85


@pytest.mark.one_engine("jax")
@pytest.mark.variant
def test_nothing_is_learned_from_what_an_agent_did_after_its_end(engine_name, monkeypatch):
    def noisy(self, rows):
        """What is stored of agents that do not act becomes nonsense."""
        tree = keep(self, rows)
        gone = tree["status"] != 1
        for i, name in enumerate(sorted(tree["agents"])):
            tree["agents"][name][gone[..., i]] = 1e3
        return tree

    keep = Whole.at
    before = trained("dqn", Coming, engine_name, 600)
    monkeypatch.setattr(Whole, "at", noisy)
    after = trained("dqn", Coming, engine_name, 600)
    for name, value in before.engine.weights().items():
        np.testing.assert_allclose(value, after.engine.weights()[name], rtol=1e-4, atol=1e-5)


BRIEF = {"network": Mlp((4,)), "rollout_length": 60}
OF_FEW = {
    "ppo": PPOConfig(**BRIEF, minibatch_size=10, epochs=2),
    "mappo": MAPPOConfig(**BRIEF, minibatch_size=10, epochs=2),
    "a2c": A2CConfig(**BRIEF, minibatch_size=10, normalize_advantage=True),
}


@pytest.mark.parametrize("algorithm", variants_but(("mappo",), OF_FEW))
def test_minibatches_in_which_no_agent_of_a_policy_acts_change_nothing_of_it(algorithm, engine_name):
    config = OF_FEW[algorithm]
    run = trained(algorithm, Leaving, engine_name, 480, config=config)
    assert all(np.isfinite(value).all() for value in run.engine.weights().values())
    never = partial(Leaving, steps=0)
    with Run(algorithm, never, config=config, engine=engine_name, environments=4, seed=1) as run:
        before = run.learner.trained_weights()
        run.train(240)
        for name, value in run.learner.trained_weights().items():
            assert np.array_equal(value, before[name]) == name.startswith("leaves."), name


@pytest.mark.variant
def test_the_better_action_of_a_zero_sum_game_is_found_with_normalised_rewards(engine_name):
    config = PPOConfig(network=Mlp((16,), "tanh"), rollout_length=64, minibatch_size=128, learning_rate=1e-2)
    assert config.normalize_reward
    run = trained("ppo", Dominant, engine_name, 2_048, config=config)
    seen = {"agents": dict.fromkeys(("left", "right"), np.ones((1, 1), np.float32)), "status": np.ones((1, 2), np.int8)}
    for policy in run.actor().act(seen):
        assert policy.probabilities()[0, 1] > 0.95


class LeavesFor(Leaving):
    """`leaves` is terminated or truncated after its steps; `stays` terminates."""

    def step(self, actions):
        seen, rewards, terminated, truncated, infos = super().step(actions)
        terminated["stays"], truncated["stays"] = self.time == 60, False
        return seen, rewards, terminated, truncated, infos


@pytest.mark.long_but("1-maddpg", "30-mappo")
@pytest.mark.parametrize("algorithm", variants_but((), ["maddpg", "matd3", "mappo"]))
@pytest.mark.parametrize("steps", variants_but((1,), [1, 30]))
def test_whoever_stays_learns_the_same_whether_another_agent_was_truncated_or_terminated(algorithm, steps, engine_name):
    often = {"learning_starts": 60, "train_every": 30, "gradient_steps": 4, "batch_size": 32}
    config = {
        "maddpg": MADDPGConfig(network=Mlp((4,)), n_step=2, **often),
        "matd3": MATD3Config(network=Mlp((4,)), **often),
        "mappo": OF_FEW["mappo"],
    }[algorithm]
    weights = []
    for truncated in (False, True):
        run = trained(algorithm, partial(LeavesFor, steps, truncated), engine_name, 480, config=config)
        weights.append(run.engine.weights())
    for name, value in weights[0].items():
        if name.startswith("stays."):
            np.testing.assert_array_equal(weights[1][name], value, name)
    differ = [name for name in weights[0] if not np.array_equal(weights[0][name], weights[1][name])]
    assert {name.split(".")[0] for name in differ} == {"leaves"}  # its last value is bootstrapped from, or is not


def test_what_is_normalised_is_normalised_by_the_rows_in_which_an_agent_acts(engine_name):
    whole = {"rollout_length": 60, "minibatch_size": 240, "epochs": 1, "learning_rate": 0.0, "network": Mlp((4,))}
    config = PPOConfig(**whole, normalize_value=True, normalize_reward=False)
    seen, batches = [], []
    world = partial(Leaving, steps=20, truncated=True)
    with Run("ppo", world, config=config, engine=engine_name, environments=4, seed=1) as run:
        inner = run.learner.gradients
        run.learner.gradients = lambda batch, *more: (batches.append(batch), inner(batch, *more))[1]
        for event in run.steps(480):
            for steps in event.steps if isinstance(event, Collected) else ():
                seen.append(steps.observation["agents"]["leaves"][steps.observation["status"][..., 0] == ACTING])
        weights = run.engine.weights()
        moments = run.learner.moments.moments["agents.leaves"]
    seen = np.concatenate(seen)
    assert (moments.seen, moments.mean, moments.variance) == pytest.approx((160, seen.mean(), seen.var()))
    assert moments.mean == pytest.approx(109.5)  # 116.5 with its last one for the rest of the episode
    for i, agent in enumerate(("leaves", "stays")):
        active = np.concatenate([batch.extras["active"][..., i].ravel() for batch in batches]) > 0
        returns = np.concatenate([batch.extras["return"][..., i].ravel() for batch in batches])[active]
        assert len(returns) == (160, 480)[i]
        found = weights[f"{agent}.value_normaliser.moments"][:2]
        np.testing.assert_allclose(found, [returns.mean(), returns.std()], rtol=1e-4)


def test_shared_parameters_are_one_set_and_each_agent_has_its_own_otherwise(engine_name):
    for policies, parts in (("each", {"ann", "bob"}), ("shared", {"shared"})):
        with Run("dqn", Meeting, config=DQN, policies=policies, engine=engine_name) as run:
            assert {name.split(".")[0] for name in run.engine.weights()} == parts
            assert set(run.engine.layout.groups) == {f"{part}.q" for part in parts}


class Renamed(Meeting):
    """The same with names that variables cannot have."""

    possible_agents = ["a.b", "c/d e"]

    def step(self, actions):
        return super().step({"ann": actions["a.b"], "bob": actions["c/d e"]})


def test_policies_of_agents_with_dots_in_their_names_are_different_ones():
    spaces = dict.fromkeys(["a.b", "a.b_", "a_b", "b"])
    assert Policies().names(spaces) == {"a.b": "a_b_", "a.b_": "a_b__", "a_b": "a_b", "b": "b"}


@pytest.mark.long_but("dqn", "ppo")
@pytest.mark.variant
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_what_agents_are_called_changes_nothing_of_what_they_learn(algorithm, engine_name, tmp_path):
    found = []
    continuous = algorithm in ("sac", "matd3")
    config = dataclasses.replace(CONFIGS[algorithm], **({"learning_starts": 20} if algorithm in OFF else {}))
    for world, folder in ((partial(Meeting, continuous), "plain"), (partial(Renamed, continuous), "renamed")):
        options = {"config": config, "engine": engine_name, "environments": 4, "seed": 1, "run_dir": tmp_path / folder}
        with Run(algorithm, world, **options) as run:
            run.train(300)
        with etude.load(tmp_path / folder, world) as again:
            again.train(120)
            found.append(again.engine.weights())
    plain, renamed = found
    for name, value in plain.items():
        if name.startswith("normaliser."):
            other = name.replace(".ann.", ".a.b.").replace(".bob.", ".c/d e.")
        else:
            other = name.replace("ann.", "a_b.", 1).replace("bob.", "c/d e.", 1)
        np.testing.assert_array_equal(renamed[other], value, name)


@pytest.mark.parametrize("algorithm", variants_but({"ppo"}, CONFIGS))
def test_what_nobody_acts_in_teaches_nothing(algorithm, engine_name):
    rarely = {"learning_starts": 20, "gradient_steps": 2} if algorithm in OFF else {}
    config = dataclasses.replace(CONFIGS[algorithm], **rarely)
    world = partial(Pausing, (), SIGN if algorithm in ("sac", "matd3") else None)
    with Run(algorithm, world, config=config, engine=engine_name, environments=4, seed=1) as run:
        before = run.engine.weights()
        run.train(240)
        assert run.learner.progress.episodes == 20
        assert run.learner.progress.gradient_steps > 0
        for name, value in run.engine.weights().items():
            np.testing.assert_array_equal(value, before[name], name)


@pytest.mark.parametrize("algorithm", variants_but({"ppo"}, ("ppo", "mappo")))
def test_actions_between_pauses_are_learned(algorithm, engine_name):
    run = trained(algorithm, Pausing, engine_name, 864, "shared")
    assert run.evaluate(episodes=1).mean == 6


@pytest.mark.variant
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_numpy_acts_for_all_agents_as_the_engine_does(algorithm, engine_name):
    env = partial(Meeting, algorithm in ("sac", "matd3"))
    with Run(algorithm, env, config=CONFIGS[algorithm], engine=engine_name) as run:
        side = np.array([[-1.0], [0.5], [1.0]], np.float32)
        seen = {"agents": {"ann": side, "bob": -side}, "status": np.ones((3, 2), np.int8)}
        outputs = [trees.leaves(acting.act(seen)) for acting in (run.actor(), run.engine)]
        for mine, theirs in zip(*outputs, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
