"""CartPole whose velocities are hidden: the smallest task that needs a memory and is otherwise well known. CartPole
whose actions are shuffled: the smallest task whose actions the observation describes. And several CartPoles in one
environment, one for each agent."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

Named = dict[str, Any]  # by agent
POSITIONS = [0, 2]  # of what CartPole-v1 observes: the cart's position and the pole's angle
EMBEDDINGS = np.array([[0.5, 0.5, -0.5, 0.5], [0.5, -0.5, 0.5, 0.5]], np.float32)  # of pushing left and right


class WithoutVelocities(gym.ObservationWrapper):
    """Gymnasium's CartPole-v1, of which only the cart's position and the pole's angle are observed [2], float32: which
    way either moves is seen from two observations. Otherwise as CartPole-v1, whose best return is 500.

    render_mode: as of CartPole-v1.
    """

    def __init__(self, render_mode: str | None = None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        whole = self.env.observation_space
        assert isinstance(whole, Box)
        self.observation_space = Box(whole.low[POSITIONS], whole.high[POSITIONS], dtype=np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        """The two positions of [4]."""
        return observation[POSITIONS]


class WithShuffledActions(gym.Wrapper[Any, Any, Any, Any]):
    """Gymnasium's CartPole-v1 whose two actions change places among the slots of a Discrete action at every step; the
    other slots are forbidden. Otherwise as CartPole-v1, whose best return is 500.

    Observations: `observation` [4] of CartPole-v1, `actions` [slots, 4], in each slot the embedding of its action and
    zeros where there is none, and `action_mask` [slots]. ValueError for an action that is forbidden.

    slots: how many, at least 2. render_mode: as of CartPole-v1.
    """

    def __init__(self, slots: int = 10, render_mode: str | None = None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        if slots < 2:
            raise ValueError(f"slots = {slots}; expected at least 2, one for each action of CartPole.")
        self.slots = slots
        self.action_space = Discrete(slots)
        self.observation_space = Dict(
            {
                "observation": self.env.observation_space,
                "actions": Box(-1.0, 1.0, (slots, EMBEDDINGS.shape[1]), np.float32),
                "action_mask": MultiBinary(slots),
            }
        )
        self._places = np.arange(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode, with the actions in new slots."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._described(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step with the action in a slot; then the actions change slots."""
        chosen = np.flatnonzero(self._places == action)
        if len(chosen) != 1:
            raise ValueError(f"Slot {action} holds no action; those that do are {sorted(self._places.tolist())}.")
        observation, reward, terminated, truncated, info = self.env.step(int(chosen[0]))
        return self._described(observation), reward, terminated, truncated, info

    def _described(self, observation: Any) -> dict[str, np.ndarray]:
        self._places = self.np_random.permutation(self.slots)[:2]
        actions, mask = np.zeros((self.slots, EMBEDDINGS.shape[1]), np.float32), np.zeros(self.slots, np.int8)
        actions[self._places], mask[self._places] = EMBEDDINGS, 1
        return {"observation": observation, "actions": actions, "action_mask": mask}


class CartPoles:
    """Gymnasium's CartPole-v1 for each of several agents, `pole_0` to `pole_N-1`, in one parallel environment:
    observations, actions and rewards are those of CartPole-v1, and the best return of each agent is 500. An agent whose
    pole has fallen waits for the others.

    count: the number of agents. render_mode: of the first agent's CartPole.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "cart_poles", "render_modes": ["human", "rgb_array"]}

    def __init__(self, count: int = 4, render_mode: str | None = None):
        self.possible_agents: list[str] = [f"pole_{i}" for i in range(count)]
        self.agents: list[str] = []
        self.render_mode = render_mode
        modes = [render_mode, *[None] * (count - 1)]
        self._poles = {
            name: gym.make("CartPole-v1", render_mode=mode)
            for name, mode in zip(self.possible_agents, modes, strict=True)
        }

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return self._poles[agent].observation_space

    def action_space(self, agent: str) -> gym.Space[Any]:
        return self._poles[agent].action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        """Observations and infos by agent. seed: each pole begins with a seed of its own, drawn from it."""
        self.agents = list(self.possible_agents)
        seeds = np.random.SeedSequence(seed).generate_state(len(self.agents)).tolist()
        observations = {
            name: self._poles[name].reset(seed=own)[0] for name, own in zip(self.agents, seeds, strict=True)
        }
        return observations, {name: {} for name in self.agents}

    def step(self, actions: Named) -> tuple[Named, Named, Named, Named, Named]:
        """Observations, rewards, terminations, truncations and infos of the agents that act."""
        steps = {name: self._poles[name].step(action) for name, action in actions.items()}
        self.agents = [name for name, (_, _, terminated, truncated, _) in steps.items() if not terminated | truncated]
        columns = ({name: step[i] for name, step in steps.items()} for i in range(5))
        observations, rewards, terminations, truncations, infos = columns
        return observations, rewards, terminations, truncations, infos

    def render(self) -> Any:
        """The picture of the first agent's CartPole."""
        return self._poles[self.possible_agents[0]].render()

    def close(self) -> None:
        for pole in self._poles.values():
            pole.close()
