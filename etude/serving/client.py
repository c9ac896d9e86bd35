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
import functools
import json
import operator
import socket
import ssl
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, SupportsFloat

import numpy as np


class EpisodeLost(RuntimeError):
    """The server does not know this episode any more: it was started again, or has waited too long. Begin a new one."""


class Client:
    """Plays episodes for a run that listens at `url`, such as "http://127.0.0.1:9900".

    inference: "remote": the run computes each action. "local": the client does, in NumPy, with weights that it fetches,
        and sends what it played in chunks; RuntimeError where it cannot compute or explore as the run does.
    token: of the run. patience: seconds in which a server that does not answer, or is busy, is asked again, before
    ConnectionError. seed: of the client's own exploration. cafile: certificates that an https server is checked by.
    Use one client in one thread; it may have several episodes open.
    """

    def __init__(
        self,
        url: str,
        inference: Literal["remote", "local"] = "remote",
        token: str | None = None,
        patience: float = 60.0,
        seed: int | None = None,
        cafile: str | None = None,
    ):
        if inference not in ("remote", "local"):
            raise ValueError(f"inference = {inference!r}; expected 'remote' or 'local'.")
        self._connection = _Connection(url, token, max(30.0, patience), cafile)
        self._patience, self._rng, self._inference = patience, np.random.default_rng(seed), inference
        self._open: dict[str, _Episode] = {}
        self._policy: _LocalPolicy | None = None

    def description(self) -> dict[str, Any]:
        """The spaces that the run has, and the limits of its server."""
        return json.loads(self._ask("GET", "/v1/description"))

    def start_episode(self, episode_id: str | None = None) -> str:
        """Begin an episode; returns its name."""
        name = episode_id or uuid.uuid4().hex
        if self._inference == "remote":
            self._ask("POST", "/v1/episodes", {"episode": name})
        self._open[name] = _Episode()
        return name

    def get_action(self, episode_id: str, observation: Any, action_mask: Any = None) -> Any:
        """What the policy does. action_mask: which choices are allowed, where the run has masks."""
        if self._inference == "remote":
            return self._post(episode_id, "act", _seen(observation, action_mask))["action"]
        if self._policy is None:
            self._policy = _LocalPolicy(self)
        return self._policy.act(episode_id, self._episode(episode_id), observation, action_mask, self._rng)

    def log_action(
        self, episode_id: str, observation: Any, action: Any, log_prob: float | None = None, action_mask: Any = None
    ) -> None:
        """Tell an action that you chose yourself, in the environment's own units. log_prob: the natural log of its
        probability, or density; needed by algorithms that learn from probabilities, such as PPO."""
        if self._inference == "local":
            raise ValueError("log_action is for inference='remote'; a local client sends what its own policy did.")
        body = {**_seen(observation, action_mask), "action": _plain(action), "log_prob": log_prob}
        self._post(episode_id, "log_action", body)

    def log_returns(self, episode_id: str, reward: SupportsFloat) -> None:
        """Add a reward for the last action; it is sent with the next call."""
        if episode_id in self._open:
            self._open[episode_id].reward += float(reward)

    def end_episode(self, episode_id: str, observation: Any, truncated: bool = False) -> None:
        """End the episode. observation: the last one. truncated: the clock ended it, and not the world."""
        ends = {"terminated": not truncated, "truncated": truncated}
        if self._inference == "remote":
            self._post(episode_id, "end", {**_seen(observation, None), **ends})
        elif self._policy is not None and (own := self._episode(episode_id)).steps:
            self._policy.send(episode_id, own, observation, None, ends)
        self._open.pop(episode_id, None)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _episode(self, name: str) -> _Episode:
        if name not in self._open:
            raise EpisodeLost(f"Episode {name!r} is not open: begin one by start_episode().")
        return self._open[name]

    def _post(self, episode: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        own = self._episode(episode)
        body |= {"number": own.number + 1, "reward": own.reward}
        answer = json.loads(self._ask("POST", f"/v1/episodes/{episode}/{kind}", body, episode))
        own.number, own.reward = body["number"], 0.0
        return answer

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, episode: str = "") -> bytes:
        data = b"" if body is None else json.dumps(body).encode()
        until, wait = time.monotonic() + self._patience, 0.01
        while True:
            try:
                status, found = self._connection.ask(method, path, data)
                why = f"{status} {found[:500].decode(errors='replace')}"
            except (OSError, ValueError) as error:
                self._connection.close()
                status, found, why = 0, b"", f"{type(error).__name__}: {error}"
            if status in (200, 304):
                return found
            if status not in (0, 408, 429) and status < 500:
                self._open.pop(episode, None)
                raise (EpisodeLost if status == 410 else ValueError)(f"{path}: {why}")
            if time.monotonic() > until:
                raise ConnectionError(f"{path}: no answer in {self._patience:g} seconds ({why}).")
            time.sleep(wait)
            wait = min(1.0, 2 * wait)


