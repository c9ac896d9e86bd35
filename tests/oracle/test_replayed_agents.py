"""Several agents that learn from replayed transitions: agents that come late, leave early, are truncated, take turns or
never act. Whole small runs beside the slow program of `slow_agents`."""

import functools

import gymnasium as gym
from drawing import drawn, pieces, scripts_of_agents, scripts_of_turns
from hypothesis import strategies as st
from scripted_worlds import ScriptedAgents, ScriptedTurns
from slow_agents import SlowCritics, SlowShared
from slow_replay import trained
from watched import Watched, in_numpy

import etude

CHOICE, MOVE = gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,), "float32")
SMALL = {
    "network": st.just(etude.Mlp((4,))),
    "buffer_size": st.integers(6, 40),
    "batch_size": st.integers(1, 5),
    "learning_starts": st.integers(0, 9),
    "train_every": st.integers(1, 9),
    "gradient_steps": st.integers(1, 2),
    "n_step": st.sampled_from([1, 2, 1, 3]),
    "gamma": st.sampled_from([0.9, 1.0]),
    "normalize_reward": st.sampled_from([True, False]),
}


class WatchedMADDPG(Watched, etude.algorithms.MADDPG):
    """MADDPG, watched; also what its critics read."""

    def loss(self, batch, noise):
        self.read = {}
        return super().loss(batch, noise)

    def critic_loss(self, name, batch, weight, state, next_state):
        self.read[name] = {"state": in_numpy(state), "next_state": in_numpy(next_state)}
        return super().critic_loss(name, batch, weight, state, next_state)

    def more(self, batch):
        return {"critics": self.read, "normalised": in_numpy(self.normaliser(batch.observation))}


class WatchedDQN(Watched, etude.algorithms.DQN):
    """DQN, watched."""


MADDPG = st.builds(
    etude.algorithms.MADDPGConfig,
    **SMALL,
    normalize_observation=st.booleans(),
    critic_reads=st.sampled_from(["state", "observations"]),
)
# Actions of a Box have no masks.
ACTING = scripts_of_agents(3, 3).map(lambda script: (script, CHOICE)) | scripts_of_agents(3).map(
    lambda script: (script, MOVE)
)
DQN = st.builds(etude.algorithms.DQNConfig, **SMALL)


@drawn(few=2, many=35, acting=ACTING, config=MADDPG, environments=st.integers(1, 2), lengths=pieces(40, 3))
def test_critics_read_who_acts_and_agents_learn_from_the_steps_in_which_they_acted(
    acting, config, environments, lengths
):
    script, space = acting
    slow = SlowCritics(config, environments, script, space, 3)
    world = functools.partial(ScriptedAgents, script, space, 3)
    with etude.Run(WatchedMADDPG(config), world, environments=environments, engine="torch") as run:
        trained(run, slow, lengths)


@drawn(few=2, many=25, script=scripts_of_agents(2, 3), config=DQN, environments=st.integers(1, 2), lengths=pieces(40))
def test_agents_of_one_policy_learn_from_their_own_steps(script, config, environments, lengths):
    slow = SlowShared(config, environments, script, CHOICE, 2)
    world = functools.partial(ScriptedAgents, script, CHOICE, 2)
    agent = WatchedDQN(config)
    with etude.Run(agent, world, environments=environments, policies="shared", engine="torch") as run:
        trained(run, slow, lengths)


@drawn(few=2, many=25, script=scripts_of_turns(3, 3), config=DQN, environments=st.integers(1, 2), lengths=pieces(40))
def test_agents_that_take_turns_learn_from_one_turn_to_their_next(script, config, environments, lengths):
    slow = SlowShared(config, environments, script, CHOICE, 3, turns=True)
    world = functools.partial(ScriptedTurns, script, CHOICE, 3)
    agent = WatchedDQN(config)
    with etude.Run(agent, world, environments=environments, policies="shared", engine="torch") as run:
        trained(run, slow, lengths)
