"""Agents of random specs in NumPy, and mutations of them, for the tests of evolution."""

import dataclasses

import gymnasium as gym
import numpy as np

from etude.agent import Agent, Loss, Losses
from etude.base.spaces import Spaces
from etude.config import Config
from etude.engines.parameter_layout import ParameterLayout
from etude.networks import ActorCritic, Conv, Maker, Mlp, Recurrent, Transformer, target
from etude.tuning.evolution import ActivationSample, ArchitectureLimits, transfer
from etude.tuning.evolution.structure import moves_of, networks_in, replaced

LIMITS = ArchitectureLimits(
    layers=(1, 4), units=(8, 120), latent=(4, 64), filters=(4, 40), cell=(8, 80), blocks=(1, 4), feedforward=(4, 200)
)
ACTIVATIONS = ("relu", "tanh", "elu", "gelu", "silu")


class TwoCritics(Agent):
    """An actor, and two critics in one part with their target networks."""

    acts_by = "actions"

    def build(self, make, spaces):
        self.actor = make(self.config.actor_network, spaces.observation, 3)
        self.critic = make(self.config.critic_network, spaces.observation, 2, members=2)
        self.critic_target = target(self.critic, every="target_every")

    def act(self, observation):
        return self.actor(observation)

    def value(self, observation):
        return self.critic_target(observation) + self.critic(observation)


class OneNetwork(Agent):
    """One network with values of actions."""

    def build(self, make, spaces):
        self.q = make.values(self.config.network, spaces.observation, 3)
        self.q_target = target(self.q, every="target_every")
        self.batch_noise = {"q": (self.q.noise_size,)}

    def act(self, observation):
        return self.q(observation) + 2 * self.q_target(observation)

    def loss(self, batch, noise):
        return Losses(q=Loss(0.0))


class WithState(Agent):
    """A recurrent network."""

    def build(self, make, spaces):
        self.q = make.recurrent(self.config.network, spaces.observation, 3)
        self.q_target = target(self.q, every="target_every")
        self.state_size = self.q.state_size

    def act(self, observation, state):
        return self.q(observation, state)


@dataclasses.dataclass(frozen=True)
class SpecConfig(Config):
    target_every: int = 10


VECTOR = gym.spaces.Box(-1, 1, (5,), np.float32)
TOKENS = gym.spaces.Discrete(3)
IMAGES = gym.spaces.Dict({"image": gym.spaces.Box(0, 255, (12, 12, 3), np.uint8), "speed": VECTOR})


def layout_of(kind, config, space, seed):
    spaces = Spaces(space, gym.spaces.Discrete(3))
    return ParameterLayout(kind(config), spaces, Maker(np.random.default_rng(seed), None))


def random_mlp(rng, dueling=False, noisy=0.0):
    widths = tuple(int(n) for n in rng.integers(8, 60, rng.integers(1, 4)))
    norm, bias = bool(rng.integers(2)), bool(noisy or rng.integers(4))
    return Mlp(
        widths, str(rng.choice(ACTIVATIONS)), layer_norm=norm, dueling=dueling, noisy=noisy, bias=bias
    )  # fmt: skip


def random_conv(rng):
    filters = ((int(rng.integers(4, 20)), 4, 2), (int(rng.integers(4, 20)), 3, 1))[: rng.integers(1, 3)]
    widths = tuple(int(n) for n in rng.integers(8, 40, rng.integers(1, 3)))
    return Conv(filters, widths, str(rng.choice(ACTIVATIONS)), layer_norm=bool(rng.integers(2)))


def random_transformer(rng, tokens):
    heads, positions = int(rng.integers(1, 4)), str(rng.choice(("rotary", "learned")))
    before = Mlp((), str(rng.choice(ACTIVATIONS))) if tokens else random_mlp(rng)
    tied = tokens and bool(rng.integers(2))
    return Transformer(
        int(rng.integers(1, 4)), 4 * heads, heads, int(rng.integers(8, 60)), 4, positions=positions, tied=tied,
        before=before,
    )  # fmt: skip


