"""HTTP for clients: an event loop in a thread of its own reads requests, refuses what may not come in, and hands the
rest to the routes that it was given. Whoever serves declares routes; their OpenAPI document is generated from them.

It answers no other site's pages: no header of CORS is ever sent, and a post has to say that it is JSON or MessagePack,
which a browser asks for permission first. Requests are answered by a plain ASGI application, as a framework's routing
and requests cost as much as all the rest of an answer.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from etude.base.errors import ConfigError, MissingExtra
from etude.serving import bodies
from etude.serving.bodies import Refused
from etude.serving.clients import ClientLimits

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


class Address(Protocol):
    """Where to listen, and for whom. ssl_certfile, ssl_keyfile: those of uvicorn, for TLS."""

    host: str
    port: int
    token: str | None
    limits: ClientLimits
    ssl_certfile: str | None
    ssl_keyfile: str | None


class HttpServer:
    """Listens from the moment that it is made, and answers from `start` on. Raises ConfigError where it
    cannot listen.

    loop: of its thread, in which the functions `handle` of routes run. sweep: called there several times a second.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, address: Address, routes: Sequence[Route], title: str, sweep: Callable[[], None] = lambda: None):
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
        try:
            import uvicorn
        except ImportError as error:
            raise MissingExtra("A run on what clients play", "serve") from error
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
            self._drop_silent()
        self._sweep()

    def _drop_silent(self) -> None:
        """Close connections on which nothing is asked for long, also where the head of a request never ends."""
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

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """An ASGI application."""
        kind, extra = bodies.JSON, []
        try:
            if self.ends:
                raise Refused(503, "The server ends.")
            route, names = self._route(scope)
            headers = dict(scope["headers"])
            self._admit(scope, headers, route)
            if route.method == "POST":
                kind = bodies.kind_of_body(headers.get(b"content-type", b"").decode("latin-1"))
                given = bodies.unpacked(await self._body(headers, receive), kind)
            else:
                given = dict(urllib.parse.parse_qsl(scope["query_string"].decode("latin-1")))
            status, body = await route.handle(given, *names)
        except Refused as problem:
            status, body, extra = problem.status, {"error": str(problem)}, problem.headers
        data, kind = body if isinstance(body, Content) else (bodies.packed(body, kind), kind)
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
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    scheme = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {"securitySchemes": scheme},
        "security": [{"token": []}, {}],
    }


def _operation(route: Route) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", route.path)
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": f"^{NAME}$"}}
        for name in names
    ]
    posted, answer = route.method == "POST", route.answer
    if not posted:
        parameters += [
            {"name": name, "in": "query", "schema": schema} for name, schema in route.body.get("properties", {}).items()
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
    return found


def _content(schema: dict[str, Any], posted: bool) -> dict[str, Any]:
    """In which forms an object is there: an answer has the form of the post."""
    return {kind: {"schema": schema} for kind in ((bodies.JSON, bodies.MSGPACK) if posted else (bodies.JSON,))}
