"""Trained policies as a service: the routes of clients, of which nothing is learned, and the best actions.

All that ask at a time are one forward pass. A policy is a function of arrays: what it remembers of an
episode is kept here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from etude.base.errors import EtudeError
from etude.base.spaces import ACTION_MASK, tree_of
from etude.serving import http
from etude.serving.clients import Listening
from etude.serving.http import Answer, Content, HttpServer, Route
from etude.serving.server import PolicyServer, Post, conversion_of

Load = Callable[[], "Mapping[str, Any] | None"]  # policies by name; None: they are those of the last call
_COUNTERS = {
    "actions": "Actions that were given.",
    "forward_passes": "Forward passes that computed them.",
    "acting_seconds": "Seconds that they took.",
    "episodes": "Episodes that have ended.",
    "loads": "Times that the policy was loaded.",
}


@dataclass(slots=True)
class _Playing:
    """An open episode: what the policy remembers of it, nothing at its start; its length, and its return."""

    memory: dict[str, np.ndarray] = field(default_factory=dict)
    length: int = 0
    total: float = 0.0


class _ServedPolicy(PolicyServer):
    """The episodes that clients play with one policy, an `export.ExportedPolicy`."""

    def __init__(self, address: Listening, policy: Any):
        self.counts: dict[str, float] = dict.fromkeys(_COUNTERS, 0.0)
        self._playing: dict[str, _Playing] = {}
        self.use(policy)
        super().__init__(address, conversion_of(policy.source, policy.space, policy.spaces))

    def _listen(self, address: Listening) -> Any:
        return None  # one server listens for all policies

    def use(self, policy: Any) -> None:
        """Act with this policy from now on, also in open episodes."""
        self._policy = policy
        self.counts["loads"] += 1

    def routes(self, prefix: str) -> list[Route]:
        """Those of clients, below this prefix, and one for single observations."""

        async def act(body: dict[str, Any]) -> Answer:
            post = self._parsed("", "act", body, 0.0)
            outputs = self._act([post.observation], [_Playing()])
            shown = {
                name: [x if np.isfinite(x) else None for x in value[0].ravel().tolist()]
                for name, value in outputs.items()
                if name not in self._policy.actions and not name.startswith("next_")
            }
            return 200, {"action": self._action(outputs, 0), "output": shown}

        own = Route("POST", "/v1/act", "Ask for the action of an observation that begins an episode.", act)
        return [replace(route, path=prefix + route.path) for route in (*self._routes(), own)]

    def attach(self, server: HttpServer) -> None:
        """Take what comes in at this server."""
        self._http = server

    def start(self) -> None:
        """Answer it."""

        def serve() -> None:
            with suppress(EtudeError):  # the server was closed
                self.serve(self._answer)

        threading.Thread(target=serve, name="etude-service", daemon=True).start()

    @property
    def open(self) -> int:
        """How many episodes are open."""
        return len(self._open)

    # -- acting --------------------------------------------------------------------------------------------------------

    def _parsed(self, name: str, kind: str, body: dict[str, Any], reward: float) -> Post:
        post = super()._parsed(name, kind, body, reward)  # which refuses what does not fit
        if post.kind == "act":  # by the names of the policy's inputs
            observation, found = http.value_of(self._policy.source, body.get("observation"), "observation"), {}
            for each in self._policy.observed:
                if each.path is None:
                    mask = body.get(ACTION_MASK)
                    value = np.ones(each.shape, bool) if mask is None else http.array(mask, ACTION_MASK) != 0
                else:
                    value = observation
                    for key in each.path:
                        value = value[key]
                found[each.name] = np.asarray(value, each.dtype).reshape(1, *each.shape)
            post.observation = {**found, "reward": np.array([reward], np.float32)}
        return post

    def _answer(self, posts: list[Post]) -> bool:
        """Answer all that came in together. See `PolicyServer.serve`."""
        asking = [post for post in posts if post.kind == "act"]
        for post in asking:
            playing = self._playing.setdefault(post.episode, _Playing())
            playing.length, playing.total = playing.length + 1, playing.total + post.reward
        if asking:
            playing_now = [self._playing[post.episode] for post in asking]
            outputs = self._act([post.observation for post in asking], playing_now)
            for i, post in enumerate(asking):
                if post.action is None:
                    post.answer({"action": self._action(outputs, i)})
                else:
                    post.acted(post.action)
        for post in posts:
            if post.kind != "act":
                ended = self._playing.pop(post.episode, _Playing())
                self.counts["episodes"] += 1
                post.answer({"length": ended.length, "return": ended.total + post.reward})
        return False

    def _act(self, inputs: list[dict[str, np.ndarray]], playing: list[_Playing]) -> dict[str, np.ndarray]:
        """What the policy computes for these observations, of which the episodes remember their part."""
        start, policy = time.perf_counter(), self._policy
        together = {name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]}
        if policy.memory:
            begun = {each.name: each.zeros(1) for each in policy.memory}
            kept = [own.memory if _kinds(own.memory) == _kinds(begun) else begun for own in playing]
            together["first"] = np.array([memory is begun for memory in kept])
            together |= {name: np.concatenate([memory[name] for memory in kept]) for name in begun}
        outputs = policy.act(together)
        for i, own in enumerate(playing):
            own.memory = {each.name: outputs[f"next_{each.name}"][i : i + 1] for each in policy.memory}
        self.counts["actions"] += len(playing)
        self.counts["forward_passes"] += 1
        self.counts["acting_seconds"] += time.perf_counter() - start
        return outputs

    def _action(self, outputs: Mapping[str, np.ndarray], i: int) -> Any:
        own = (outputs[name][i] for name in self._policy.actions)
        return http.plain(tree_of(self._policy.space, own))


def _kinds(memory: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: (value.dtype, value.shape[1:]) for name, value in memory.items()}


class PolicyService:
    """Answers clients from the moment that it is made until it is closed. ConfigError where it cannot listen.

    sources: what loads policies, by the name of a run. Where they are of several agents, each is served as RUN-AGENT. A
    policy has its routes below /NAME, a single one without it, too.
    """

    def __init__(self, address: Listening, sources: Mapping[str, Load]):
        self._sources = dict(sources)
        self.policies: dict[str, _ServedPolicy] = {}
        self._failures = 0
        for run, load in self._sources.items():
            for agent, policy in (load() or {}).items():
                self.policies[_name(run, agent)] = _ServedPolicy(address, policy)
        routes = [route for name, policy in self.policies.items() for route in policy.routes(f"/{name}")]
        if len(self.policies) == 1:
            routes += next(iter(self.policies.values())).routes("")
        self._http = HttpServer(address, [*routes, *self._own_routes()], "etude: trained policies", self._sweep)
        for served in self.policies.values():
            served.attach(self._http)
        self._http.start()
        for served in self.policies.values():
            served.start()

    def reload(self) -> list[str]:
        """Load policies of which there are newer ones: what went wrong. The present ones then go on."""
        problems = []
        for run, load in self._sources.items():
            try:
                for agent, policy in (load() or {}).items():
                    self.policies[_name(run, agent)].use(policy)
            except (EtudeError, OSError, KeyError) as problem:
                self._failures += 1
                problems.append(f"{run}: {problem}")
        return problems

    @property
    def ends(self) -> bool:
        """Whether it does not answer any more."""
        return self._http.ends

    def close(self) -> None:
        """End it. May be called twice."""
        self._http.close()

    def _sweep(self) -> None:
        for policy in self.policies.values():
            policy.sweep()

    def _own_routes(self) -> list[Route]:
        async def health(query: dict[str, Any]) -> Answer:
            return 200, {"status": "ok", "policies": list(self.policies)}

        async def metrics(query: dict[str, Any]) -> Answer:
            return 200, Content(self.metrics().encode(), PROMETHEUS)

        return [
            Route("GET", "/healthz", "Whether it answers.", health, public=True),
            Route("GET", "/metrics", "Counts in Prometheus' text format.", metrics, answer=PROMETHEUS),
        ]

    def metrics(self) -> str:
        """Counts of all policies in Prometheus' text format."""
        lines = []
        for name, about in _COUNTERS.items():
            rows = {policy: own.counts[name] for policy, own in self.policies.items()}
            lines += _metric(f"etude_{name}_total", "counter", about, rows)
        rows = {policy: own.open for policy, own in self.policies.items()}
        lines += _metric("etude_open_episodes", "gauge", "Episodes that are open.", rows)
        failures = ["# HELP etude_load_failures_total Times that a newer policy could not be loaded."]
        failures += ["# TYPE etude_load_failures_total counter", f"etude_load_failures_total {self._failures}"]
        return "\n".join([*lines, *failures]) + "\n"


PROMETHEUS = "text/plain; version=0.0.4"


def _metric(name: str, kind: str, about: str, rows: Mapping[str, float]) -> list[str]:
    return [
        f"# HELP {name} {about}",
        f"# TYPE {name} {kind}",
        *(f'{name}{{policy="{policy}"}} {value:g}' for policy, value in rows.items()),
    ]


def _name(run: str, agent: str) -> str:
    """What paths call a policy."""
    name = f"{run}-{agent}" if agent else run
    return "".join(each if each.isalnum() and each.isascii() or each in "-_" else "_" for each in name)[:64]