def random_case(rng):
    """(class of agent, config, observation space)."""
    pick = rng.integers(8)
    if pick == 0:
        return TwoCritics, SpecConfig(ActorCritic(random_mlp(rng), random_mlp(rng))), VECTOR
    if pick == 1:
        return TwoCritics, SpecConfig(random_mlp(rng)), VECTOR
    if pick == 2:
        return OneNetwork, SpecConfig(random_mlp(rng, bool(rng.integers(2)), 0.5 * int(rng.integers(2)))), VECTOR
    if pick == 3:
        return OneNetwork, SpecConfig(random_conv(rng)), IMAGES
    if pick > 5:
        return WithState, SpecConfig(random_transformer(rng, pick == 6)), TOKENS if pick == 6 else VECTOR
    before = random_mlp(rng) if pick == 4 else random_conv(rng)
    spec = Recurrent(before, int(rng.integers(8, 40)), str(rng.choice(("gru", "lstm"))), (16, 8)[: rng.integers(3)])
    return WithState, SpecConfig(spec), VECTOR if pick == 4 else IMAGES


def observations(space, rng, n=24):
    if isinstance(space, gym.spaces.Dict):
        image = rng.integers(0, 256, (n, 12, 12, 3)).astype(np.uint8)
        return {"image": image, "speed": rng.standard_normal((n, 5)).astype(np.float32)}
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(0, space.n, n)
    return rng.standard_normal((n, 5)).astype(np.float32)


def state_of(layout, rng):
    """A state with moments and target networks of their own."""
    values = {n: (x + 0.05 * rng.standard_normal(x.shape)).astype(np.float32) for n, x in layout.initial.items()}
    for name, part in layout.parts.items():
        values |= {f"{name}.{v}": np.zeros(shape, np.float32) for v, shape in part.noise.items()}
    moments = {m: {n: rng.random(layout.initial[n].shape).astype(np.float32) for n in layout.trainable}
               for m in layout.moments}  # fmt: skip
    return {"values": values, **moments, "step": np.int32(7), "noise": {}}


def outputs(layout, values, observation):
    """Everything that the networks compute, one array."""
    agent = layout.bind(values)
    if agent.state_size:
        n, found = len(observation["image"] if isinstance(observation, dict) else observation), []
        state = np.zeros((n, agent.state_size), np.float32)
        for _ in range(3):
            y, state = agent.act(observation, state)
            found.append(y)
        return np.concatenate(found, -1)
    found = [np.moveaxis(agent.act(observation), -1, 0)]
    if type(agent).value is not Agent.value:
        found += list(np.moveaxis(agent.value(observation), -1, 0))
    return np.concatenate([np.reshape(x, -1) for x in found])


def candidates(config, kinds):
    """Every config that one mutation of these kinds leads to, with the mutation."""
    for path, spec in networks_in(config.network).items():
        for (kind, _), found in moves_of(spec, LIMITS).items():
            if kind in kinds:
                for changed, mutation in found:
                    yield replaced(config, path, changed), dataclasses.replace(mutation, field=".".join(path))


class Lineage:
    """An agent that is mutated again and again."""

    def __init__(self, rng):
        self.rng = rng
        self.kind, self.config, self.space = random_case(rng)
        self.layout = layout_of(self.kind, self.config, self.space, 0)
        self.state, self.count = state_of(self.layout, rng), 0
        self.observation = observations(self.space, rng)

    def mutate(self, config, mutation):
        """(outputs before, outputs after); the agent is then the mutated one."""
        self.count += 1
        child = layout_of(self.kind, config, self.space, self.count)
        sample = ActivationSample(self.observation)
        state = transfer(self.state, self.layout, child, mutation, sample)
        before = outputs(self.layout, self.state["values"], self.observation)
        after = outputs(child, state["values"], self.observation)
        self.before, self.config, self.layout, self.state = (self.layout, self.state), config, child, state
        return before, after
