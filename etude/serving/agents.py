"""Several agents in the episodes of clients: observations, rewards, masks and actions are objects by agent's name."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Spaces, choices
from etude.envs.adapter import SpaceConversion
from etude.envs.multi_agent import AgentsStep, MultiAgentEnvironment
from etude.multi_agent import joint
from etude.serving import bodies
from etude.serving.bodies import Refused
from etude.serving.http import Address
from etude.serving.server import PolicyServer, Post, refusing

_HOW = {"terminated": joint.TERMINATED, "truncated": joint.TRUNCATED}


class AgentsServer(PolicyServer):
    """The posts of clients of which each plays all agents of an environment. Agents that an observation is told of act,
    but for those in `ended`; the others wait, or have ended before.

    made: an environment with the agents; nothing of it is stepped.
    """

    def __init__(self, address: Address, made: Any, spaces: Spaces, local: dict[str, Any]):
        assert spaces.agents is not None
        world = MultiAgentEnvironment(made)
        if world.spaces.agents != spaces.agents:
            world = MultiAgentEnvironment(made, masks=True)
        if world.spaces.agents != spaces.agents:
            raise ConfigError("The environment that Clients name has other agents, or other spaces of them, by now.")
        self._world = world
        self._raw = world.raw
        super().__init__(
            address, SpaceConversion.of(world.observation_space, world.action_space), local=local, agents=world.names
        )

    def _schemas(self) -> dict[str, dict[str, Any]]:
        each = {name: bodies.schemas_of(*own) for name, own in self._raw.items()}
        found = copy.deepcopy(next(iter(each.values())))
        for kind in found.values():
            for key in {"observation", "action", "reward", "action_mask"} & set(kind["properties"]):
                of = {name: own["act"]["properties"].get(key, own["log_action"]["properties"][key])
                      for name, own in each.items()}  # fmt: skip
                kind["properties"][key] = bodies.an_object("", **of)
            kind["properties"]["ended"] = bodies.an_object("", **dict.fromkeys(self._raw, {"enum": list(_HOW)}))
        return found

    def description(self) -> dict[str, Any]:
        """What a client has to know."""
        told = {name: [bodies.plain_space(space) for space in own] for name, own in self._raw.items()}
        agents = {name: {"observation_space": seen, "action_space": action} for name, (seen, action) in told.items()}
        every = super().description()
        return {key: every[key] for key in ("protocol", "local", "limits")} | {"agents": agents}

    def _rewards(self, body: dict[str, Any], before: Any) -> Any:
        given, found = self._by_agent(body, "reward"), dict(before or {})
        for name in given:
            found[name] = found.get(name, 0.0) + bodies.number(given, name, 0.0)
        return found

    def _parsed(self, name: str, kind: str, body: dict[str, Any], reward: Any) -> Post:
        if kind == "log_action":
            raise Refused(422, "Actions of the client's own are for environments of one agent.")
        own, ends = self._open[name], kind == "end"
        world = own.world or self._world
        over = world.over
        observations = {
            agent: bodies.value_of(self._raw[agent][0], given, f"observation.{agent}")
            for agent, given in self._by_agent(body, "observation").items()
        }
        masks = self._by_agent(body, ACTION_MASK)
        infos = {agent: {ACTION_MASK: self._mask(agent, mask)} for agent, mask in masks.items()}
        ended = self._ended_now(body, ends, over)
        acting = tuple(agent for agent in observations if agent not in ended)
        if again := sorted(over & {*observations, *ended}):
            raise Refused(422, f"{again[0]} has ended before; an agent that ended takes no part in the rest.")
        if not (acting or ends):
            raise Refused(422, "observation: expected that of an agent at least that acts now; else end the episode.")
        world = world.before(AgentsStep(acting, observations, infos, reward, ended))
        with refusing():
            if own.world is None:
                joined, each, terminated = world.reset()[0], np.zeros(len(world.names)), False
            else:
                joined, earned, terminated, *_ = world.step(np.zeros(world.action_space.shape or ()))
                each = earned.each
            seen = self._observations.gather([joined], [{}])
        own.world = world

        def plain(action: np.ndarray) -> Any:
            return {agent: bodies.plain(value) for agent, value in world.split(action[0], acting).items()}

        return Post("end" if ends else "act", name, seen, each[None], convert=plain, terminated=ends and terminated,
                    truncated=ends and not terminated)  # fmt: skip

    def _ended_now(self, body: dict[str, Any], ends: bool, over: set[str]) -> dict[str, int]:
        """Who ended with this post, and how: where the episode ends, everyone."""
        told = self._by_agent(body, "ended")
        for agent, how in told.items():
            if how not in _HOW:
                raise Refused(422, f"ended.{agent}: expected terminated or truncated; got {how!r:.80}.")
        found = {agent: _HOW[how] for agent, how in told.items()}
        if not ends:
            return found
        terminated, truncated = (bodies.flag(body, which) for which in _HOW)
        if not (terminated or truncated):
            raise Refused(422, "end: expected terminated (the world ended) or truncated (the clock did), as true.")
        rest = joint.TERMINATED if terminated else joint.TRUNCATED
        return {agent: found.get(agent, rest) for agent in self._raw if agent not in over}

    def _by_agent(self, body: dict[str, Any], what: str) -> dict[str, Any]:
        """An object by agent of a body; {} where there is none."""
        given = body.get(what) or {}
        if not isinstance(given, dict) or not given.keys() <= self._raw.keys():
            raise Refused(422, f"{what}: expected an object by agent, of {', '.join(self._raw)}; got {given!r:.80}.")
        return given

    def _mask(self, agent: str, mask: Any) -> np.ndarray:
        return bodies.numbers(mask, f"action_mask.{agent}", (sum(choices(self._raw[agent][1])),)) != 0
