"""A policy in a process of its own: `python -m etude.board.policy RUN` answers lines of JSON with lines of JSON.

A line holds an observation of the environment, or asks for the first one of an episode: {"observation": ...} or
{"seed": 3}. Errors are answered too: {"error": "..."}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.base import trees
from etude.base.errors import ConfigError, EtudeError
from etude.base.spaces import describe
from etude.checkpoint.run_directory import read_run
from etude.envs.make import examine, make_single
from etude.envs.multi_agent import MultiAgentEnvironment
from etude.envs.registry import resolve
from etude.losses.distributions.choices import Categorical, MultiCategorical
from etude.losses.masks import MaskedValues
from etude.run import COMPONENTS, from_state
from etude.serving import http

MOST = 64  # numbers of a kind that are shown


class ShownPolicy:
    """The newest complete checkpoint of a run, as it acts. Raises EtudeError where it cannot be loaded, UntrustedError
    where that would import what its user did not sign."""

    def __init__(self, path: Path):
        loaded = read_run(path, COMPONENTS, ("replay", "evaluation"))
        self._run = from_state(loaded.state)
        examined = examine(self._run.environment)
        source = resolve(examined.environment)
        if source.single is None:
            raise ConfigError(f"{source.name} steps many environments at a time; no single observation can be given.")
        self._env, self._translation = make_single(source, {}), examined.translation
        if isinstance(self._env, MultiAgentEnvironment):
            raise ConfigError("Policies of several agents are not shown here. In Python: etude.load(RUN).act(dict).")
        self._actor = self._run.actor()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What it does for an observation, which begins an episode, and what it expects of its actions."""
        if "observation" in asked:
            observation = http.value_of(self._env.observation_space, asked["observation"], "observation")
            info: dict[str, Any] | None = {}
        else:
            observation, info = self._env.reset(seed=int(http.number(asked, "seed", 0)))
        seen = self._translation.observe(observation, info, True)
        action = self._run.act(observation, info, first=True)
        size = self._actor.state_size
        state = (np.zeros((1, size), np.float32),) if size else ()
        found = self._actor.act(seen, *state)
        # What an agent's `act` returned, with titles
        output = found[0] if size else found
        if isinstance(output, MaskedValues):
            shown = [_named("action values", np.where(output.allowed, output.values, np.nan))]
        elif isinstance(output, Categorical):
            shown = [_named("probabilities", output.probabilities())]
        elif isinstance(output, MultiCategorical):
            shown = [
                _named(f"probabilities of choice {i}", each.probabilities()) for i, each in enumerate(output.parts())
            ]
        elif isinstance(output, tuple):  # another distribution: its parameters
            fields = getattr(output, "_fields", range(len(output)))
            shown = [_named(str(name), part) for name, part in zip(fields, output, strict=True)]
        else:
            shown = [_named("action values", output)]
        agent = self._run.agent
        if isinstance(agent, Agent) and type(agent).value is not Agent.value and not size:
            shown.append(_named("value of the state", self._run.engine.value(seen)))
        return {
            "step": self._run.step,
            "observation": http.plain(trees.map(np.asarray, observation)),
            "space": describe(self._env.observation_space),
            "action": http.plain(action),
            "shown": [each for each in shown if each["values"]],
        }


def _named(title: str, values: Any) -> dict[str, Any]:
    flat = np.asarray(values, float).reshape(-1)[:MOST] if isinstance(values, np.ndarray | np.generic) else np.empty(0)
    return {"title": title, "values": [value if np.isfinite(value) else None for value in flat.tolist()]}


def main(arguments: list[str]) -> int:
    """Answer until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # environments print
    try:
        policy: ShownPolicy | None = ShownPolicy(Path(arguments[0]))
        problem = ""
    except EtudeError as error:
        policy, problem = None, str(error)
    for line in sys.stdin:
        try:
            found = {"error": problem} if policy is None else policy.answer(json.loads(line))
        except (EtudeError, http.Refused) as error:
            found = {"error": str(error)}
        except Exception as error:  # of an environment
            found = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
