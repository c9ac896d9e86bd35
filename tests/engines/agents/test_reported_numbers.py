"""The size of every loss, every metric and every error for priorities is what a slow program makes of the batch, which
imports nothing of etude."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import slow_games
import slow_losses as slow
from batches import pick, random_batches
from cases import CASES, in_turn, made, variants_but

from etude.algorithms import ALGORITHMS
from etude.engines.parameter_layout import loss_noise
from etude.multi_agent.joint import split_actions

TRUTH = {
    "dqn": slow.dqn,
    "double dqn, masked": slow.dqn,
    "dqn, dueling and noisy, masked": slow.dqn,
    "apex_dqn": slow.dqn,
    "pqn": slow.pqn,
    "lin_ucb": slow.lin_ucb,
    "lin_ucb, masked": slow.lin_ucb,
    "neural_ts": slow.neural_ts,
    "neural_ts, masked": slow.neural_ts,
    "c51": slow.c51,
    "c51, double, masked": slow.c51,
    "rainbow": slow.c51,
    "qr_dqn": slow.qr_dqn,
    "qr_dqn, double, masked": slow.qr_dqn,
    "r2d2, masked": slow.r2d2,
    "v_mpo, masked": slow.v_mpo,
    "v_mpo box on nested": slow.v_mpo,
    "a2c discrete": slow.a2c,
    "a2c multibinary": slow.a2c,
    "a3c box": slow.a2c,
    "a2c box": slow.a2c,
    "a3c discrete": slow.a2c,
    "ppo discrete": slow.ppo,
    "ppo multidiscrete": slow.ppo,
    "ppo box, normalised": slow.ppo,
    "ppo box, gsde": slow.ppo,
    "ppo masked": slow.ppo,
    "ppo with a penalty": slow.ppo,
    "recurrent_ppo, masked": slow.recurrent_ppo,
    "reinforce discrete": slow.reinforce,
    "reinforce box, bare": slow.reinforce,
    "impala discrete": slow.impala,
    "impala multidiscrete": slow.impala,
    "appo discrete": slow.appo,
    "appo box": slow.appo,
    "bc box": slow.bc,
    "bc box, squared error": slow.bc,
    "bc masked": slow.bc,
    "marwil discrete": slow.marwil,
    "marwil box": slow.marwil,
    "gail discrete": slow.gail,
    "gail box": slow.gail,
    "airl discrete": slow.airl,
    "airl box": slow.airl,
    "sac": slow.sac,
    "sac, fixed temperature": slow.sac,
    "sac, five critics": slow.sac,
    "sac, gsde": slow.sac,
    "sac_n": slow.sac,
    "sac, droq": slow.droq,
    "sac, simba": slow.sac,
    "dqn, simba": slow.dqn,
    "dqn, spectral": slow.spectral_dqn,
    "dreamer_v3": slow.dreamer_v3,
    "dreamer_v3 masked, from zeros": slow.dreamer_v3,
    "td_mpc2": slow.td_mpc2,
    "mpo": slow.mpo,
    "mpo, masked": slow.mpo,
    "cql discrete": slow.cql,
    "cql box": slow.cql,
    "cql box, lagrange": slow.cql,
    "cal_ql": slow.cql,
    "discrete sac": slow.discrete_sac,
    "discrete sac, masked": slow.discrete_sac,
    "ddpg": slow.ddpg,
    "apex_ddpg": slow.ddpg,
    "td3": slow.td3,
    "rebrac": slow.rebrac,
    "bc on tokens": slow_games.bc,
    "decision_transformer": slow_games.decision_transformer,
    "decision_transformer, masked": slow_games.decision_transformer,
    "ilql": slow_games.ilql,
    "ilql, monte carlo": slow_games.ilql,
    "grpo": slow_games.grpo,
    "dpo": slow_games.dpo,
    "reward_model": slow_games.reward_model,
    "rlhf": slow_games.rlhf,
    "awac": slow.awac,
    "iql discrete": slow.iql,
    "iql box": slow.iql,
    "dqn, several": slow.independent(slow.dqn),
    "ppo, several": slow.independent(slow.ppo),
    "td3, several": slow.independent(slow.td3),
    "v_mpo, several": slow.independent(slow.v_mpo),
    "mappo": slow.mappo,
    "mappo, shared": slow.mappo,
    "mappo, state": slow.mappo,
    "maddpg": slow.maddpg,
    "maddpg discrete": slow.maddpg,
    "maddpg, state": slow.maddpg,
    "matd3": slow.maddpg,
    "qmix": slow.qmix,
    "qmix, shared, state": slow.qmix,
    "vdn": slow.qmix,
}
CASE = {case.name: case for case in CASES}
LISTED = {CASE[name].algorithm for name in TRUTH}
TRUTH |= {  # all cases of an algorithm that are not told apart above
    case.name: getattr(slow, case.algorithm)
    for case in CASES
    if case.algorithm not in LISTED and case.algorithm in vars(slow) and case.spaces.agents is None
}
SEVERAL = ["ppo, several", "matd3", "dqn, several", "td3, several", "mappo", "mappo, shared", "maddpg discrete"]


def otherwise(weights, rng):
    """Weights that are far from their initial ones, so that targets differ and policies are no longer alike."""
    found = {}
    for name, x in weights.items():
        moved = x + 0.3 * rng.standard_normal(x.shape)
        if name.endswith("renorm_passes"):  # the second batch is the first whose statistics are corrected
            moved = np.full_like(x, 99_999)
        if name.endswith(".inverse"):  # of a sum of squares
            moved = moved @ np.swapaxes(moved, 1, 2) + 0.5 * np.eye(x.shape[-1])
        positive = name.endswith((".scale", "coefficient", "moments", "variance"))
        found[name] = x if "noise_" in name else np.asarray(np.abs(moved) + 0.1 if positive else moved, x.dtype)
    return found


def driven(case):
    """The agents of each policy."""
    agents = tuple(case.spaces.agents)
    return {agent: (agent,) for agent in agents} if case.policies is None else {"shared": agents}


def possible(batches, case):
    """Random batches of several agents in which no agent takes a forbidden action, or is truncated: then it would be
    there for the bootstrap alone."""
    if case.spaces.agents is None:
        return batches
    for tree in (batches.observation, batches.next_observation):
        if tree is not None:
            tree["status"] = np.where(tree["status"] == 3, 1, tree["status"]).astype(tree["status"].dtype)
    for name, action in split_actions(case.spaces.agents, batches.action).items():
        if case.spaces.agents[name].masked:
            mask = batches.observation["agents"][name]["action_mask"]
            np.put_along_axis(mask, action[..., None], 1, -1)
    return batches


@pytest.mark.parametrize("name", variants_but(in_turn(TRUTH), TRUTH))
def test_losses_metrics_and_errors_are_those_of_a_slow_program(name, engine_name):
    case = CASE[name]
    engine, layout = made(case, engine_name), made(case, engine_name).layout
    weights = otherwise(engine.weights(), np.random.default_rng(5))
    engine.load(weights)
    due = dict.fromkeys(layout.agent.trained_every.values(), 1)
    still = dict.fromkeys(layout.rates.values(), 0.0)
    hyper = case.hyper(tau=0.0, max_kl=0.0, target_update_every=1_000_000, **due, **still)
    batches = possible(random_batches(case, 2, 16), case)
    found, update = slowly(name, weights, hyper, batches, layout), engine.learn(batches, hyper)
    for reported, expected in ((update.losses, [x[0] for x in found]), (update.metrics, [x[1] for x in found])):
        own = {key: x for key, x in reported.items() if "gradient" not in key or key == "gradient_similarity"}
        own.pop("actor_step_size", None)  # any, of a step of no length
        mean = {key: np.mean([each[key] for each in expected]) for key in expected[0]}
        assert own == pytest.approx(mean, rel=1e-4, abs=1e-5)
    if update.td_error is not None:
        np.testing.assert_allclose(np.abs(update.td_error), np.abs([x[2] for x in found]), rtol=1e-3, atol=1e-4)


def slowly(name, weights, hyper, batches, layout):
    """What the slow program makes of each batch: (losses, metrics, errors)."""
    case, (k, n) = CASE[name], batches.weight.shape[:2]
    noise = layout.draw_noise(loss_noise(0), k, n)
    config = {field.name: getattr(case.config, field.name) for field in dataclasses.fields(case.config)}
    more = {key: getattr(case.config, key, None) for key in ("n_target_critics", "policy_delay")}
    c = SimpleNamespace(**{**more, **config, **hyper})
    found = []
    for i in range(k):
        drawn = {key: x[i] for key, x in noise.items()}
        given = slow.Numbers(weights, drawn, c, case.spaces.observation, case.spaces.action)
        if case.spaces.agents is not None:
            given.action = {agent: own.action for agent, own in case.spaces.agents.items()}
            given.driven, given.identity = driven(case), case.policies is not None
        batch = pick(batches, i)
        plain = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        found.append(TRUTH[name](given, SimpleNamespace(**plain)))
        weights = weights | getattr(given, "after", {})  # statistics that a pass of training moves
    return found


@pytest.mark.parametrize("name", variants_but({"ppo, several": ("tensorflow",), "matd3": ("jax",)}, SEVERAL))
def test_minibatches_without_an_active_agent_of_a_policy_are_left_out_of_the_means(name, engine_name):
    """Also where delayed losses are due in some of them alone."""
    case = CASE[name]
    engine, layout = made(case, engine_name), made(case, engine_name).layout
    weights = otherwise(engine.weights(), np.random.default_rng(5))
    engine.load(weights)
    still = dict.fromkeys(layout.rates.values(), 0.0)
    hyper = case.hyper(tau=0.0, target_update_every=1_000_000, **still)
    hyper |= dict.fromkeys(layout.agent.trained_every.values(), 2)
    batches = possible(random_batches(case, 4, 16), case)
    policy, agents = next(iter(driven(case).items()))
    found = slowly(name, weights, hyper, batches, layout)
    batches.extras["active"][1, :, [list(case.spaces.agents).index(agent) for agent in agents]] = 0.0
    update = engine.learn(batches, hyper)
    for reported, expected in ((update.losses, [x[0] for x in found]), (update.metrics, [x[1] for x in found])):
        for key in expected[0]:
            rare = key in layout.agent.trained_every or key.endswith("saturation")  # which the actor's loss tells
            steps = {1, 3} if rare else {0, 1, 2, 3}
            told = steps - {1} if key.startswith(f"{policy}.") else steps
            assert reported[key] == pytest.approx(np.mean([expected[i][key] for i in told]), rel=1e-4, abs=1e-5), key
    batches.extras["active"][:] = 0.0
    nothing = engine.learn(batches, hyper)
    assert not [key for key in (*nothing.losses, *nothing.metrics) if key.partition(".")[0] in driven(case)]


def test_every_algorithm_that_has_losses_has_a_slow_program():
    assert {CASE[name].algorithm for name in TRUTH} == ALGORITHMS.keys() - {"ars", "es"}
