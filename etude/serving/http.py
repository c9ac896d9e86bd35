"""HTTP for clients: an event loop in a thread of its own reads requests, refuses what may not come in, and hands the
rest to the routes that it was given; and what bodies hold, in JSON or MessagePack, with the values of spaces. Whoever
serves declares routes; their OpenAPI document is generated from them.

It answers no other site's pages: no header of CORS is ever sent, and a post has to say that it is JSON or MessagePack,
which a browser asks for permission first. Requests are answered by a plain ASGI application, as a framework's routing
and requests cost as much as all the rest of an answer.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import math
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from etude.base.errors import ConfigError, SpaceError, needing
from etude.base.spaces import Dict, Space, Tuple, describe, leaves, parts, to_json
from etude.base.trees import Tree
from etude.envs.observations import is_text
from etude.offline.dataset import actions_in, outside
from etude.serving.clients import Listening

JSON, MSGPACK = "application/json", "application/msgpack"


class Refused(Exception):
    """A request that is answered with an error of HTTP, and these headers."""

    def __init__(self, status: int, message: str, headers: list[tuple[bytes, bytes]] | None = None):
        super().__init__(message)
        self.status, self.headers = status, headers or []


def unpacked(data: bytes | bytearray, kind: str) -> dict[str, Any]:
    """The dict in a body."""
    try:
        if kind == MSGPACK:
            import msgpack

            found = msgpack.unpackb(data)
        else:
            found = json.loads(data or b"{}")
    except (ValueError, RecursionError, TypeError) as error:  # what msgpack raises is a ValueError
        raise Refused(400, f"The body is no {kind}: {type(error).__name__}: {error!s:.120}.") from None
    if not isinstance(found, dict):
        raise Refused(422, f"The body is a {type(found).__name__}; expected an object with keys.")
    return found


def packed(body: dict[str, Any], kind: str) -> bytes:
    """A dict as a body."""
    if kind == JSON:
        return json.dumps(body, separators=(",", ":")).encode()
    import msgpack

    return msgpack.packb(body)


def number(body: dict[str, Any], name: str, default: float | None) -> Any:
    """A finite number; default: where there is none."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value := float(value)):
        raise Refused(422, f"{name}: expected a finite number; got {value!r:.80}.")
    return value


def flag(body: dict[str, Any], name: str) -> bool:
    """True or False; False where there is none."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Refused(422, f"{name}: expected true or false; got {value!r:.80}.")
    return value


def array(value: Any, name: str) -> np.ndarray:
    """Numbers: in nested lists, or as {"dtype", "shape", "data"} with their bytes in C order, little-endian; in JSON
    the bytes are base64."""
    try:
        found = _from_bytes(value) if isinstance(value, dict) else np.array(value)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise Refused(422, f"{name}: {error!s:.120}; expected numbers, in lists of one shape.") from None
    if found.dtype.kind not in "biuf":
        raise Refused(422, f"{name}: expected numbers, in lists of one shape; got {value!r:.80}.")
    return found


def _from_bytes(value: dict[str, Any]) -> np.ndarray:
    data, shape = value["data"], tuple(int(size) for size in value["shape"])
    dtype = np.dtype(str(value["dtype"])).newbyteorder("<")
    if dtype.kind not in "biuf" or min(shape, default=1) < 0:
        raise ValueError(f"dtype {value['dtype']!r:.40} of shape {shape!r:.80}")
    raw = base64.b64decode(data, validate=True) if isinstance(data, str) else bytes(data)
    if len(raw) != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{len(raw)} bytes of data for {dtype} of shape {shape}")
    return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def value_of(space: Space, given: Any, name: str) -> Tree:
    """A value of a space as its environment would return it; whether it belongs there is checked by whoever reads it.
    Numbers become those of the space's dtype, where that changes none."""
    if isinstance(space, Dict):
        if not isinstance(given, dict):
            raise Refused(422, f"{name}: expected an object with {', '.join(space.spaces)}; got {given!r:.80}.")
        return {key: value_of(part, given.get(key), f"{name}.{key}") for key, part in parts(space)}
    if isinstance(space, Tuple):
        if not isinstance(given, list | tuple) or len(given) != len(space.spaces):
            raise Refused(422, f"{name}: expected a list of {len(space.spaces)}; got {given!r:.80}.")
        return tuple(value_of(part, own, f"{name}.{i}") for (i, part), own in zip(parts(space), given, strict=True))
    if is_text(space):
        if not isinstance(given, str):
            raise Refused(422, f"{name}: expected a text; got {given!r:.80}.")
        return given
    found = array(given, name)
    assert space.dtype is not None
    if found.dtype == space.dtype:
        return found
    with np.errstate(all="ignore"):
        cast = found.astype(space.dtype)
        exact = space.dtype.kind == "f" or bool((cast == found).all())
    if not exact:
        raise Refused(422, f"{name}: expected values of {describe(space)}; got {given!r:.80}.")
    return cast