@dataclass
class _Episode:
    """number: of its last post. Since then: reward, of the last action; of a local client, steps and all rewards."""

    number: int = 0
    reward: float = 0.0
    steps: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    state: Any = None


class _Connection:
    """HTTP/1.1 over one socket, opened again when it was closed; `http.client` takes longer than all else."""

    def __init__(self, url: str, token: str | None, timeout: float, cafile: str | None):
        address = urllib.parse.urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(f"url = {url!r}; expected one such as http://127.0.0.1:9900.")
        secure = address.scheme == "https"
        self._tls = ssl.create_default_context(cafile=cafile) if secure else None
        self._host, self._timeout = address.hostname, timeout
        self._port, self._path = address.port or (443 if secure else 80), address.path.rstrip("/")
        own = "" if token is None else f"Authorization: Bearer {token}\r\n"
        self._head = f"Host: {address.netloc}\r\nContent-Type: application/json\r\n{own}Content-Length: "
        self._socket: Any = None

    def ask(self, method: str, path: str, data: bytes) -> tuple[int, bytes]:
        """The status and the body of an answer. OSError or ValueError where there is none."""
        if self._socket is None:
            self._socket = socket.create_connection((self._host, self._port), self._timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                self._socket = self._tls.wrap_socket(self._socket, server_hostname=self._host)
            self._file = self._socket.makefile("rb")
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}{len(data)}\r\n\r\n"
        self._socket.sendall(head.encode("latin-1") + data)
        status, headers = self._file.readline().split(b" ", 2)[1:2], {}
        while (line := self._file.readline()).strip():
            name, _, value = line.lower().partition(b":")
            headers[name] = value.strip()
        length = int(headers.get(b"content-length", 0))
        found = self._file.read(length)
        if not (status and line) or len(found) < length or b"transfer-encoding" in headers:
            raise ConnectionError("the server has closed the connection, or answers in pieces")
        if headers.get(b"connection") == b"close":
            self.close()
        return int(status[0]), found

    def close(self) -> None:
        """May be asked again, on another."""
        if self._socket is not None:
            self._socket = self._socket.close()


def _seen(observation: Any, action_mask: Any) -> dict[str, Any]:
    return {"observation": _plain(observation)} | ({} if action_mask is None else {"action_mask": _plain(action_mask)})


def _plain(value: Any) -> Any:
    """What JSON holds; arrays of some size as their bytes."""
    if isinstance(value, np.ndarray | np.generic):
        if value.size < 64:
            return value.tolist()
        own = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        return {"dtype": own.dtype.name, "shape": own.shape, "data": base64.b64encode(own.tobytes()).decode()}
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


# -- acting without the server -----------------------------------------------------------------------------------------


