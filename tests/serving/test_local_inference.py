"""Clients that act for themselves: with the run's own policy and exploration, in NumPy alone."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from serving_cases import Masked, Wire, address, check_continuous, in_thread, rollout_of, simulate

import etude
from etude import serving
from etude.base.errors import ConfigError
from etude.engines.numpy import NumpyEngine
from etude.envs.adapter import SpaceConversion
from etude.explore import EpsilonGreedy, EpsilonZGreedy, GaussianNoise, Greedy, Sample
from etude.serving.client import ClientProgram
from etude.serving.program import LocalPolicy


class Tupled(gym.Env):
    """Sees a Tuple of numbers; acts with a Dict of numbers and choices."""

    observation_space = gym.spaces.Tuple((Box(-1, 1, (3,)), Discrete(4, start=2)))
    action_space = gym.spaces.Dict({"kind": Discrete(3), "push": Box(-2, 2, (2,))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 5, False, {}


POLICIES = {
    "dqn": (lambda: gym.make("CartPole-v1"), {}, EpsilonGreedy(0.0)),
    "dqn masked": (Masked, {"network": etude.Mlp((8,), activation="elu")}, EpsilonGreedy(0.0)),
    "c51": (lambda: gym.make("CartPole-v1"), {"network": etude.Mlp((8,))}, EpsilonGreedy(0.0)),
    "qr_dqn": (lambda: gym.make("CartPole-v1"), {"network": etude.Mlp((8,), dueling=True)}, EpsilonGreedy(0.0)),
    "ppo": (lambda: gym.make("Pendulum-v1"), {"normalize_observation": True}, Greedy()),
    "recurrent_ppo": (lambda: gym.make("CartPole-v1"), {}, Greedy()),
    "reinforce masked": (Masked, {"network": etude.Mlp((8,))}, Sample()),
    "sac": (lambda: gym.make("Pendulum-v1"), {}, Greedy()),
    "td3": (lambda: gym.make("Pendulum-v1"), {}, GaussianNoise(0.0)),
}


def local_policy(case, explorer=None):
    make, fields, own = POLICIES[case]
    with etude.Run(case.split()[0], make, engine="torch", seed=2, **fields) as run:
        spaces, agent, weights = run.engine.spaces, run.agent, run.engine.weights()
    engine, env = NumpyEngine(agent, spaces), make()
    engine.load(weights)
    flags = int(env.action_space.n) if "masked" in case else 0
    conversion = SpaceConversion.of(env.observation_space, env.action_space, flags)
    return LocalPolicy(engine, explorer or own, spaces, conversion), engine, env, conversion


@pytest.mark.parametrize("case", POLICIES)
def test_a_client_computes_the_action_of_the_run_to_the_bit(case):
    policy, engine, env, conversion = local_policy(case)
    program, rng, state = ClientProgram(json.loads(json.dumps(policy.description))), np.random.default_rng(0), None
    explorer = POLICIES[case][2]
    for _ in range(50):
        observation, info = env.observation_space.sample(), {}
        arrays = policy.arrays(0)
        if "masked" in case:
            info["action_mask"] = np.array([1, 0, 1, 1], np.int8)
            arrays["action_mask"] = np.array([[True, False, True, True]])
        for part in policy.description["observation"]:
            value = observation
            for key in part["path"]:
                value = value[key]
            arrays[part["name"]] = np.asarray(value)[None]
        size = policy.description["noise"]
        arrays |= {"uniform": rng.random((1, size["uniform"]), np.float32),
                   "normal": rng.standard_normal((1, size["normal"]), np.float32)}  # fmt: skip
        seen = conversion.observations.gather([observation], [info])
        if engine.state_size:
            before = np.zeros((1, engine.state_size), np.float32) if state is None else state
            arrays["state"] = before
            output, state = engine.act(seen, before)
        else:
            output = engine.act(seen)
        found = program(arrays)
        noise = arrays["uniform"] if size["uniform"] else np.zeros((1, 1), np.float32)  # best actions, but of `Sample`
        wanted = explorer(output, noise, 0, np.empty((1, 0)))
        expected = np.asarray(
            conversion.actions.each(
                np.clip(wanted.action, -1, 1) if wanted.action.dtype.kind == "f" else wanted.action
            )[0]
        )
        assert found["action0"][0].tobytes() == expected.astype(found["action0"].dtype).tobytes()
        if state is not None:
            assert found["next"].tobytes() == state.tobytes()


def test_a_client_explores_as_the_run_does():
    policy, engine, env, conversion = local_policy("dqn masked", EpsilonGreedy(etude.Linear(1.0, 0.4), total=100))
    program, rng, n = ClientProgram(policy.description), np.random.default_rng(0), 4000
    chosen = []
    for step in (0, 100):
        arrays = policy.arrays(step) | {"action_mask": np.array([[True, False, True, True]])}
        arrays |= {"observation.image": np.zeros((1, 8, 8, 3), np.uint8), "observation.x": np.zeros((1, 1), np.float32)}
        found = [int(program({**arrays, "uniform": rng.random((1, 2), np.float32)})["action0"][0]) for _ in range(n)]
        chosen.append(np.bincount(found, minlength=4) / n)
    assert chosen[0][1] == chosen[1][1] == 0.0
    np.testing.assert_allclose(chosen[0][[0, 2, 3]], 1 / 3, atol=0.03)
    np.testing.assert_allclose(sorted(chosen[1][[0, 2, 3]]), [0.4 / 3, 0.4 / 3, 0.6 + 0.4 / 3], atol=0.03)
    policy, *_ = local_policy("td3", GaussianNoise(0.1, random_steps=10))
    program, seen = ClientProgram(policy.description), {"observation": np.zeros((1, 3), np.float32)}
    spreads = []
    for step in (0, 10):
        drawn = [
            program({**policy.arrays(step), **seen, "uniform": rng.random((1, 2), np.float32),
                     "normal": rng.standard_normal((1, 1), np.float32)})["action0"][0, 0] for _ in range(n)
        ]  # fmt: skip
        spreads.append(np.std(drawn))
    np.testing.assert_allclose(spreads, [2 * 2 / np.sqrt(12), 0.2], rtol=0.06)  # Pendulum's actions reach from -2 to 2


CASES = {
    "dqn": (lambda: gym.make("CartPole-v1"), {"learning_starts": 32, "train_every": 8, "gradient_steps": 1}),
    "dqn masked": (Masked, {"learning_starts": 32, "train_every": 8, "network": etude.Mlp((8,))}),
    "ppo": (lambda: gym.make("Pendulum-v1"), {"rollout_length": 16, "epochs": 1, "environments": 2}),
    "ppo masked": (Masked, {"rollout_length": 16, "epochs": 1, "environments": 2, "network": etude.Mlp((8,))}),
    "ppo tupled": (Tupled, {"rollout_length": 16, "epochs": 1, "environments": 2, "network": etude.Mlp((8,))}),
    "recurrent_ppo": (
        lambda: gym.make("CartPole-v1"),
        {"rollout_length": 16, "sequence_length": 8, "epochs": 1, "environments": 2},
    ),
    "reinforce": (lambda: gym.make("CartPole-v1"), {"environments": 2}),
}


def check_following(steps):
    """No row is joined with another episode's: ends are where episodes say."""
    ended = (steps.terminated | steps.truncated).sum()
    assert ended == len(steps.episodes) == len(steps.final_index)


