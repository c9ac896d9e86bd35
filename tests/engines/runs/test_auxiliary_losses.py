"""Terms added to the losses of agents: `etude.Auxiliary`."""

from __future__ import annotations

import dataclasses

import cloudpickle
import numpy as np
import pytest
from batches import random_batches
from cases import CASES
from run_cases import A3C_TINY, DQN_TINY, PPO_TINY, RAINBOW_TINY, SAC_TINY, differences

import etude
from etude import Loss, Losses, Run, engines, ops
from etude.algorithms import A3C, BC, C51, DQN, ES, PPO, SAC, BCConfig, ESConfig
from etude.base import trees
from etude.base.data import Batch
from etude.base.errors import CheckpointError, ConfigError, DataError
from etude.losses.distributions import Categorical

SMALL = {"environments": 4, "seed": 3}
PPO_SMALL = dataclasses.replace(PPO_TINY, learning_rate=1e-2)


class Balance:
    """An expert of CartPole: it pushes the cart to where the pole falls."""

    state_size = 0

    def act(self, observation):
        push = (observation[:, 2] + 0.5 * observation[:, 3] > 0).astype(np.float32)
        return Categorical(np.stack([1 - push, push], -1) * 50)


@pytest.fixture(scope="module")
def expert():
    return etude.record("CartPole-v1", 3, Balance(), seed=1)


def cloning(agent, batch, noise):
    """The negative log likelihood of recorded actions."""
    return -ops.mean(agent.act(batch.observation).log_prob(batch.action))


def size_of_values(agent, batch, noise):
    return ops.mean(ops.square(agent.value(batch.observation)))


def trained(agent, engine_name, steps=128, env="CartPole-v1", **more):
    with Run(agent, env, engine=engine_name, **{**SMALL, **more}) as run:
        run.train(steps)
        return run.state()


def without_description(state):
    return {name: part for name, part in state.items() if name != "description"}


