"""A client of a run of etude that trains on what others play. This file needs NumPy and nothing else: copy it to where
your simulator is.

    client = Client("http://127.0.0.1:9900")
    episode = client.start_episode()
    while not ended:
        action = client.get_action(episode, observation)
        observation, reward, ended = simulator.step(action)
        client.log_returns(episode, reward)
    client.end_episode(episode, observation)

The methods have the names of RLlib's `PolicyClient`. Whatever had no answer is sent again, and counts once.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.parse
import uuid
from typing import Any, SupportsFloat

import numpy as np


class EpisodeLost(RuntimeError):
    """The server does not know this episode any more: it was started again, or has waited too long. Begin a new one."""


class Client:
    """Plays episodes for a run that listens at `url`, such as "http://127.0.0.1:9900".

    token: of the run. patience: seconds in which a server that does not answer, or is busy, is asked again, before
    ConnectionError. Use one client in one thread; it may have several episodes open.
    """

    def __init__(self, url: str, token: str | None = None, patience: float = 60.0):
        address = urllib.parse.urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(f"url = {url!r}; expected one such as http://127.0.0.1:9900.")
        made = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        self._base = address.path.rstrip("/")
        self._connection = made(address.hostname, address.port, timeout=max(30.0, patience))
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._patience = patience
        self._numbers: dict[str, int] = {}  # of the last post of each open episode
        self._rewards: dict[str, float] = {}  # that were not sent yet

    def description(self) -> dict[str, Any]:
        """The spaces that the run has, and the limits of its server."""
        return self._ask("GET", "/v1/description", None)

    def start_episode(self, episode_id: str | None = None) -> str:
        """Begin an episode; returns its name."""
        name = episode_id or uuid.uuid4().hex
        self._ask("POST", "/v1/episodes", {"episode": name})
        self._numbers[name], self._rewards[name] = 0, 0.0
        return name

    def get_action(self, episode_id: str, observation: Any, action_mask: Any = None) -> Any:
        """What the policy does. action_mask: which choices are allowed, where the run has masks."""
        return self._post(episode_id, "act", _seen(observation, action_mask))["action"]

    def log_action(
        self, episode_id: str, observation: Any, action: Any, log_prob: float | None = None, action_mask: Any = None
    ) -> None:
        """Tell an action that you chose yourself, in the environment's own units. log_prob: the natural log of its
        probability, or density; needed by algorithms that learn from probabilities, such as PPO."""
        body = {**_seen(observation, action_mask), "action": _plain(action), "log_prob": log_prob}
        self._post(episode_id, "log_action", body)

    def log_returns(self, episode_id: str, reward: SupportsFloat) -> None:
        """Add a reward for the last action; it is sent with the next call."""
        self._rewards[episode_id] = self._rewards.get(episode_id, 0.0) + float(reward)

    def end_episode(self, episode_id: str, observation: Any, truncated: bool = False) -> None:
        """End the episode. observation: the last one. truncated: the clock ended it, and not the world."""
        self._post(episode_id, "end", {**_seen(observation, None), "terminated": not truncated, "truncated": truncated})
        self._forget(episode_id)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _post(self, episode: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        if episode not in self._numbers:
            raise EpisodeLost(f"Episode {episode!r} is not open: begin one by start_episode().")
        body |= {"number": self._numbers[episode] + 1, "reward": self._rewards[episode]}
        answer = self._ask("POST", f"/v1/episodes/{episode}/{kind}", body, episode)
        self._numbers[episode], self._rewards[episode] = body["number"], 0.0
        return answer

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, episode: str = "") -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        until, wait = time.monotonic() + self._patience, 0.01
        while True:
            try:
                self._connection.request(method, self._base + path, data, self._headers)
                answer = self._connection.getresponse()
                status, text = answer.status, answer.read()
                why = f"{status}"
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                status, text, why = 0, b"", f"{type(error).__name__}: {error}"
            if status == 200:
                return json.loads(text)
            if status not in (0, 408, 429) and status < 500:
                self._forget(episode)
                raise (EpisodeLost if status == 410 else ValueError)(
                    f"{status} {path}: {text.decode(errors='replace')}"
                )
            if time.monotonic() > until:
                raise ConnectionError(f"{path}: no answer in {self._patience:g} seconds ({why}).")
            time.sleep(wait)
            wait = min(1.0, 2 * wait)

    def _forget(self, episode: str) -> None:
        self._numbers.pop(episode, None)
        self._rewards.pop(episode, None)


def _seen(observation: Any, action_mask: Any) -> dict[str, Any]:
    mask = {} if action_mask is None else {"action_mask": _plain(action_mask)}
    return {"observation": _plain(observation), **mask}


def _plain(value: Any) -> Any:
    """What JSON holds; arrays of some size as their bytes."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if value.size < 64:
        return value.tolist()
    own = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return {"dtype": own.dtype.name, "shape": own.shape, "data": base64.b64encode(own.tobytes()).decode()}