class _LocalPolicy:
    """The run's policy, as the client has fetched it. version: of the weights. room: after how many steps of an episode
    the run wants to have them."""

    def __init__(self, client: Client):
        self._client = client
        told = client.description()["local"]
        if "refused" in told:
            raise RuntimeError(f"This client cannot act for itself: {told['refused']} Use inference='remote'.")
        self._program, self._told = ClientProgram(told), told
        self._leaves = sum(name.startswith("action") for name in told["outputs"])
        self._extras = [name[6:] for name in told["outputs"] if name.startswith("extra.")]
        self._version, self._room = -1, 1
        self._fetch()

    def act(self, name: str, own: _Episode, observation: Any, mask: Any, rng: np.random.Generator) -> Any:
        if len(own.rewards) < len(own.steps):
            own.rewards.append(own.reward)
            own.reward = 0.0
        if len(own.steps) >= self._room:
            self.send(name, own, observation, mask, {})
        inputs = {part["name"]: _array(observation, part) for part in self._told["observation"]}
        seen = [array[0] for array in inputs.values()]
        inputs["action_mask"] = self._flags(mask)[None]
        if size := self._told["state"]:
            inputs["state"] = np.zeros((1, size), np.float32) if own.state is None else own.state
        sizes = self._told["noise"]
        inputs["uniform"] = rng.random((1, sizes["uniform"]), np.float32)
        inputs["normal"] = rng.standard_normal((1, sizes["normal"]), np.float32)
        found = self._program(inputs)
        own.state = found.get("next")
        extras = {name: found["extra." + name][0] for name in self._extras}
        action = [found[f"action{i}"][0] for i in range(self._leaves)]
        own.steps.append((seen, inputs["action_mask"][0], action, extras))
        return _structured(self._told["action"], iter(action), lambda leaf: leaf.tolist())

    def send(self, name: str, own: _Episode, last: Any, mask: Any, ends: dict[str, bool]) -> None:
        """Send what was played. last: the observation that follows it."""
        if len(own.rewards) < len(own.steps):
            own.rewards.append(own.reward)
        seen, masks, actions, extras = zip(*own.steps, strict=True)
        each = zip(*seen, [_array(last, part)[0] for part in self._told["observation"]], strict=True)
        body = {
            "episode": name, "number": own.number + 1, "version": self._version,
            "reward": _plain(np.array(own.rewards)),
            "observation": _structured(self._told["observations"], map(np.stack, each), _plain),
            "action": _structured(self._told["action"], map(np.stack, zip(*actions, strict=True)), _plain), **ends,
            "extras": {key: _plain(np.stack([one[key] for one in extras])) for key in extras[0]},
        }  # fmt: skip
        if self._told["action_mask"]:
            body["action_mask"] = _plain(np.stack([*masks, self._flags(mask)]).astype(np.int8))
        try:
            answer = json.loads(self._client._ask("POST", "/v1/steps", body, name))
        except EpisodeLost:  # the server was started again: its weights are others
            self._fetch()
            raise
        own.steps, own.rewards, own.number, own.reward = [], [], own.number + 1, 0.0
        if answer["version"] != self._version:
            self._fetch()
        self._room = answer["room"]

    def _flags(self, mask: Any) -> np.ndarray:
        return np.ones(self._told["action_mask"], bool) if mask is None else np.asarray(mask).ravel() != 0

    def _fetch(self) -> None:
        data = self._client._ask("GET", f"/v1/weights?after={self._version}")
        if data:
            weights, told = read_safetensors(data)
            self._program.arrays.update(weights)
            self._version, self._room = int(told["version"]), int(told["room"])