def action_of(space: Space, given: Any, steps: int | None = None) -> np.ndarray:
    """An action of the environment as the agent's, [1, ...]; or those of so many steps, [steps, ...]."""
    value, each = value_of(space, given, "action"), []
    for (path, leaf), own in zip(leaves(space), leaves_of(space, value), strict=True):
        where, shape = ".".join(map(str, ("action", *path))), tuple(leaf.shape or ())
        shape = shape if steps is None else (steps, *shape)
        if own.shape != shape:
            raise Refused(422, f"{where}: expected the shape {shape}; got {own.shape}.")
        own = own[None] if steps is None else own
        if not np.isfinite(own).all() or outside(leaf, own).any():
            raise Refused(422, f"{where}: {own!s:.80} is outside of {leaf!s:.120}.")
        each.append(own)
    return actions_in(space, each)


def numbers(value: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Finite numbers of this shape, float32."""
    found = array(value, name)
    if found.shape != shape:
        raise Refused(422, f"{name}: expected the shape {shape}; got {found.shape}.")
    with np.errstate(over="ignore"):
        found = found.astype(np.float32)
    if not np.isfinite(found).all():
        raise Refused(422, f"{name}: expected finite numbers that float32 holds.")
    return found


def leaves_of(space: Space, value: Any) -> list[np.ndarray]:
    """What `value_of` has found for each leaf of a space."""
    inner = parts(space)
    return [leaf for key, part in inner for leaf in leaves_of(part, value[key])] if inner else [value]


def plain(value: Any) -> Any:
    """A value of a space in numbers, lists and dicts."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def plain_space(space: Space) -> Any:
    """A space as plain data; its text where it has no such form."""
    try:
        return to_json(space)
    except SpaceError:
        return {"text": describe(space)}


# -- JSON schemas of bodies --------------------------------------------------------------------------------------------

EPISODE_NUMBER = {"type": "integer", "minimum": 1, "maximum": 2**53}
FLOAT = {"type": "number", "minimum": -1e30, "maximum": 1e30}


def _schema_of(space: Space, steps: bool = False) -> dict[str, Any]:
    """The JSON schema of a value of a space, or of those of several steps."""
    if isinstance(space, Dict):
        each = {key: _schema_of(part, steps) for key, part in parts(space)}
        return {"type": "object", "properties": each, "required": list(each)}
    if isinstance(space, Tuple):
        own = [_schema_of(part, steps) for _, part in parts(space)]
        return {"type": "array", "prefixItems": own, "items": False, "minItems": len(own), "maxItems": len(own)}
    if is_text(space):
        return {"type": "string"}
    return {"description": describe(space), **_listed({}, (*((None,) if steps else ()), *(space.shape or ())))}


def _listed(element: dict[str, Any], shape: tuple[int | None, ...]) -> dict[str, Any]:
    """Numbers in nested lists of this shape, each None a length of any size; or their bytes."""
    if not shape:
        return {"type": "number", **element}
    data = {"type": "object", "required": ["dtype", "shape", "data"]}
    found: dict[str, Any] = {"type": "number", **element}
    for size in reversed(shape):
        found = {"type": "array", "items": found}
        if size is not None:
            found |= {"minItems": size, "maxItems": size}
    return {"anyOf": [found, data]}


def an_object(required: str, /, **properties: Any) -> dict[str, Any]:
    """The schema of an object, which has no other properties. required: names of properties."""
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": required.split()} if required else {})


def schemas_of(observation: Space, action: Space) -> dict[str, dict[str, Any]]:
    """Those of posts of an episode, by their kinds, where clients have these spaces."""
    told = {"number": EPISODE_NUMBER, "reward": FLOAT}
    mask = {"type": "array", "items": {"type": "integer"}}
    seen = {**told, "observation": _schema_of(observation), "action_mask": mask}
    ends = {"terminated": {"type": "boolean"}, "truncated": {"type": "boolean"}}
    own = {"action": _schema_of(action), "log_prob": FLOAT}
    steps = {
        "episode": {"type": "string"}, "number": EPISODE_NUMBER, "version": {"type": "integer"},
        "observation": _schema_of(observation, True), "action": _schema_of(action, True),
        "reward": {"type": "array", "minItems": 1}, "extras": {"type": "object"}, "action_mask": {"type": "array"},
    }  # fmt: skip
    return {
        "act": an_object("number observation", **seen),
        "log_action": an_object("number observation action", **seen, **own),
        "reward": an_object("number", **told),
        "end": an_object("number observation", **seen, **ends),
        "steps": an_object("episode number version observation action reward extras", **steps, **ends),
    }


NAME = "[A-Za-z0-9_-]{1,64}"  # of what a path names: an episode, a policy
ANY = {"type": "object"}  # a schema


class Content(NamedTuple):
    """An answer that is no object of JSON."""

    data: bytes
    kind: str  # its Content-Type


Answer = tuple[int, "dict[str, Any] | Content"]  # of HTTP: the status, and the body


@dataclass(frozen=True)
class Route:
    """What clients may ask for.

    path: {name} stands for a `NAME`. handle: answers the body of a post, or the query of a GET, and the names in the
    path; raises `Refused` for what is wrong. summary: one sentence. body: the JSON schema of what comes in.
    answer: that of what goes out with status 200; a text: its Content-Type. others: further statuses of answers, and
    what they mean. public: whether it is answered without the token.
    """

    method: str
    path: str
    summary: str
    handle: Callable[..., Awaitable[Answer]]
    body: dict[str, Any] = field(default_factory=lambda: ANY)
    answer: dict[str, Any] | str = field(default_factory=lambda: ANY)
    others: dict[int, str] = field(default_factory=dict)
    public: bool = False


class HttpServer:
    """Listens from the moment that it is made, and answers from `start` on. Raises ConfigError where it
    cannot listen.

    loop: of its thread, in which the functions `handle` of routes run. sweep: called there several times a second.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(
        self, address: Listening, routes: Sequence[Route], title: str, sweep: Callable[[], None] = lambda: None
    ):
        self._limits, self._sweep = address.limits, sweep
        self._token = None if address.token is None else f"Bearer {address.token}".encode()
        document = openapi(title, routes)

        async def described(query: dict[str, Any]) -> Answer:
            return 200, document

        own = Route("GET", "/v1/openapi.json", "This document.", described)
        self._routes = [(re.compile(re.sub(r"{\w+}", f"({NAME})", route.path)), route) for route in (*routes, own)]
        self._asked: dict[str, int] = {}  # how many requests came from an address in this second
        self._second = 0
        self._idle: dict[Any, tuple[Any, float]] = {}  # the last request of connections that wait, and since when
        self._started = threading.Event()
        with needing("A run on what clients play", "serve"):
            import uvicorn
        self._socket = _listening(address.host, address.port)
        try:
            config = uvicorn.Config(
                self._answer, interface="asgi3", log_config=None, lifespan="off", access_log=False, ws="none",
                proxy_headers=False, server_header=False, date_header=False, timeout_graceful_shutdown=1,
                timeout_keep_alive=3600, limit_concurrency=address.limits.connections + 1,
                ssl_certfile=address.ssl_certfile, ssl_keyfile=address.ssl_keyfile,
            )  # fmt: skip
            config.load()
        except (OSError, ValueError) as error:  # of the certificate
            self._socket.close()
            raise ConfigError(
                f"ssl_certfile = {address.ssl_certfile!r}, ssl_keyfile = {address.ssl_keyfile!r}: {error}. Give the "
                "paths of a certificate and of its key, in PEM."
            ) from error
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._in_thread, name="etude-serving", daemon=True)

    def start(self) -> None:
        """Answer from now on; what came before waits for it."""
        self._thread.start()
        self._started.wait()

    @property
    def ends(self) -> bool:
        """Whether it does not answer any more, or soon will not."""
        return self._server.should_exit

    def close(self) -> None:
        """End it. May be called twice."""
        self._server.should_exit = True
        if self._started.is_set():
            self._thread.join(10)

    def _in_thread(self) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:  # uvloop's, if it is there
            runner.run(self._run())

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        watch = asyncio.create_task(self._watch())
        self._started.set()
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._server.should_exit = True
            watch.cancel()
            self._socket.close()
            self._sweep()

    async def _watch(self) -> None:
        while not self.ends:
            await asyncio.sleep(min(0.1, self._limits.silence / 4))
            self._sweep()
            # Close connections on which nothing is asked for long, also where the head of a request never ends.
            now, found = time.monotonic(), {}
            connections: list[Any] = list(self._server.server_state.connections)
            for connection in connections:
                cycle = connection.cycle
                if cycle is None or cycle.response_complete:
                    last, since = self._idle.get(connection, (None, now))
                    found[connection] = (cycle, since if last is cycle else now)
                    if now - found[connection][1] > 2 * self._limits.silence:
                        connection.transport.abort()
            self._idle = found
        self._sweep()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """An ASGI application."""
        kind, extra = JSON, []
        try:
            if self.ends:
                raise Refused(503, "The server ends.")
            route, names = self._route(scope)
            headers = dict(scope["headers"])
            self._admit(scope, headers, route)
            if route.method == "POST":
                kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
                if kind not in (JSON, MSGPACK):
                    raise Refused(415, f"Content-Type: expected {JSON} or {MSGPACK}; got {kind!r:.80}.")
                given = unpacked(await self._body(headers, receive), kind)
                known = route.body.get("properties", given)
                if unknown := [key for key in given if key not in known]:  # as a typing error would be no reward
                    raise Refused(422, f"There is no key {unknown[0]!r:.80}; expected {', '.join(known)}.")
            else:
                given = dict(urllib.parse.parse_qsl(scope["query_string"].decode("latin-1")))
            status, body = await route.handle(given, *names)
        except Refused as problem:
            status, body, extra = problem.status, {"error": str(problem)}, problem.headers
        data, kind = body if isinstance(body, Content) else (packed(body, kind), kind)
        if status == 503:
            extra = [(b"retry-after", b"0")]
        if status != 304:
            extra = [(b"content-type", kind.encode()), (b"content-length", str(len(data)).encode()), *extra]
        with suppress(RuntimeError):  # the client has closed the connection meanwhile
            await send({"type": "http.response.start", "status": status, "headers": extra})
            await send({"type": "http.response.body", "body": b"" if status == 304 else data})

    def _route(self, scope: Any) -> tuple[Route, tuple[str, ...]]:
        allowed = []
        for pattern, route in self._routes:
            if found := pattern.fullmatch(scope["path"]):
                if route.method == scope["method"]:
                    return route, found.groups()
                allowed.append(route.method)
        if allowed:
            ways = ", ".join(allowed)
            raise Refused(405, f"{scope['method']:.20}: expected {ways}.", [(b"allow", ways.encode())])
        raise Refused(404, f"There is no {scope['path']!r:.80}; /v1/openapi.json lists what there is.")

    def _admit(self, scope: Any, headers: dict[bytes, bytes], route: Route) -> None:
        """Refuse who does not know the token, or asks too often."""
        second, client = int(time.monotonic()), (scope["client"] or ("",))[0]
        if second != self._second:
            self._second, self._asked = second, {}
        self._asked[client] = asked = self._asked.get(client, 0) + 1
        if asked > self._limits.rate:
            raise Refused(
                429, f"More than {self._limits.rate} requests in a second. Ask less often.", [(b"retry-after", b"1")]
            )
        if self._token is None or route.public:
            return
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._token):
            raise Refused(
                401, "Send the token of this server: Authorization: Bearer TOKEN.", [(b"www-authenticate", b"Bearer")]
            )

    async def _body(self, headers: dict[bytes, bytes], receive: Any) -> bytes | bytearray:
        limit, announced = self._limits.body, headers.get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > limit:
            raise Refused(413, f"The body is {announced!r:.20} bytes; at most {limit} are taken.")
        message = await receive()
        data: bytes | bytearray = message.get("body", b"")
        if message.get("more_body"):
            try:
                data = bytearray(data)
                async with asyncio.timeout(self._limits.wait):
                    while message.get("more_body") and len(data) <= limit:
                        message = await receive()
                        data += message.get("body", b"")
            except TimeoutError:
                raise Refused(408, f"The body did not come within {self._limits.wait:g} seconds.") from None
        if len(data) > limit:
            raise Refused(413, f"At most {limit} bytes are taken.")
        return data


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol is named, or asyncio would not set TCP_NODELAY: each answer would wait 40 ms for an ACK.
        listening = socket.socket(family, kind, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(256)  # from now on, and not when the loop has started
    except OSError as error:
        raise ConfigError(f"Cannot listen on {host}:{port}: {error}. Give another address.") from error
    return listening


# -- the OpenAPI document ----------------------------------------------------------------------------------------------

ERRORS = {
    400: "the body is not what its Content-Type says", 401: "the token is missing, or wrong", 408: "it took too long",
    413: "the body is too large", 415: "the Content-Type is neither JSON nor MessagePack",
    422: "the body says what cannot be", 429: "too many requests, or open episodes: come later",
    503: "send the same request again",
}  # fmt: skip


def openapi(title: str, routes: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        names = re.findall(r"{(\w+)}", route.path)
        parameters: list[dict[str, Any]] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": f"^{NAME}$"}}
            for name in names
        ]
        posted, answer = route.method == "POST", route.answer
        if not posted:
            parameters += [
                {"name": name, "in": "query", "schema": schema}
                for name, schema in route.body.get("properties", {}).items()
            ]
        good = {answer: {}} if isinstance(answer, str) else _content(answer, posted)
        statuses = ERRORS if posted else (401, 422, 429, 503)
        wrong = _content({"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}, posted)
        meanings = {status: ERRORS[status] for status in statuses} | route.others
        if names:
            meanings[404] = "the path names nothing that there can be"
        responses = {"200": {"description": "the answer", "content": good}}
        for status, meaning in sorted(meanings.items()):
            responses[str(status)] = {"description": meaning, **({} if status == 304 else {"content": wrong})}
        found: dict[str, Any] = {"summary": route.summary, "responses": responses}
        if parameters:
            found["parameters"] = parameters
        if posted:
            found["requestBody"] = {"required": True, "content": _content(route.body, posted)}
        paths.setdefault(route.path, {})[route.method.lower()] = found
    scheme = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {"securitySchemes": scheme},
        "security": [{"token": []}, {}],
    }


def _content(schema: dict[str, Any], posted: bool) -> dict[str, Any]:
    """In which forms an object is there: an answer has the form of the post."""
    return {kind: {"schema": schema} for kind in ((JSON, MSGPACK) if posted else (JSON,))}
