"""How quick is a transformer, and does PPO with one learn what takes a memory?

`python benchmarks/transformer.py --jobs 2` writes transformer.json, cell by cell; a cell that is there with the same
settings is not run again. `--only acting step` takes what holds one of the texts. Times are processor time, of which
others on the machine take little away.

acting: 64 games of tokens at a time in NumPy on one core, 4 blocks of 128, with their keys and values kept: tokens per
    second; and those of its matrix products alone, attention included.
step: a gradient step of recurrent PPO in torch, and the same written by hand, in turns.
cart_pole/SEED: the return of 20 episodes of CartPole-v1 without velocities (at most 500) after the last step, with the
    hyperparameters of recurrent PPO's preset for it and a small transformer, chosen on seed 2.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time

import measure
import numpy as np

ENVIRONMENT = "etude.examples.cart_pole:WithoutVelocities"
STEPS, EPISODES, SEEDS = 100_000, 20, (1, 2, 3)
GAMES, TOKENS, CONTEXT, LAYERS, WIDTH, HEADS = 64, 40, 73, 4, 128, 4
REPEATS = 15


def config_for_cart_pole():
    """The preset's config with a transformer."""
    import etude

    before = etude.Mlp((), "gelu", "orthogonal")
    network = etude.Transformer(layers=1, width=32, heads=2, feedforward=64, context=8, before=before)
    return etude.config("recurrent_ppo", ENVIRONMENT, network=network)


def cart_pole(seed: int) -> dict:
    """One run."""
    import etude

    began, setup = time.process_time(), {"engine": "torch", "device": "cpu", "environments": 8, "seed": seed}
    with etude.Run("recurrent_ppo", ENVIRONMENT, config=config_for_cart_pole(), **setup) as run:
        run.train(STEPS)
        seconds = time.process_time() - began
        found = statistics.mean(run.evaluate(episodes=EPISODES).returns)
    return {"return": measure.significant(found), "seconds": round(seconds, 1)}


def timed(function) -> float:
    """Seconds of processor time."""
    began = time.process_time()
    function()
    return time.process_time() - began


def acting() -> dict:
    """Tokens per second of one core."""
    import etude
    from etude import ops
    from etude.base.spaces import Discrete
    from etude.networks import Maker

    rng, spec = np.random.default_rng(0), etude.Transformer(LAYERS, WIDTH, HEADS, 4 * WIDTH, CONTEXT, tied=True)
    net = Maker(rng, None).recurrent(spec, Discrete(TOKENS), TOKENS)
    tokens = rng.integers(0, TOKENS, GAMES)
    x, hidden = (rng.standard_normal((GAMES, n), np.float32) for n in (WIDTH, 4 * WIDTH))
    kept = np.zeros((GAMES, net.state_size), np.float32)[:, 1:].reshape(GAMES, 2 * LAYERS, CONTEXT - 1, HEADS, -1)
    query, v = x.reshape(GAMES, HEADS, 1, -1), net.variables

    def decode():
        state = np.zeros((GAMES, net.state_size), np.float32)
        for _ in range(CONTEXT):
            _, state = net(tokens, state)

    def products():
        for _ in range(CONTEXT):
            for i in range(LAYERS):
                for name, given in (("attention.input", x), ("attention.output", x), ("feedforward.input", x)):
                    ops.matmul(given, v[f"block{i}.{name}.weight"])
                ops.matmul(hidden, v[f"block{i}.feedforward.output.weight"])
                scores = np.matmul(query, kept[:, 2 * i].transpose(0, 2, 3, 1))
                np.matmul(scores, kept[:, 2 * i + 1].swapaxes(1, 2))

    times = [(timed(decode), timed(products)) for _ in range(REPEATS)]
    rates = [GAMES * CONTEXT / statistics.median(each) for each in zip(*times, strict=True)]
    return {
        "tokens_per_second": measure.significant(rates[0]),
        "products_alone": measure.significant(rates[1]),
        "share": measure.significant(rates[0] / rates[1]),
    }


def step() -> dict:
    """Seconds of a gradient step, and of the same by hand."""
    import etude

    class Kept:
        def __init__(self, inner):
            self.inner = inner

        def __call__(self, *given):
            self.given = given
            return self.inner(*given)

    setup = {"engine": "torch", "device": "cpu", "environments": 8, "seed": 1}
    with etude.Run("recurrent_ppo", ENVIRONMENT, config=config_for_cart_pole(), **setup) as run:
        run.learner.gradients = kept = Kept(run.learner.gradients)
        run.train(8 * 128)
        batches, hyper, _ = kept.given
        bare = by_hand(run.engine.weights(), batches, run.config)
        k = len(batches.weight)
        times = [(timed(lambda: run.engine.learn(batches, hyper)), timed(bare)) for _ in range(REPEATS)]
    own, theirs = (statistics.median(each) / k for each in zip(*times, strict=True))
    ratio = statistics.median(one / other for one, other in times)
    return {"etude": measure.significant(own), "by_hand": measure.significant(theirs), "ratio": round(ratio, 3)}


