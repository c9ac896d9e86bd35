"""Agents of one's own as users derive them from `etude.RL` and `etude.RL_pytorch`, for each engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import solo_agents_worlds as worlds
from solo_cases import agents_of, optimizers_for

import etude
from etude import ops
from etude.explore import EpsGreedyQPolicy, GaussianWhiteNoiseProcess, SoftmaxPolicy

TORCH = "torch"


def once(engine_name: str) -> None:
    """For what does not depend on the engine. Such tests run on torch alone, which has nothing to compile."""
    if engine_name != TORCH:
        pytest.skip("the same on every engine: runs on torch")


class NotDense:
    """An `action` that no chain of dense layers computes: workers cannot act with it."""

    def action(self, s):
        q = super().action(s)
        return q + 0.1 * q * q


class Masked:
    """Values of actions that the environment allows, and minus infinity."""

    def action(self, s):
        q = super().action(s["observation"])
        return ops.where(ops.cast(s["action_mask"], "bool"), q, ops.ones_like(q) * float("-inf"))

    def __call__(self, s, a, next_s, r, d):
        return super().__call__(s["observation"], a, next_s["observation"], r, d)


class OfTriplets:
    """A loss over two transitions of one trajectory."""

    def __call__(self, s, a, next_s, r, d):
        parts = [super(OfTriplets, self).__call__(s[j], a[:, j], next_s[j], r[:, j], d[:, j]) for j in range(2)]
        return parts[0] + parts[1]


class Reaching:
    """Goals."""

    def reward_done_func(self, achieved, goal):
        return worlds.reward_done(achieved, goal)


class Slotted:
    __slots__ = ("q", "target")


class Called:
    """An object that is a function, too."""

    def __call__(self):
        raise AssertionError("nobody calls it")


def of_nets(name):
    return property(lambda agent: getattr(agent.nets, name), lambda agent, network: setattr(agent.nets, name, network))


class InAnObject:
    """Its networks are in an object of the user's own."""

    made = SimpleNamespace
    q, target = of_nets("q"), of_nets("target")

    def __init__(self):
        self.nets = self.made()
        super().__init__()


class InSlots(InAnObject):
    made = Slotted


class InAFunction(InAnObject):
    """Two objects deep, in a list."""

    made = Called

    def __init__(self):
        super().__init__()
        self.all = SimpleNamespace(parts=[self.nets, self])
        del self.nets

    def __getattr__(self, name):
        if name != "nets" or "all" not in vars(self):
            raise AttributeError(name)
        return self.all.parts[0]


HOLDERS = {  # by name: mixin, and how the names of the network's variables begin
    "object": (InAnObject, "nets.q."),
    "slots": (InSlots, "nets.q."),
    "function": (InAFunction, "all.parts.0.q."),
}
WORLDS = {"DQN": worlds.Walk, "PPO": worlds.Walk, "DDPG": worlds.Pushed, "Team": worlds.Pair}


def agent_for(engine_name: str, kind: str = "DQN", *mixins: type, env: Any = None, **attributes: Any) -> Any:
    """An agent of a framework's `kind`, with what mixins override; attributes are set on it."""
    framework = agents_of(engine_name)
    base = etude.RL_pytorch if engine_name == TORCH else etude.RL
    made = type(kind, (*mixins, getattr(framework, kind), base), {})()
    made.env = WORLDS[kind] if env is None else env
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def train(agent: Any, engine_name: str, episodes: int | None = 3, p: int = 0, **options: Any) -> float:
    """Train with Adam, made at the first call; silent."""
    if agent.optimizer is None:
        agent.optimizer = optimizers_for(agent, agents_of(engine_name))
    given = (None, episodes) if engine_name == TORCH else (None, None, episodes)
    return agent.train(*given, p=p, **options)


def discrete(**settings: Any) -> dict[str, Any]:
    """Settings for actions of which one is chosen."""
    policy = EpsGreedyQPolicy(0.2)
    return {"policy": policy, "pool_size": 200, "batch": 4, "num_updates": 2, "update_batches": 2} | settings


def continuous(**settings: Any) -> dict[str, Any]:
    """Settings for actions that are numbers."""
    return {"noise": GaussianWhiteNoiseProcess(sigma=0.1), "pool_size": 200, "batch": 4, "num_updates": 2} | settings


def on_policy(**settings: Any) -> dict[str, Any]:
    """Settings for PPO."""
    return {"policy": SoftmaxPolicy(), "pool_size": 200, "batch": 4, "PPO": True, "update_steps": 10} | settings


def pool_of(agent: Any) -> Any:
    """The agent's replay buffer."""
    return agent._session_state.session.learner.buffer