def test_the_gradient_with_a_term_is_the_sum_of_the_two(engine_name):
    case = next(case for case in CASES if case.name == "ppo discrete")
    config = dataclasses.replace(case.config, max_gradient_norm=None)

    def alone(self, batch, noise):
        return Losses(model=Loss(size_of_values(self, batch, noise)))

    agents = [
        PPO(config),
        etude.variant(PPO, loss=alone)(config),
        etude.Auxiliary(PPO(config), size_of_values, coefficient=0.3, name="small"),
    ]
    batches, found = random_batches(case, 1, 16), []
    fields = {field.name: getattr(batches, field.name) for field in dataclasses.fields(Batch)}
    batch = Batch(**{name: None if x is None else trees.map(lambda leaf: leaf[0], x) for name, x in fields.items()})
    for agent in agents:
        engine = engines.create(engine_name, agent, case.spaces, seed=1)
        found.append(engine.gradients(batch, {**case.hyper(), "max_gradient_norm": 1.0}))
    (own, told), (term, value), (both, summed) = found
    for name, gradient in both.items():
        np.testing.assert_allclose(gradient, own[name] + 0.3 * term[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert summed.losses["model"] == pytest.approx(told.losses["model"] + 0.3 * value.losses["model"], rel=1e-5)
    assert summed.metrics == pytest.approx({**told.metrics, "small": value.losses["model"]}, rel=1e-5)


@pytest.mark.variant
def test_recorded_transitions_are_learned_from_in_a_pool_and_after_a_checkpoint_alike(engine_name, expert, tmp_path):
    agent = etude.Auxiliary(PPO(PPO_SMALL), cloning, expert, name="cloning", batch_size=32)
    whole = trained(agent, engine_name, 192)
    assert whole["description"]["algorithm"] == "ppo_cloning" and len(whole["recorded"]["cloning"]["ring"]["kind"])
    workers = trained(agent, engine_name, 192, workers=2)
    assert differences(without_description(whole), without_description(workers)) == []
    with Run(agent, "CartPole-v1", engine=engine_name, **SMALL) as run:
        learned = [event for event in run.steps(128) if hasattr(event, "losses")]
        assert learned[-1].metrics["cloning"] < learned[0].metrics["cloning"] < 0.8  # ln 2 is that of chance
        run.save(tmp_path / "half.etude")
    with etude.load(tmp_path / "half.etude", agent=agent) as run:
        run.train(64)
        assert differences(without_description(whole), without_description(run.state())) == []
    with pytest.raises(CheckpointError, match="of ppo_cloning, and the run is of ppo"):
        etude.load(tmp_path / "half.etude", agent=PPO(PPO_SMALL))
    fewer = etude.Auxiliary(PPO(PPO_SMALL), cloning, expert.episodes[:1], name="cloning")
    with pytest.raises(CheckpointError, match="capacity"):
        etude.load(tmp_path / "half.etude", agent=fewer)


@pytest.mark.variant
def test_workers_that_collect_ahead_learn_with_recorded_transitions(engine_name, expert):
    agent = etude.Auxiliary(PPO(PPO_SMALL), cloning, expert)
    state = trained(agent, engine_name, 128, workers=2, overlap=True)
    assert state["progress"]["gradient_steps"] > 0


def of_values(agent, batch, noise):
    """The large-margin loss of Hester et al. 2018, with a margin of 0.8."""
    values = agent.act(batch.observation)
    shown = ops.one_hot(batch.action, 2)
    return ops.mean(ops.max(values + 0.8 * (1 - shown), -1) - ops.sum(values * shown, -1))


@pytest.mark.variant
def test_terms_are_for_every_kind_of_learning_that_computes_losses_in_this_process(engine_name, expert):
    for agent in (DQN(DQN_TINY), etude.variant(DQN, loss=DQN.loss)(DQN_TINY)):
        state = trained(etude.Auxiliary(agent, of_values, expert, name="margin"), engine_name)
        assert "margin" in state["recorded"]
    reinforce = etude.algorithms.Reinforce(etude.algorithms.ReinforceConfig(network=PPO_TINY.network))
    trained(etude.Auxiliary(reinforce, cloning, expert, name="cloning"), engine_name)
    impala = etude.algorithms.IMPALA(etude.algorithms.IMPALAConfig(network=PPO_TINY.network, rollout_length=8))
    trained(etude.Auxiliary(impala, cloning, expert), engine_name)
    bc = etude.Auxiliary(BC(BCConfig(network=PPO_TINY.network, batch_size=8)), cloning, expert, coefficient=0.0)
    with Run(bc, "CartPole-v1", data=expert, engine=engine_name) as run:
        run.train(200)
    rainbow = dataclasses.replace(RAINBOW_TINY, actor_priorities=True)
    trained(etude.Auxiliary(C51(rainbow), lambda agent, batch, noise: 0.0 * ops.mean(batch.reward)), engine_name)


def test_a_term_of_coefficient_0_changes_nothing_and_terms_can_be_added_to_terms(engine_name, expert):
    plain = trained(PPO(PPO_SMALL), engine_name)
    one = etude.Auxiliary(PPO(PPO_SMALL), cloning, expert, coefficient=0.0, name="cloning")
    two = etude.Auxiliary(one, size_of_values, coefficient=0.0, name="small")
    state = trained(two, engine_name)
    assert state["description"]["algorithm"] == "ppo_cloning_small"
    for name, weight in plain["engine"]["values"].items():
        np.testing.assert_allclose(state["engine"]["values"][name], weight, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.variant
def test_workers_get_the_agent_without_its_data(expert):
    agent = etude.Auxiliary(PPO(PPO_SMALL), cloning, expert, name="cloning")
    sent = cloudpickle.dumps(agent)
    assert cloudpickle.loads(sent).recorded["cloning"].data is None and agent.recorded["cloning"].data is expert
    assert len(sent) < 30_000 < len(cloudpickle.dumps(expert))


@pytest.mark.variant
def test_a_term_of_an_agent_with_several_losses_names_one(engine_name):
    def of_actions(agent, batch, noise):
        return ops.mean(ops.square(agent.act(batch.observation).mode()))

    with pytest.raises(ConfigError, match="to = None; the losses of SAC_small are .*actor.*Name the one"):
        trained(etude.Auxiliary(SAC(SAC_TINY), of_actions, name="small"), engine_name, 8, "Pendulum-v1")
    with pytest.raises(ConfigError, match="to = 'policy'; the losses of SAC_small are"):
        trained(etude.Auxiliary(SAC(SAC_TINY), of_actions, name="small", to="policy"), engine_name, 8, "Pendulum-v1")
    agent = etude.Auxiliary(SAC(SAC_TINY), of_actions, name="small", to="actor")
    with Run(agent, "Pendulum-v1", engine=engine_name, **SMALL) as run:
        learned = [event for event in run.steps(48) if hasattr(event, "losses")]
        assert "small" in learned[-1].metrics


@pytest.mark.variant
def test_a_term_without_data_is_for_several_agents_and_one_with_data_is_not(engine_name, expert):
    pytest.importorskip("mpe2")
    env = "mpe2:simple_spread_v3"
    state = trained(etude.Auxiliary(PPO(PPO_SMALL), size_of_values, name="small"), engine_name, 64, env)
    assert state["progress"]["gradient_steps"] > 0
    with pytest.raises(ConfigError, match=r"reads recorded data \(cloning\) of one agent; this environment has sev"):
        Run(etude.Auxiliary(PPO(PPO_SMALL), cloning, expert, name="cloning"), env, engine=engine_name)


@pytest.mark.variant
def test_workers_that_compute_losses_have_no_recorded_data(engine_name, expert):
    rainbow = C51(dataclasses.replace(RAINBOW_TINY, actor_priorities=True))
    for agent in (rainbow, A3C(A3C_TINY)):
        with pytest.raises(ConfigError, match="its workers compute losses, without this data"):
            Run(etude.Auxiliary(agent, cloning, expert), "CartPole-v1", engine=engine_name)


@pytest.mark.variant
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"agent": "ppo"}, "Auxiliary takes an agent, .*; got 'ppo'"),
        ({"agent": ES(ESConfig())}, "ES has no loss that a term could be added to"),
        ({"loss": 3}, "loss = 3; expected a function"),
        ({"loss": lambda batch: batch}, r"loss takes \(batch\); expected loss\(agent, batch, noise\)"),
        ({"coefficient": np.nan}, "coefficient = nan; expected a finite number"),
        ({"coefficient": "1"}, "coefficient = '1'; expected a finite number"),
        ({"name": "my loss"}, "name = 'my loss'; expected a name of letters"),
        ({"batch_size": 0}, "batch_size = 0; expected a whole number of at least 1"),
    ],
)
def test_what_makes_no_term_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        etude.Auxiliary(**{"agent": PPO(PPO_SMALL), "loss": cloning, **given})


