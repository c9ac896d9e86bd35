"""Runs of every kind of policy that is exported, untrained: their weights are random."""

import importlib.util

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

import etude
from etude.networks import Conv, Mlp, Recurrent, Transformer

NUMBERS = Box(-np.inf, np.inf, (3,), np.float64)
PIXELS = Box(0, 255, (20, 20), np.uint8)
MIXED = Dict(
    {
        "number": Box(-1, 1, (2,)),
        "choice": Discrete(3, start=4),
        "pair": Tuple([MultiDiscrete([2, 3]), Box(0, 9, (1,), np.int16)]),
    }
)
MOVES = Dict({"steer": Box(-2, 3, (2,), np.float64), "gear": Discrete(3, start=1), "steps": Box(0, 9, (), np.int32)})


class Random(gym.Env):
    """Random observations; action masks in the infos where `masks` is set."""

    def __init__(self, observation=NUMBERS, action=None, masks=False):
        self.observation_space, self.action_space, self.masks = observation, action or Discrete(4), masks

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.left = 7
        return self.observation_space.sample(), self._info()

    def step(self, action):
        assert self.action_space.contains(action)
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, self._info()

    def _info(self):
        if not self.masks:
            return {}
        mask = self.np_random.integers(0, 2, 4).astype(np.int8)
        mask[self.np_random.integers(4)] = 1
        return {"action_mask": mask}


def images():
    return Random(PIXELS)


def numbers(action=None, **more):
    return lambda: Random(action=action, **more)


SMALL = {"network": Mlp((16,)), "environments": 2, "engine": "torch"}
MEMORY = {"network": Recurrent(Mlp((8,)), 8), "environments": 2, "engine": "torch"}
BOX = Box(-2, np.array([3, 5]), (2,), np.float32)
FILTERS = Conv(((4, 4, 2), (8, 3, 1)), (16,))

CASES = {
    "dqn": lambda: etude.Run("dqn", numbers(), **SMALL),
    "dqn masks": lambda: etude.Run("dqn", numbers(masks=True), **SMALL),
    "dqn images": lambda: etude.Run(
        "dqn", etude.Environment(images, frame_stack=3), network=FILTERS, environments=2, engine="torch"
    ),
    "rainbow": lambda: etude.Run(
        "rainbow",
        numbers(),
        network=Mlp((16, 8, 8), dueling=True, noisy=0.5, layer_norm=True, skips=(1,)),
        environments=2,
        engine="torch",
    ),
    "r2d2": lambda: etude.Run(
        "r2d2", numbers(), network=Recurrent(Mlp((8,)), 8, "lstm"), environments=2, engine="torch"
    ),
    "decision_transformer": lambda: etude.Run(
        "decision_transformer",
        numbers(BOX),
        data=etude.record(numbers(BOX), 2),
        network=Transformer(1, 8, 1, 16, context=9),
        sequence_length=4,
        return_scale=1.0,
        target_return=5.0,
        engine="torch",
    ),
    "ppo": lambda: etude.Run("ppo", numbers(), normalize_observation=True, **SMALL),
    "ppo box": lambda: etude.Run("ppo", numbers(BOX), normalize_observation=True, **SMALL),
    "ppo stacked": lambda: etude.Run("ppo", etude.Environment(numbers(BOX), frame_stack=3), **SMALL),
    "ppo mixed": lambda: etude.Run("ppo", lambda: Random(MIXED, MOVES), **SMALL),
    "ppo masks": lambda: etude.Run("ppo", numbers(masks=True), **SMALL),
    "sac": lambda: etude.Run("sac", numbers(BOX), **SMALL),
    "td3": lambda: etude.Run("td3", numbers(BOX), **SMALL),
    "recurrent_ppo": lambda: etude.Run("recurrent_ppo", numbers(), **MEMORY),
    "recurrent_ppo stacked": lambda: etude.Run(
        "recurrent_ppo", etude.Environment(numbers(BOX), frame_stack=2), **MEMORY
    ),
    "recurrent_ppo transformer": lambda: etude.Run(
        "recurrent_ppo", numbers(), network=etude.Transformer(2, 8, 2, 8, 4), environments=2, engine="torch"
    ),
    "maddpg": lambda: etude.Run("maddpg", "mpe2:simple_speaker_listener_v4", **SMALL),
    "mappo shared": lambda: etude.Run(
        "mappo",
        "mpe2:simple_spread_v3",
        policies=etude.Policies("shared", identity=True),
        normalize_observation=True,
        **SMALL,
    ),
    "ppo shared": lambda: etude.Run(
        "ppo",
        "mpe2:simple_spread_v3",
        policies=etude.Policies("shared", identity=True),
        normalize_observation=True,
        **SMALL,
    ),
    "several": lambda: etude.Run(
        {"adversary_0": "dqn", "agent_0": "ppo", "agent_1": "ppo"},
        "mpe2:simple_adversary_v3",
        environments=2,
        engine="torch",
    ),
}


def load(folder):
    """The module act.py of an exported policy."""
    spec = importlib.util.spec_from_file_location("act", folder / "act.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