@pytest.mark.parametrize("case", CASES)
def test_runs_train_on_what_clients_act_in_by_themselves(case):
    make, fields = CASES[case]
    clients, collected = serving.Clients(address(), make), []
    with etude.Run(case.split()[0], clients, engine="torch", seed=3, **fields) as run:
        run.metric("kept", lambda steps: collected.append(steps) or 0.0)
        in_thread(simulate, f"http://{clients.address}", make, "local")
        finished = run.train(96)
        assert finished.step >= 96 and finished.totals["gradient_steps"] > 0
    for steps in collected:
        check_following(steps)
    if case == "ppo":
        assert collected[-1].extras["sampled_action"].shape == (16, 2, 1)


class Counted(gym.Env):
    """Only its spaces are of use."""

    observation_space, action_space = Box(-1e6, 1e6, (2,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


@pytest.mark.parametrize("algorithm", ["dqn", "ppo", "reinforce"])
def test_a_client_plays_on_until_it_is_answered_and_a_lost_connection_loses_nothing(algorithm):
    clients, unanswered = serving.Clients(address(), Counted), []

    def play(url):
        client = serving.Client(url, "local", patience=30)
        for episode in range(1000):
            name = client.start_episode()
            for t in range(5):
                client.get_action(name, [float(episode), float(t)])
                client.log_returns(name, t)
                unanswered.append(len(client._connection.sent))
            if episode % 7 == 3:
                with suppress(OSError):  # nothing was answered since it was lost before
                    client._connection._socket.shutdown(socket.SHUT_RDWR)
            client.end_episode(name, [float(episode), 5.0])

    own = {
        "dqn": {"learning_starts": 32, "train_every": 8},
        "ppo": {"rollout_length": 40, "epochs": 1},
        "reinforce": {},
    }
    collected, fields = [], {"network": etude.Mlp((4,)), "environments": 1, **own[algorithm]}
    with etude.Run(algorithm, clients, engine="torch", **fields) as run:
        run.metric("kept", lambda steps: collected.append(steps) or 0.0)
        in_thread(play, f"http://{clients.address}")
        run.train(200)
    seen = np.concatenate([steps.observation[:, 0] for steps in collected])
    np.testing.assert_array_equal(seen, [[i // 5, i % 5] for i in range(len(seen))])  # once each, in their order
    for steps in collected:
        check_continuous(steps)
    assert max(unanswered) == 0 if algorithm == "reinforce" else max(unanswered) > 1


def test_chunks_are_columns_of_steps_and_nothing_is_counted_twice():
    rollout, answers = rollout_of(2), []
    chunk = {"episode": "a", "number": 1, "version": rollout._version,
             "observation": [[7, 0], [7, 1], [7, 2]], "action": [1, 0],
             "reward": [0, 1], "extras": {}}  # fmt: skip
    rollout._server._local, rollout._local = {"program": []}, None

    def send():
        ask = Wire(rollout)
        answers.extend([ask("/v1/steps", chunk), ask("/v1/steps", chunk)])
        for wrong in ({"observation": [[7, 0], [7, 1]]}, {"action": [1, 3]}, {"action": [1]}, {"reward": []},
                      {"reward": [0, float("nan")]}, {"extras": {"x": [1, 2]}}, {"version": None}):  # fmt: skip
            answers.append(ask("/v1/steps", {**chunk, "number": 2, **wrong}))
        answers.append(ask("/v1/episodes/a/act", {"number": 2, "observation": [7, 2]}))  # the client acts in it
        last = {"number": 2, "observation": [[7, 2], [7, 3]], "action": [1], "reward": [2], "terminated": True}
        answers.append(ask("/v1/steps", {**chunk, **last}))
        answers.append(ask("/v1/steps", {**chunk, "number": 3}))
        answers.append(ask("/v1/steps", {**chunk, "episode": "b", "version": 3}))  # of a server before this one

    thread = in_thread(send)
    steps = rollout.collect(3, 0, range(1))
    in_thread(rollout.collect, 1, 3)
    thread.join(5)
    check_continuous(steps)
    assert steps.action[:, 0].tolist() == [1, 0, 1] and steps.terminated[:, 0].tolist() == [False, False, True]
    assert [(end.length, end.total) for end in steps.episodes] == [(3, 3.0)]
    assert [status for status, _ in answers] == [200, 200, *[422] * 7, 409, 200, 409, 410]
    assert answers[0] == answers[1] and json.loads(answers[0][1])["room"] >= 1
    rollout.close()


def test_what_a_client_cannot_compute_is_refused_by_name():
    with pytest.raises(ConfigError, match="EpsilonZGreedy is none of EpsilonGreedy, GaussianNoise"):
        local_policy("dqn", EpsilonZGreedy(0.1))
    rollout = rollout_of()  # its actor is no network
    client = serving.Client(rollout.url, "local")
    episode = client.start_episode()
    with pytest.raises(RuntimeError, match="cannot act for itself: NumPy does not compute.*'remote'"):
        client.get_action(episode, [0.0, 0.0])
    with pytest.raises(ValueError, match="expected 'remote' or 'local'"):
        serving.Client(rollout.url, "here")
    assert Wire(rollout)("/v1/steps", {})[0] == Wire(rollout)("/v1/weights", None, "GET")[0] == 422
    rollout.close()
