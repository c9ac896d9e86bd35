"""A served, an exported and an evaluated policy return the same actions on the same observations."""

import socket

import numpy as np
import pytest
from export_cases import CASES, load

from etude import serving
from etude.envs import make_environment
from etude.export.policy import policies_of
from etude.serving import http
from etude.serving.clients import Listening
from etude.serving.service import PolicyService

IN_TORCH = ["dqn masks", "dqn images", "ppo mixed", "sac", "recurrent_ppo stacked", "maddpg"]  # it takes seconds


class InNumpy:
    """The folder with act.py."""

    exact = True

    def __init__(self, run, tmp_path):
        path = run.export(tmp_path / "out")
        self.act_of = {name: load(path / name).act for name in policies_of(run.policy)}

    def act(self, name, observation, info, first, reward):
        return self.act_of[name](observation, info.get("action_mask"), first, reward)


class Program:
    """A program of another library, whose memory is kept here."""

    exact = False

    def __init__(self, run, tmp_path):
        self.policies = policies_of(run.policy)
        path = run.export(tmp_path / f"out{self.suffix}", self.to)
        files = {name: path.with_suffix("") / f"{name}{self.suffix}" if name else path for name in self.policies}
        self.program_of = {name: self.load(file) for name, file in files.items()}
        self.memory = {name: {each.name: each.zeros(1) for each in own.memory} for name, own in self.policies.items()}

    def act(self, name, observation, info, first, reward):
        policy, inputs = self.policies[name], dict(self.memory[name])
        if policy.memory:
            inputs["first"] = np.array([first])
        if "reward" in [each.name for each in policy.inputs]:
            inputs["reward"] = np.array([reward], np.float32)
        for each in policy.observed:
            value = info["action_mask"] if each.path is None else observation
            for key in each.path or ():
                value = value[key]
            inputs[each.name] = np.asarray(value, each.dtype)[None]
        found = self.program_of[name](inputs)
        self.memory[name] = {each: found[f"next_{each}"] for each in self.memory[name]}
        return tuple(found[each][0] for each in policy.actions)


class InOnnx(Program):
    to, suffix = "onnx", ".onnx"

    def load(self, file):
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


class InTorch(Program):
    to, suffix = "torch", ".pt2"

    def load(self, file):
        torch = pytest.importorskip("torch")
        program = torch.export.load(file).module()

        def computed(inputs):
            found = program({name: torch.from_numpy(value) for name, value in inputs.items()})
            return {name: value.numpy() for name, value in found.items()}

        return computed


class Served:
    exact = True

    def __init__(self, run, tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        load = lambda: policies_of(run.policy, run.actor())  # noqa: E731
        self.service = PolicyService(Listening(address), {"run": load})
        urls = {name: f"http://{address}/run-{name}" if name else f"http://{address}" for name in load()}
        self.clients = {name: serving.Client(url) for name, url in urls.items()}
        self.episodes = {}

    def act(self, name, observation, info, first, reward):
        client = self.clients[name]
        if first:
            self.episodes[name] = client.start_episode()
        elif reward:
            client.log_returns(self.episodes[name], reward)
        return client.get_action(self.episodes[name], http.plain(observation), info.get("action_mask"))

    def close(self):
        self.service.close()


def leaves(action):
    if isinstance(action, dict):
        return [leaf for key in sorted(action) for leaf in leaves(action[key])]
    return list(action) if isinstance(action, tuple) else [action]


def check(found, expected, exact):
    for own, other in zip(leaves(found), leaves(expected), strict=True):
        if exact or np.asarray(other).dtype.kind != "f":
            assert np.array_equal(own, http.plain(other))
        else:
            np.testing.assert_allclose(own, other, 1e-5, 1e-5)


def played(run, episodes=3):
    """(observations, infos, actions, first, reward) of steps with random actions, each by agent: "" for one. Several
    are told of no reward."""
    env = make_environment(run.environment).env
    several = run.engine.spaces.agents is not None
    env = env.env if several else env.unwrapped
    for episode in range(episodes):
        (observation, info), reward = env.reset(seed=episode), 0.0
        for step in range(7):
            action = run.act(observation, info, first=not step, reward=0.0 if several else reward)
            yield (observation, info, action, not step, 0.0) if several else (
                {"": observation}, {"": info}, {"": action}, not step, reward
            )  # fmt: skip
            drawn = {agent: env.action_space(agent).sample() for agent in env.agents} if several else None
            observation, reward, *_, info = env.step(drawn if several else env.action_space.sample())


WAYS = {"numpy": InNumpy, "onnx": InOnnx, "torch": InTorch, "served": Served}


@pytest.mark.parametrize(
    "name, way", [(name, way) for name in CASES for way in WAYS if way != "torch" or name in IN_TORCH]
)
@pytest.mark.long_but("numpy", "onnx", "served", "dqn images", "ppo mixed", "recurrent_ppo stacked")
def test_a_served_an_exported_and_an_evaluated_policy_act_alike(run_of, tmp_path, name, way):
    run = run_of(name)
    policy = WAYS[way](run, tmp_path)
    for observations, infos, actions, first, reward in played(run):
        for agent, observation in observations.items():
            found = policy.act(agent, observation, infos[agent], first, reward)
            check(found, actions[agent], policy.exact)
    if way == "served":
        policy.close()
