"""Clients that play all agents of an environment."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from gymnasium.spaces import Box
from serving_cases import Wire, address, in_thread
from several_worlds import Coming, Leaving, Meeting, Mixed

import etude
from etude import serving
from etude.algorithms.dqn import DQN, DQNConfig
from etude.algorithms.ppo import PPO, PPOConfig
from etude.base import trees
from etude.multi_agent.joint import ACTING, TERMINATED, TRUNCATED, WAITING
from etude.serving import ClientLimits


def play(url, make):
    """Until the run ends."""
    env, client = make(), serving.Client(url, patience=20)
    while True:
        seen, infos = env.reset()
        episode, ended = client.start_episode(), {}
        while env.agents:
            masks = {name: info["action_mask"] for name, info in infos.items() if "action_mask" in info}
            actions = client.get_action(episode, seen, masks or None, ended or None)
            boxes = {name for name in actions if isinstance(env.action_space(name), Box)}
            actions |= {name: np.asarray(actions[name], np.float32) for name in boxes}
            seen, rewards, terminated, truncated, infos = env.step(actions)
            client.log_returns(episode, rewards)
            over = {name: truncated[name] and "truncated" for name in rewards}
            ended = {name: how or "terminated" for name, how in over.items() if how or terminated[name]}
        client.end_episode(episode, seen, ended=ended)


def collected(env, algorithm, steps=48, **fields):
    found = []
    with etude.Run(algorithm, env, engine="torch", seed=3, environments=1, **fields) as run:
        run.metric("kept", lambda steps: found.append(steps) or 0.0)
        if isinstance(env, serving.Clients):
            in_thread(play, f"http://{env.address}", env.environment)
        finished = run.train(steps)
    assert finished.totals["gradient_steps"] > 0
    return found


POLICIES = {
    "independent": (Coming, "dqn", {"learning_starts": 8, "train_every": 8, "network": etude.Mlp((8,))}),
    "an agent that leaves": (
        lambda: Leaving(3), "ppo", {"rollout_length": 24, "epochs": 1, "network": etude.Mlp((8,))},
    ),
    "of several algorithms": (
        Meeting,
        {"left": PPO(PPOConfig(network=etude.Mlp((8,)), rollout_length=12, epochs=1)),
         "right": DQN(DQNConfig(network=etude.Mlp((8,)), learning_starts=8, train_every=4))},
        {"policies": {"ann": "left", "bob": "right"}},
    ),
}  # fmt: skip


class Fixed(Meeting):
    """The same side in every episode."""

    def reset(self, seed=None, options=None):
        return super().reset(seed=1)


@pytest.mark.parametrize("case", POLICIES)
def test_what_is_learned_from_is_what_an_environment_here_gives(case):
    make, algorithm, fields = POLICIES[case]
    make = Fixed if make is Meeting else make
    served = collected(serving.Clients(address(), make), algorithm, **fields)
    here = collected(make, algorithm, **fields)
    for one, other in zip(served, here, strict=True):
        for name in ("observation", "final_observation", "extras"):
            trees.map(np.testing.assert_array_equal, getattr(one, name), getattr(other, name))
        trees.map(np.testing.assert_array_equal, one.next_observations(), other.next_observations())
        for name in ("action", "reward", "terminated", "truncated", "final_index"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert one.episodes == other.episodes


def test_masks_and_actions_of_several_kinds_reach_their_agents():
    fields = {"rollout_length": 16, "epochs": 1, "network": etude.Mlp((8,))}
    for steps in collected(serving.Clients(address(), lambda: Mixed(True)), "ppo", 32, **fields):
        assert steps.terminated.all() and (steps.reward[..., 1] == 1).all()


def test_a_client_that_vanishes_cuts_all_agents_that_were_there(tmp_path):
    box = {"box": {"low": -5, "high": 5, "shape": [1], "dtype": "float32"}}
    own = {"observation": box, "action": {"discrete": {"n": 2, "start": 0}}}
    (tmp_path / "spaces.json").write_text(json.dumps({"agents": {"b": own, "a": own}}))
    clients = serving.Clients(address(), tmp_path / "spaces.json", limits=ClientLimits(silence=0.2))
    found, refused, told = [], [], []

    def vanish(url):
        client = serving.Client(url)
        episode = client.start_episode()
        client.get_action(episode, {"a": [0], "b": [1]})
        client.log_returns(episode, {"b": 2})
        client.log_returns(episode, {"b": 3, "a": 1})
        client.get_action(episode, {"a": [2], "b": [3]}, ended={"b": "terminated"})
        for wrong in (
            {"observation": {"c": [1]}}, {"observation": [1]}, {"observation": {"a": [1, 2]}}, {"observation": {}},
            {"observation": {"b": [0]}}, {"observation": {"a": [1]}, "reward": 3},
            {"observation": {"a": [1]}, "reward": {"a": "x"}}, {"observation": {"a": [1]}, "ended": {"a": "gone"}},
            {"observation": {"a": [1]}, "ended": {"a": "truncated"}},
        ):  # fmt: skip
            refused.append(ask(f"/v1/episodes/{episode}/act", {"number": 3, **wrong})[0])
        refused.append(ask(f"/v1/episodes/{episode}/log_action", {"number": 3, "observation": {"a": [1]}})[0])
        client.get_action(episode, {"a": [4]})
        time.sleep(0.5)
        told.append(client.description()["agents"]["a"])
        episode = client.start_episode()
        for t in range(3):
            client.get_action(episode, {"b": [t]})

    with etude.Run("dqn", clients, engine="torch", environments=1, learning_starts=99, train_every=4) as run:
        run.metric("kept", lambda steps: found.append(steps) or 0.0)
        url = f"http://{clients.address}"
        ask = Wire(type("At", (), {"url": url}))
        in_thread(vanish, url)
        run.train(4)
        local = serving.Client(url, "local")
        with pytest.raises(RuntimeError, match="cannot act for itself: it plays several agents"):
            local.get_action(local.start_episode(), {"a": [0]})
    assert refused == [422] * 10 and told[0]["action_space"] == own["action"]
    (steps,) = found
    assert steps.reward[:, 0].tolist() == [[1, 5], [0, 0], [0, 0], [0, 0]]
    assert steps.truncated[:, 0].tolist() == [False, True, False, False] and steps.episodes == ()
    assert steps.final_observation["status"].tolist() == [[TRUNCATED, TERMINATED]]
    assert (
        steps.observation["status"][:, 0].tolist() == [[ACTING, ACTING], [ACTING, TERMINATED]] + [[WAITING, ACTING]] * 2
    )