@pytest.mark.variant
@pytest.mark.parametrize(
    ("loss", "name", "said"),
    [
        (lambda agent, batch, noise: agent.value(batch.observation), "x", r"loss of 'x' returned an array of shape"),
        (lambda agent, batch, noise: 3.0, "x", "loss of 'x' returned float; expected a scalar"),
        (lambda agent, batch, noise: Loss(ops.mean(batch.reward)), "x", "loss of 'x' returned Loss; expected a scalar"),
        (size_of_values, "entropy", "name = 'entropy' is the name of a metric of the agent"),
    ],
)
def test_what_a_term_returns_is_checked(engine_name, loss, name, said):
    with pytest.raises(ConfigError, match=said):
        trained(etude.Auxiliary(PPO(PPO_SMALL), loss, name=name), engine_name)


@pytest.mark.variant
def test_data_of_another_environment_or_none_and_a_name_given_twice_are_refused(engine_name, expert):
    agent = etude.Auxiliary(PPO(PPO_SMALL), cloning, expert, name="cloning")
    with pytest.raises(ConfigError, match="name = 'cloning' is that of another term"):
        etude.Auxiliary(agent, cloning, expert, name="cloning")
    with pytest.raises(DataError, match="The data holds observations of .*, and the environment has"):
        Run(agent, "Acrobot-v1", engine=engine_name)
    with pytest.raises(DataError, match="no episodes"):
        Run(etude.Auxiliary(PPO(PPO_SMALL), cloning, []), "CartPole-v1", engine=engine_name)
    with pytest.raises(ConfigError, match="data is a int; expected the path of a file"):
        Run(etude.Auxiliary(PPO(PPO_SMALL), cloning, 3), "CartPole-v1", engine=engine_name)
