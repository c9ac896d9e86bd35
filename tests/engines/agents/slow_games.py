"""Losses over whole games of tokens, game by game and token by token, in NumPy; it imports nothing of etude."""

import math
from typing import Any

import numpy as np
import slow_losses as slow
from gymnasium import spaces as gym


def outputs(given: Any, network: str, tokens: Any) -> np.ndarray:
    """[L + 1, outputs] of a transformer with one block of two heads before each of the tokens, and after the last."""
    v = weights_of(given, network)
    return attended(v, [v["before.dense0.weight"][token] + v["before.dense0.bias"] for token in (0, *tokens)])


def weights_of(given: Any, network: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{network}."): x for name, x in given.w.items() if name.startswith(f"{network}.")}


def attended(v: Any, x: list[np.ndarray], context: int = 10**6) -> np.ndarray:
    """[L, outputs] of the same transformer for L embeddings, of which each sees so many."""
    size, heads = len(x[0]) // 2, []
    parts = [
        np.split(dense(v, "block0.attention.input", normal(v, "block0.attention.input.norm", row)), 3) for row in x
    ]
    for t in range(len(x)):
        found = []
        for own in (slice(0, size), slice(size, 2 * size)):
            query = turned(parts[t][0][own], t)
            there = range(max(0, t - context + 1), t + 1)
            scores = [query @ turned(parts[s][1][own], s) / math.sqrt(size) for s in there]
            share = np.exp(scores) / np.sum(np.exp(scores))
            found.append(sum(p * parts[s][2][own] for s, p in zip(there, share, strict=True)))
        heads.append(np.concatenate(found))
    for t in range(len(x)):
        x[t] = x[t] + dense(v, "block0.attention.output", heads[t])
        hidden = dense(v, "block0.feedforward.input", normal(v, "block0.feedforward.input.norm", x[t]))
        hidden = 0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        x[t] = x[t] + dense(v, "block0.feedforward.output", hidden)
    return np.stack([dense(v, "after.dense0", normal(v, "norm", row)) for row in x])


def dense(v: Any, name: str, x: Any) -> Any:
    return x @ v[f"{name}.weight"].astype(float) + v[f"{name}.bias"]


def normal(v: Any, name: str, x: Any) -> Any:
    return (x - x.mean()) / math.sqrt(x.var() + 1e-6) * v[f"{name}.scale"] + v[f"{name}.bias"]


def turned(x: Any, t: int) -> Any:
    pairs = len(x) // 2
    angle = t * 10_000.0 ** (-np.arange(pairs) / pairs)
    one, other = x[:pairs], x[pairs:]
    return np.concatenate([one * np.cos(angle) - other * np.sin(angle), one * np.sin(angle) + other * np.cos(angle)])


class Game:
    """One game of a batch: its tokens, the places of those of the agent, and what networks make of them."""

    def __init__(self, given: Any, batch: Any, i: int):
        self.given, self.batch, self.i = given, batch, i
        self.places = np.flatnonzero(batch.extras["mine"][i])
        self.end = int(batch.extras["next_place"][i].max())
        self.weight, self.tokens = batch.weight[i], batch.action[i]

    def log_probs(self, parts: str) -> np.ndarray:
        """Of the agent's tokens."""
        return np.array([row[self.tokens[t]] for t, row in zip(self.places, self._logs(parts), strict=True)])

    def entropies(self, parts: str) -> np.ndarray:
        return np.array([-sum(math.exp(x) * x for x in row if x > -1e6) for row in self._logs(parts)])

    def _logs(self, parts: str) -> list[np.ndarray]:
        logits, allowed = (
            outputs(self.given, f"{parts}.policy", self.tokens),
            self.batch.observation["action_mask"][self.i],
        )
        found = []
        for t in self.places:
            x = np.where(allowed[t] > 0, logits[t], -np.inf)
            found.append(x - x.max() - math.log(np.exp(x - x.max()).sum()))
        return found

    def values(self, network: str) -> np.ndarray:
        """Before each token and after the last one, of the padded game."""
        return outputs(self.given, network, self.tokens)[:, 0]

    def extra(self, name: str) -> np.ndarray:
        return self.batch.extras[name][self.i][self.places]


def games(given: Any, batch: Any) -> list[Game]:
    return [Game(given, batch, i) for i in range(len(batch.weight))]


def average(found: list[Game], x: Any) -> float:
    """The mean over games of the mean over the tokens of each."""
    return float(np.mean([game.weight * np.mean(x(game)) for game in found]))


def estimate(log_prob: np.ndarray, reference: np.ndarray) -> np.ndarray:
    return np.exp(reference - log_prob) - (reference - log_prob) - 1


def clipped(game: Game, clip: float) -> np.ndarray:
    ratio = np.exp(game.now - game.extra("log_prob"))
    return -np.minimum(ratio * game.advantage, np.clip(ratio, 1 - clip, 1 + clip) * game.advantage)


def of_policy(found: list[Game], c: Any) -> dict[str, float]:
    return {
        "reference_kl": average(found, lambda game: estimate(game.now, game.before)),
        "entropy": average(found, lambda game: game.entropies("actor")),
        "clip_fraction": average(
            found, lambda game: np.abs(np.exp(game.now - game.extra("log_prob")) - 1) > c.clip_range
        ),
    }


def decision_transformer(given: Any, batch: Any) -> Any:
    """Chen et al. 2021, algorithm 1: sequences of (the action before, return-to-go, observation), step by step."""
    c, v, extras = given.c, weights_of(given, "actor.policy"), batch.extras
    errors, entropies, counted = [], [], extras["mask"].sum()
    discrete = isinstance(given.action, gym.Discrete)
    for i, weight in enumerate(batch.weight):
        x, last, length = [], np.zeros(given.action.n if discrete else 2), len(batch.reward[i])
        for t in range(length):
            when = given.net("actor.time", np.eye(c.time_steps)[min(extras["time"][i, t], c.time_steps - 1)])
            seen = given.see(slow.tree_row(batch.observation, (i, t)))
            to_go = np.array([extras["return"][i, t] / c.return_scale])
            for name, value in (("action", last), ("return", to_go), ("observation", seen)):
                x.append(dense(v, "before.dense0", given.net(f"actor.{name}", value) + when))
            last = np.eye(len(last))[batch.action[i, t]] if discrete else batch.action[i, t].astype(float)
        for t, y in enumerate(attended(v, x, c.network.context)[2::3]):
            if not extras["mask"][i, t]:
                continue
            if discrete:
                policy = slow.Choice(y, slow.tree_row(batch.observation, (i, t))["action_mask"])
                errors.append(-weight * policy.log_prob(batch.action[i, t]))
                entropies.append(policy.entropy())
            else:
                errors.append(weight * np.mean((np.tanh(y) - batch.action[i, t]) ** 2))
    metrics = {"policy_entropy": sum(entropies) / counted} if discrete else {}
    return {"actor": sum(errors) / counted}, {"best_return": extras["best_return"].max(), **metrics}, None


def grpo(given: Any, batch: Any) -> Any:
    found, c = games(given, batch), given.c
    for game in found:
        game.now, game.before = game.log_probs("actor"), game.log_probs("reference")
        game.advantage = batch.extras["advantage"][game.i]
    surrogate = average(found, lambda game: clipped(game, c.clip_range))
    metrics = {"policy_loss": surrogate, **of_policy(found, c)}
    return {"actor": surrogate + c.kl_coefficient * metrics["reference_kl"]}, metrics, None


def dpo(given: Any, batch: Any) -> Any:
    found, beta = games(given, batch), given.c.beta
    gain = [game.log_probs("actor").sum() - game.log_probs("reference").sum() for game in found]
    better = found[::2]
    gaps = [gain[game.i] - gain[game.i + 1] for game in better]

    def mean(x: Any) -> float:
        return float(np.mean([game.weight * own for game, own in zip(better, x, strict=True)]))

    loss = mean([math.log1p(math.exp(-beta * gap)) for gap in gaps])
    return (
        {"actor": loss},
        {
            "accuracy": mean([gap > 0 for gap in gaps]),
            "reward_gap": mean([beta * gap for gap in gaps]),
            "better_log_prob": mean([game.log_probs("actor").sum() for game in better]),
        },
        None,
    )


def reward_model(given: Any, batch: Any) -> Any:
    found = games(given, batch)
    score = [game.values("reward_model.score")[game.end] for game in found]
    gaps = [(game.weight, score[game.i] - score[game.i + 1]) for game in found[::2]]
    loss = float(np.mean([weight * math.log1p(math.exp(-gap)) for weight, gap in gaps]))
    return {"reward_model": loss}, {"accuracy": float(np.mean([weight * (gap > 0) for weight, gap in gaps]))}, None


def rlhf(given: Any, batch: Any) -> Any:
    found, c = games(given, batch), given.c
    for game in found:
        game.now, game.before = game.log_probs("actor"), game.log_probs("reference")
        game.score, value = game.values("reward_model.score")[game.end], game.values("critic.value")
        reward = -c.kl_coefficient * (game.extra("log_prob") - game.before)
        reward[-1] += game.score
        discount, following = batch.discount[game.i][game.places], game.extra("next_place")
        error = reward + discount * value[following] - value[game.places]
        game.raw, later = np.zeros(len(error)), 0.0
        for t in reversed(range(len(error))):
            game.raw[t] = later = error[t] + discount[t] * c.gae_lambda * later
        game.error = game.raw**2
    every, weight = (
        np.concatenate(x) for x in ([g.raw for g in found], [np.full(len(g.raw), g.weight) for g in found])
    )
    mean = np.average(every, weights=weight)
    deviation = math.sqrt(np.average((every - mean) ** 2, weights=weight))
    for game in found:
        game.advantage = (game.raw - mean) / (deviation + 1e-8)
    losses = {"actor": average(found, lambda game: clipped(game, c.clip_range))}
    losses["critic"] = average(found, lambda game: game.error)
    return losses, {"score": float(np.mean([g.weight * g.score for g in found])), **of_policy(found, c)}, None


def mean_of_tokens(found: list[Game], x: Any) -> float:
    """The mean over the agent's tokens of all games."""
    total = sum(game.weight * np.sum(x(game)) for game in found)
    return float(total / sum(len(game.places) for game in found))


def bc(given: Any, batch: Any) -> Any:
    found = games(given, batch)
    entropy = mean_of_tokens(found, lambda game: game.entropies("actor"))
    return (
        {"actor": mean_of_tokens(found, lambda game: -game.log_probs("actor"))}, {"policy_entropy": entropy}, None
    )  # fmt: skip


def ilql(given: Any, batch: Any) -> Any:
    found, c = games(given, batch), given.c
    for game in found:
        i, value, lagging = game.i, *(outputs(given, name, game.tokens) for name in ("critic", "critic_target"))
        n = (value.shape[1] - 1) // 2
        game.v, game.q, game.gap, game.loss = ([] for _ in range(4))
        rest = value[game.end, 0]
        for t, after in reversed(list(zip(game.places, game.extra("next_place"), strict=True))):
            token, reward, discount = game.tokens[t], batch.reward[i, t], batch.discount[i, t]
            rest = reward + discount * rest
            target = rest if c.monte_carlo else reward + discount * value[after, 0]
            error = min(lagging[t, 1 + token], lagging[t, 1 + n + token]) - value[t, 0]
            own = [value[t, 1 : 1 + n], value[t, 1 + n :]]
            allowed = batch.observation["action_mask"][i, t] > 0
            gap = sum(math.log(np.exp(q[allowed]).sum()) - q[token] for q in own)
            loss = abs(c.expectile - (error < 0)) * error**2 / 2 + sum((target - q[token]) ** 2 / 2 for q in own)
            for kept, x in ((game.v, value[t, 0]), (game.q, own[0][token]), (game.gap, gap), (game.loss, loss)):
                kept.append(x)
    metrics = {"q_value": "q", "mean_value": "v", "cql_gap": "gap"}
    numbers = {name: mean_of_tokens(found, lambda game, own=own: getattr(game, own)) for name, own in metrics.items()}
    critic = mean_of_tokens(found, lambda game: game.loss) + c.cql_alpha * numbers["cql_gap"]
    losses, cloned, _ = bc(given, batch)
    return {"critic": critic, **losses}, {**numbers, **cloned}, None
