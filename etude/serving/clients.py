"""Clients in the place of a run's environment: where to listen for them, and the spaces of what they play."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Space, choices, from_json
from etude.envs import ConfiguredEnvironment, EnvironmentSpec, name_of
from etude.envs.registry import resolve


@dataclass(frozen=True)
class ClientLimits:
    """What clients may ask for.

    body: bytes of a post. episodes: open at a time. connections: open at a time. rate: requests in a second from one
    address. silence: seconds without a post after which a client counts as vanished. wait: seconds in which a body has
    to come, and after which a post that the run is not ready for is answered with 503; it is to be repeated.
    """

    body: int = 8 * 2**20
    episodes: int = 256
    connections: int = 256
    rate: int = 20_000
    silence: float = 60.0
    wait: float = 20.0

    def __post_init__(self) -> None:
        checks.positive(self, "body", "episodes", "connections", "rate", "silence", "wait")


class Listening:
    """Where to listen, and for whom.

    address: "HOST:PORT". token: what clients must send; ConfigError where other machines reach the address, and there
    is none. limits: see `ClientLimits`. ssl_certfile, ssl_keyfile: paths of a certificate and of its key, for https.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        limits: ClientLimits | None = None,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
    ):
        self.host, self.port = address_of(address)
        if not self.port:
            raise ConfigError(f"{address}: clients have to know the port; give one from 1 to 65535.")
        if not (token or is_loopback(self.host)):
            raise ConfigError(
                f"{address} can be reached from other machines, and would answer anyone there: give a token= (the "
                "environment variable ETUDE_TOKEN), or listen on 127.0.0.1."
            )
        self.address, self.token, self.limits = address, token, limits or ClientLimits()
        self.ssl_certfile, self.ssl_keyfile = ssl_certfile, ssl_keyfile


class Clients(Listening):
    """In the place of the environment of a `Run`: what clients play is learned from.

    address: "HOST:PORT" to listen on, such as "127.0.0.1:9900".
    spaces: those of what clients play, as it has them: an environment (which also evaluates, and whose preset is used),
        a pair (observation_space, action_space), or the path of a JSON file: see docs/serving.md.
    masks: whether observations come with action masks. Of an environment it is found out.
    token: what clients must send, as `Authorization: Bearer TOKEN`; needed for every host but this machine.
    limits: see `ClientLimits`.
    ssl_certfile, ssl_keyfile: paths of a certificate and of its key, for https.
    """

    def __init__(
        self,
        address: str,
        spaces: EnvironmentSpec | tuple[Space, Space] | Path,
        *,
        masks: bool = False,
        token: str | None = None,
        limits: ClientLimits | None = None,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
    ):
        super().__init__(address, token, limits, ssl_certfile, ssl_keyfile)
        if isinstance(spaces, Path) or isinstance(spaces, str) and spaces.endswith(".json"):
            spaces = _read(Path(spaces))
        self.environment: EnvironmentSpec = SpacesAlone(*spaces, masks) if isinstance(spaces, tuple) else spaces
        self._make = resolve(self.environment).single
        if self._make is None:
            raise ConfigError(
                f"Clients: {name_of(self.environment)} is a vectorised simulator; its spaces are of many."
            )

    def __call__(self) -> Any:
        """One environment with the spaces."""
        assert self._make is not None
        return self._make()

    def __repr__(self) -> str:
        return f"serving.Clients({self.address!r}, {name_of(self.environment)!r})"

    @property
    def __name__(self) -> str:
        return f"{name_of(self.environment)}, which clients play"


def preset_name(env: Any) -> Any:
    """What presets are looked up by: the environment whose spaces clients have, or the one of a run itself."""
    return env.environment if isinstance(env, Clients) else env


def clients_of(env: Any) -> Clients | None:
    """The clients of a run's environment, where it is played by some. ConfigError for what only environments can have
    that are stepped here."""
    given = env if isinstance(env, ConfiguredEnvironment) else ConfiguredEnvironment(env, {}, ())
    if not isinstance(given.env, Clients):
        return None
    if given.wrappers or given.frame_stack > 1 or given.args or given.global_state:
        raise ConfigError(
            "env_args, wrappers, frame_stack and critics that read the state are for environments that are stepped "
            "here. Clients wrap theirs, and send what comes out, such as stacked frames."
        )
    return given.env


class SpacesAlone(gym.Env):
    """An environment with nothing but spaces; calling it "makes" it."""

    __name__ = "an environment of which only the spaces are known"

    def __init__(self, observation: Space, action: Space, masks: bool):
        self.observation_space, self.action_space, self._masks = observation, action, masks

    def __call__(self) -> SpacesAlone:
        return self

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        mask = {ACTION_MASK: np.ones(sum(choices(self.action_space)), np.int8)} if self._masks else {}
        self.observation_space.seed(seed)
        return self.observation_space.sample(), mask

    def step(self, action: Any) -> Any:
        raise ConfigError(_NOT_HERE)


class _AgentsAlone:
    """The same of several agents, as PettingZoo's parallel environments are."""

    __name__: str = SpacesAlone.__name__

    def __init__(self, each: dict[str, SpacesAlone]):
        self._each, self.possible_agents, self.agents = each, list(each), list(each)

    def __call__(self) -> _AgentsAlone:
        return self

    def observation_space(self, agent: str) -> Space:
        return self._each[agent].observation_space

    def action_space(self, agent: str) -> Space:
        return self._each[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        found = {name: own.reset(seed=seed) for name, own in self._each.items()}
        return {name: seen for name, (seen, _) in found.items()}, {name: info for name, (_, info) in found.items()}

    def step(self, actions: Any) -> Any:
        raise ConfigError(_NOT_HERE)

    def render(self) -> None: ...

    def close(self) -> None: ...


_NOT_HERE = (
    "There is no environment here, only its spaces. Where clients play, leave evaluations out (evaluate_every=None, "
    "--evaluate-every 0), or give evaluate_env=. Else load the run with env= (--env)."
)


def address_of(address: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT. ConfigError where it is none."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address; expected HOST:PORT, such as 127.0.0.1:9900.")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as only this machine sees it."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _read(path: Path) -> SpacesAlone | _AgentsAlone:
    """The spaces in a JSON file, of one agent or of several by name."""
    try:
        found = json.loads(path.read_text())
        if "agents" in found:
            return _AgentsAlone({str(name): _spaces(own) for name, own in found["agents"].items()})
        return _spaces(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError, StopIteration) as error:
        raise ConfigError(
            f"{path} holds no spaces: {type(error).__name__}: {error}. Expected JSON such as "
            '{"observation": {"box": {"low": -1, "high": 1, "shape": [4], "dtype": "float32"}}, '
            '"action": {"discrete": {"n": 2, "start": 0}}}, or {"agents": {NAME: such an object}}.'
        ) from error


def _spaces(found: dict[str, Any]) -> SpacesAlone:
    return SpacesAlone(from_json(found["observation"]), from_json(found["action"]), bool(found.get("masks", False)))