def by_hand(weights: dict, batches, config):
    """A function that takes the same gradient steps with torch alone."""
    import torch
    from torch.nn import functional as f

    spec, names = config.network, [name for name in weights if name.startswith("model.")]
    p = {name: torch.tensor(weights[name], requires_grad=True) for name in names}
    optimizer = torch.optim.Adam(p.values(), 1e-3, eps=1e-5, fused=True)
    fields = ("log_prob", "advantage", "return", "first", "recurrent_state")
    data = {name: torch.tensor(batches.extras[name]) for name in fields}
    mean, scale = (torch.tensor(weights[f"normaliser.{n}"]) for n in weights_of_normaliser(weights))
    seen, action = torch.tensor(batches.observation), torch.tensor(batches.action, dtype=torch.int64)
    context, width, heads, kept = spec.context, spec.width, spec.heads, spec.context - 1
    size, length = width // heads, seen.shape[2]
    speed = 10_000.0 ** (-torch.arange(size // 2) / (size // 2))

    def turned(x, cos, sin):
        one, other = x.chunk(2, -1)
        return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)

    def network(part, x, state, mask, cos, sin):
        def dense(name, x):
            return torch.addmm(p[f"{part}{name}.bias"], x, p[f"{part}{name}.weight"])

        def norm(name, x):
            return f.layer_norm(x, (width,), p[f"{part}{name}.scale"], p[f"{part}{name}.bias"], 1e-6)

        x = dense("before.dense0", x.flatten(0, 1))
        caches = state[:, 1:].reshape(len(state), 2 * spec.layers, kept, heads, size)
        for i in range(spec.layers):
            block = f"block{i}."
            parts = dense(f"{block}attention.input", norm(f"{block}attention.input.norm", x)).chunk(3, -1)
            query, key, value = (y.view(-1, length, heads, size) for y in parts)
            query, key = turned(query, cos, sin), turned(key, cos, sin)
            key, value = torch.cat([caches[:, 2 * i], key], 1), torch.cat([caches[:, 2 * i + 1], value], 1)
            given = (y.transpose(1, 2) for y in (query, key, value))
            seen = f.scaled_dot_product_attention(*given, mask).transpose(1, 2).reshape(-1, width)
            x = x + dense(f"{block}attention.output", seen)
            hidden = f.gelu(
                dense(f"{block}feedforward.input", norm(f"{block}feedforward.input.norm", x)), approximate="tanh"
            )
            x = x + dense(f"{block}feedforward.output", hidden)
        return dense("after.dense0", norm("norm", x)).view(len(state), length, -1)

    def run():
        number, slot = torch.arange(length), torch.arange(kept)
        for i in range(len(seen)):
            first, state = data["first"][i], data["recurrent_state"][i]
            x, half = ((seen[i] - mean) * scale).clamp(-10, 10), state.shape[1] // 2
            episode, ago = first.cumsum(-1), number[:, None] - number
            new = (episode[:, :, None] == episode[:, None]) & (ago >= 0) & (ago < context)
            begun = episode == 0
            old = begun[:, :, None] & (kept - slot <= state[:, :1])[:, None] & (number[:, None] <= slot)
            same = (episode[:, :, None] == episode[:, None]) & (ago >= 0)
            angle = ((same.sum(-1) - 1 + begun * state[:, :1])[..., None] * speed)[:, :, None]
            shared = torch.cat([old, new], -1)[:, None], angle.cos(), angle.sin()
            logits = network("model.policy.", x, state[:, :half], *shared).log_softmax(-1)
            value = network("model.critic.", x, state[:, half:], *shared)[..., 0]
            ratio = (logits.gather(-1, action[i][..., None])[..., 0] - data["log_prob"][i]).exp()
            advantage = data["advantage"][i]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            entropy = -(logits.exp() * logits).sum(-1).mean()
            loss = -surrogate + 0.5 * f.mse_loss(value, data["return"][i]) - 0.0 * entropy
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(p.values(), config.max_gradient_norm)
            optimizer.step()

    return run


def weights_of_normaliser(weights: dict) -> list[str]:
    """The names of the mean and the scale."""
    own = [name.removeprefix("normaliser.") for name in weights if name.startswith("normaliser.")]
    return [next(name for name in own if name.endswith(end)) for end in ("mean", "scale")]


def described() -> dict:
    """All hyperparameters of the runs, as plain data."""
    from etude.checkpoint.config_json import to_json

    return {"environment": ENVIRONMENT, "steps": STEPS, "engine": "torch", **to_json(config_for_cart_pole())}


def summary(cells: dict[str, dict]) -> dict:
    """The mean, lowest and highest return over seeds, and the other cells."""
    found = {name: cell for name, cell in cells.items() if "/" not in name}
    those = [cell["return"] for name, cell in cells.items() if "/" in name]
    if those:
        mean = measure.significant(statistics.mean(those))
        found["cart_pole"] = {"return": mean, "lowest": min(those), "highest": max(those), "seeds": len(those)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one thread each")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as cart_pole/1")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        name, _, seed = options.cell.partition("/")
        measure.answer(cart_pole(int(seed)) if seed else acting() if name == "acting" else step())
        return
    held, config = measure.read(__file__), described()
    before = measure.with_new_fields("recurrent_ppo", held["config"]) if "config" in held else None
    cells = {key: cell for key, cell in held.get("cells", {}).items() if "/" not in key or before == config}
    wanted = ["acting", "step", *(f"cart_pole/{seed}" for seed in SEEDS)]
    wanted = [key for key in wanted if key not in cells and any(part in key for part in options.only)]

    def keep(key: str, cell: dict) -> None:
        cells[key] = cell
        measure.write(__file__, {"config": config, "summary": summary(cells), "cells": dict(sorted(cells.items()))})
        print(key, cell, flush=True)

    measure.run_cells(wanted, options.jobs, functools.partial(measure.cell, "transformer.py", timeout=3600), keep)


if __name__ == "__main__":
    main()