def read_safetensors(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays by name, and what is said beside them."""
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
    kinds |= {"BOOL": "?", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
    start = 8 + int.from_bytes(data[:8], "little")
    head, found = json.loads(data[8:start]), {}
    told = head.pop("__metadata__", {})
    for name, entry in head.items():
        begin, end = entry["data_offsets"]
        found[name] = np.frombuffer(data[start + begin : start + end], kinds[entry["dtype"]]).reshape(entry["shape"])
    return found, told


def _array(observation: Any, part: dict[str, Any]) -> np.ndarray:
    """A part of an observation, [1, ...]."""
    found = np.asarray(functools.reduce(operator.getitem, part["path"], observation), part["dtype"])
    if found.shape != tuple(part["shape"]):
        raise ValueError(f"{part['name']} has the shape {found.shape}; expected {tuple(part['shape'])}.")
    return found[None]


def _structured(structure: Any, leaves: Iterator[np.ndarray], plain: Callable[[np.ndarray], Any]) -> Any:
    """Leaves in dicts and lists."""
    if isinstance(structure, dict):
        return {key: _structured(part, leaves, plain) for key, part in structure.items()}
    return plain(next(leaves)) if structure is None else [_structured(part, leaves, plain) for part in structure]


class ClientProgram:
    """The steps of a policy, as the description of a server has them, over NumPy."""

    def __init__(self, told: dict[str, Any]):
        if unknown := sorted({name for name, *_ in told["program"]} - set(OPERATIONS)):
            raise ValueError(f"the policy uses {', '.join(unknown)}, which this client does not know")
        self._steps = []
        self.arrays: dict[Any, Any] = {}  # and all else that arguments are, by names of their own
        for place, (name, *given) in enumerate(told["program"]):
            self._steps.append((place, OPERATIONS[name], [self._read(part) for part in given]))
        self._outputs = told["outputs"].items()

    def __call__(self, arrays: dict[Any, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name, of inputs, noise and weights by name: [N, ...], of at most eight rows. What is left out is
        as in the last call."""
        found = self.arrays
        found.update(arrays)
        for place, function, arguments in self._steps:
            found[place] = function(*_all(arguments, found))
        return {name: found[place] for name, place in self._outputs}

    def _read(self, part: Any) -> Any:
        """Where an argument of a step is found: a list for a tuple of them."""
        if isinstance(part, list):
            return [self._read(one) for one in part]
        if isinstance(part, dict):
            ((kind, value),) = part.items()
            if kind == "x":
                return value
            part = slice(*value) if kind == "slice" else float(value) if kind == "float" else Ellipsis
        self.arrays[name := f"constant {len(self.arrays)}"] = part
        return name


def _all(parts: list[Any], found: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple([_all(part, found) if isinstance(part, list) else found[part] for part in parts])


_BLOCK, _ZERO = np.arange(8), np.zeros((), np.float32)


def _matmul(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of at most eight rows, as eight, which is how etude computes: kernels of BLAS differ in the last bits."""
    return np.dot(x.take(_BLOCK, 0, None, "clip"), w)[: len(x)]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - np.maximum.reduce(x, -1, keepdims=True))
    return e / np.add.reduce(e, -1, keepdims=True)


_OPERATORS = "add sub mul truediv pow and or lt le gt ge eq ne neg invert"
_FUNCTIONS = "tanh exp log log1p expm1 sqrt square abs sign rint minimum maximum concatenate stack expand_dims squeeze"
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, f"__{name}__") for name in _OPERATORS.split()},
    **{name: getattr(np, name) for name in _FUNCTIONS.split()},
    "getitem": operator.getitem,
    "matmul": _matmul,
    "affine": lambda x, w, bias: _matmul(x, w) + bias,
    "relu": lambda x: np.maximum(x, _ZERO),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, _ZERO))),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "softplus": lambda x: np.maximum(x, _ZERO) + np.log1p(np.exp(-np.abs(x))),
    "softmax": _softmax,
    "where": np.where,
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "cast": lambda x, dtype: np.asarray(x).astype(dtype, copy=False),
    "reshape": lambda x, shape: np.asarray(x).reshape(shape),
    "sum": lambda x, axis=None, keepdims=False: np.add.reduce(x, axis, keepdims=keepdims),
    "max": lambda x, axis=None, keepdims=False: np.maximum.reduce(x, axis, keepdims=keepdims),
    "cumsum": lambda x, axis=-1: np.add.accumulate(x, axis),
    "argmax": lambda x, axis=-1: x.argmax(axis),
    "one_hot": lambda index, n: (np.asarray(index)[..., None] == np.arange(n)).astype(np.float32),
    "take_last": lambda x, index: np.take_along_axis(x, index[..., None], -1)[..., 0],
}  # fmt: skip
