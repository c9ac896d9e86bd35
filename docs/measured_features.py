"""One row for each benchmark of a single feature: what it asks, what was found, and the page that says more."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from markdown_table import table
from measured import BENCHMARKS, NOT_MEASURED, read


class Feature(NamedTuple):
    """The figures of one file, as a sentence. page: which of docs says more."""

    name: str
    page: str
    found: Callable[[dict[str, Any]], str]


def features() -> str:
    """The table of `FEATURES`; what was not measured is left out."""
    rows = []
    for name, page, found in FEATURES:
        if held := read(name):
            rows.append([f"`{name}.py`", _question(name), found(held), f"[{page.removesuffix('.md')}]({page})"])
    return table(["script", "what is measured", "found", "more"], rows) if rows else NOT_MEASURED


def _question(name: str) -> str:
    """The first sentence, or clause, of a benchmark."""
    text = ast.get_docstring(ast.parse((BENCHMARKS / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=[?.])\s|:\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".")


def _adapting(held: dict[str, Any]) -> str:
    better = [name for name, found in held["summary"].items() if _iqm(found, "adapted") > _iqm(found, "fixed")]
    return f"returns are higher with rules from {len(better)} of {len(held['summary'])} starts ({', '.join(better)})"


def _iqm(found: dict[str, Any], kind: str) -> float:
    return found[kind]["return"]["iqm"]


def _auxiliary_loss(held: dict[str, Any]) -> str:
    steps = {kind: [seed[kind]["steps"] for seed in held["seeds"].values()] for kind in ("ppo", "with_loss")}
    return f"{_median(steps['with_loss']):,} steps with it, {_median(steps['ppo']):,} without (medians)"


def _bandits(held: dict[str, Any]) -> str:
    means = ", ".join(f"{name.replace('/', ', ')} {found['mean']:.3g}" for name, found in held.items() if "/" in name)
    return f"mean regret over {held['steps']:,} steps: {means}; LinUCB's bound is {held['bound']:,}"


def _before_after(held: dict[str, Any]) -> str:
    ratios = {name: found["median"] for name, found in held["after / before"].items()}
    slower = sorted((ratio, name) for name, ratio in ratios.items() if ratio > held["at most"])
    named = "; ".join(f"{name} {ratio:.2f}" for ratio, name in reversed(slower[-3:]))
    typical = (
        f"{len(ratios)} rows take {statistics.median(ratios.values()):.2f} times as long as in {held['before'][:7]}"
    )
    above = f"; above {held['at most']}: {len(slower)}" + (f" (the most: {named})" if named else "")
    return typical + above


def _by_embedding(held: dict[str, Any]) -> str:
    return "returns: " + ", ".join(f"{name} {found['return']:g}" for name, found in held["summary"].items())


def _callbacks(held: dict[str, Any]) -> str:
    return "all together: " + ", ".join(f"{name} {_ratio(cell['all'])}" for name, cell in held["cells"].items())


def _connect_four(held: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}: {found['mean']:.1%} of games won, {len(found['won'])} seeds"
        for name, found in held["summary"].items()
    )


def _curriculum(held: dict[str, Any]) -> str:
    reached = {kind: [seed["reached"] for seed in seeds.values()] for kind, seeds in held["learning"].items()}
    shares = ", ".join(f"{name} {statistics.mean(found):.1%}" for name, found in reached.items())
    return f"episodes that reach the goal: {shares}; cost of tasks {_ratio(held['cost']['tasks'])}"


def _envpool_steps(held: dict[str, Any]) -> str:
    share = "etude's share"
    shares = [f"{found[share]['median']:.2f} on {name}" for name, found in held.items() if share in found]
    return f"etude's share of EnvPool's own steps a second: {'; '.join(shares)}"


def _estimation(held: dict[str, Any]) -> str:
    each: dict[str, list[float]] = {}
    for seed in held["seeds"].values():
        for name, found in seed["spearman"].items():
            each.setdefault(name, []).append(found)
    return "rank correlations: " + ", ".join(f"{name} {statistics.mean(found):.2f}" for name, found in each.items())


def _evaluation(held: dict[str, Any]) -> str:
    wall = held["wall"]
    return f"times the seconds: beside {_ratio(wall['beside'])}, in the same process {_ratio(wall['sequential'])}"


def _atari(held: dict[str, Any]) -> str:
    found = []
    for line in held["summary"]:
        cells = [cell for key, cell in held["cells"].items() if key.startswith(f"{line}/")]
        steps = min(cell["steps"] for cell in cells)
        returns = _each(cell["return"] for cell in cells)
        found.append(f"Pong, {line.replace('/', ', ')} on an {cells[0]['device']}, {4 * steps:,} frames: {returns}")
    return "; ".join(found)


def _gpu(held: dict[str, Any]) -> str:
    parts = {name: found["rows"] for name, found in held.items() if name != "about"}
    found = []
    for name, prefix in (("JAX", "steps-jax"), ("torch", "steps-torch")):
        rows = [row for part, rows in parts.items() if part.startswith(prefix) for row in rows.values()]
        if ratios := [row["etude / bare"]["median"] for row in rows if "etude / bare" in row]:
            spread = f"{statistics.median(ratios):g} ({min(ratios):g} to {max(ratios):g}) times that of a bare loop"
            found.append(f"time of a gradient step, {name}, {len(ratios)} algorithms: {spread}")
    for part in ("fused-64", "fused-1024", "fused-4096"):
        for name, row in parts.get(part, {}).items():
            found.append(f"PPO fused, {name}: {row['steps_per_second']['fused']['median']:,.0f} steps/s")
    for name, row in parts.get("many-2048", {}).items():
        speed = row["on the device"]["steps_per_second"]["median"]
        found.append(f"the program of {name}: {speed:,.0f} steps/s in all")
    return "; ".join(found)


def _gsde(held: dict[str, Any]) -> str:
    return f"return of each seed after {held['steps']:,} steps: " + _each(c["return"] for c in held["cells"].values())


def _hindsight(held: dict[str, Any]) -> str:
    return "goals reached: " + ", ".join(f"{name} {found['reached']:.0%}" for name, found in held["summary"].items())


def _text_environments(held: dict[str, Any]) -> str:
    cells = [cell for found in held["generator"].values() for cell in found.values() if isinstance(cell, dict)]
    most = max(abs(cell["difference"]) for cell in cells)
    learning = held["learning"]
    learners = (name for name in learning if "return" not in learning[name])
    returns = ", ".join(f"{name} {_each(c['return'] for c in learning[name].values())}" for name in learners)
    return f"mean returns differ by at most {most:.3f}; returns: random {learning['random']['return']:g}, {returns}"


def _wordle(held: dict[str, Any]) -> str:
    found = []
    for name, part in held.items():
        returns: list[str] = []
        for method, own in part.get("summary", {}).items():
            if method == "adversarial":
                ranks = [own[key]["mean"] for key in ("ilql", "single_step")]
                found.append(
                    f"the expert's first word ranks above {ranks[0]:.0%} of others, {ranks[1]:.0%} single-step"
                )
            elif method == "walks":
                found.append(f"graph walks {own['return']['mean']:.3f} (random {own['data']['mean']:.3f})")
            else:
                returns = returns or [f"{name}: {own['data']['mean']:.2f}"]
                returns.append(f"{method} {own['return']['mean']:.2f}")
        found += [", ".join(returns)] if returns else []
    return "; ".join(found)


def _board(held: dict[str, Any]) -> str:
    seconds, live = held["opening"]["seconds"], held["live"]
    opened = f"{held['opening']['runs']} runs of {held['opening']['records']:,} records"
    return (
        f"{opened}: table after {_spread(seconds['table'])} s, first curves after {_spread(seconds['curves'])} s "
        f"(goal {seconds['table']['wanted']:g}); {live['runs']} live runs take {live['core']:.1%} of a core "
        f"(goal {live['wanted']:.0%})"
    )


def _transformer(held: dict[str, Any]) -> str:
    cells = held["cells"]
    returns = [cell["return"] for key, cell in cells.items() if key.startswith("cart_pole/")]
    return (
        f"acting: {cells['acting']['tokens_per_second']:,.0f} tokens/s in NumPy on one core (goal 3,000), "
        f"{cells['acting']['share']:.0%} of its matrix products alone (goal 50 %); a gradient step takes "
        f"{cells['step']['ratio']:.2f} of the time of one by hand (goal 1.15); CartPole without velocities: "
        f"{', '.join(f'{each:g}' for each in returns)}"
    )


def _evolving_gpts(held: dict[str, Any]) -> str:
    shares = [cell["share"] for cell in held["seeds"].values()]
    reached = sorted(share for share in shares if share is not None)
    each = ", ".join(f"{share:.0%}" for share in reached)
    return (
        f"the loss was reached on {len(reached)} of {len(shares)} seeds, in {each} of their tokens, "
        f"{statistics.median(reached):.0%} in the median (goal: at most 50 %)"
    )


def _serving(held: dict[str, Any]) -> str:
    one, many, local = held["one connection"], held["100 clients"], held["local"]
    policy, policies = held["a policy, one connection"], held["a policy, 100 clients"]
    return (
        f"one connection: {one['actions per second']:,} actions/s (goal 1,500), 99 % within {one['p99 ms']:.2g} ms "
        f"(goal 5); {many['clients']} clients: {many['actions per second']:,} actions/s, {many['errors']} errors; "
        f"acting for itself: {local['share']:.0%} of the steps/s of an environment in process, "
        f"{local['share by processor time of the client']:.0%} by processor time (goal 80 %); "
        f"`etude serve`: {policy['actions per second']:,} actions/s, 99 % within {policy['p99 ms']:.2g} ms; "
        f"100 clients: {policies['actions per second']:,} actions/s"
    )


def _serving_learns(held: dict[str, Any]) -> str:
    found: dict[str, list[dict[str, float]]] = {}
    for key, cell in held.items():
        found.setdefault(key.rpartition(" seed ")[0], []).append(cell)
    return "; ".join(
        f"{key} {'client' if key.endswith(' 1') else 'clients'}: returns {_each(c['return'] for c in cells)}, "
        f"{_each(c['seconds'] for c in cells)} s"
        for key, cells in found.items()
    )


def _policies(held: dict[str, Any]) -> str:
    cells = held["cells"].values()
    lowest = min(min(cell["returns"].values()) for cell in cells)
    return f"{sum(cell['reached'] for cell in cells)} of {len(cells)} seeds reach the goal; lowest return {lowest:g}"


def _prior_data(held: dict[str, Any]) -> str:
    found = []
    for name, environment in held["environments"].items():
        steps = {kind: run["steps to SAC's final return"] for kind, run in environment["summary"].items()}
        reached = ", ".join(f"{kind} {_count(count)}" for kind, count in steps.items())
        found.append(f"{name}, steps to SAC's final return: {reached}")
    return "; ".join(found)


def _count(steps: int | None) -> str:
    return "never" if steps is None else f"{steps:,}"


def _ray_rollouts(held: dict[str, Any]) -> str:
    return "; ".join(
        f"{name}: {kind} {_spread(found['ratios'][kind])}"
        for name, found in held.items()
        if name != "about"
        for kind in found["ratios"]
        if kind.endswith("x 256")
    )


def _recorded_data(held: dict[str, Any]) -> str:
    shares = [f"{kind} {found['parquet']['share']:.1%}" for kind, found in held["writing"].items()]
    reading = held["reading"]["by episode"]
    return (
        f"writing Parquet takes {', '.join(shares)} of the run; reading by episode {reading['megabytes a second']:g} "
        f"MB/s in {reading['most resident megabytes']:g} MB"
    )


def _replicas(held: dict[str, Any]) -> str:
    return f"efficiency, at a load of {held['load']:.0f}: " + ", ".join(
        f"{row['engine']}, {row['network']} network, {row['replicas']} replicas {row['efficiency']:.2f}"
        for row in held["rows"]
        if row["replicas"] > 1
    )


def _rllib(held: dict[str, Any]) -> str:
    return "times as fast as RLlib: " + "; ".join(
        f"{name}, at a load of {found['load_before']:.1f}: "
        + ", ".join(f"{engine} {_spread(ratio)}" for engine, ratio in found["times_as_fast"].items())
        for name, found in held.items()
        if name != "about"
    )


def _solo_irl(held: dict[str, Any]) -> str:
    return "returns: " + "; ".join(f"{name} {_each(found['judged'])}" for name, found in held["summary"].items())


def _sparse_rewards(held: dict[str, Any]) -> str:
    summary = held["summary"].items()
    return "seeds that find it: " + ", ".join(
        f"{name} {found['solved']} of {found['seeds']}" for name, found in summary
    )


def _go_explore(held: dict[str, Any]) -> str:
    each = {task: own["seeds"].values() for task, own in held.items() if task != "about"}
    counts = [
        f"{task} {sum(cell['found_after'] is not None for cell in cells)} of {len(cells)}"
        for task, cells in each.items()
    ]
    return "seeds that find it: " + ", ".join(counts) + "; random actions none"


def _stepping(held: dict[str, Any]) -> str:
    pools = [name for name, found in held.items() if name != "about" and "pool, in halves" in found]
    faster = [name for name in pools if _of(held[name], "pool, in halves") < _of(held[name], "pool")]
    return f"stepping in halves is quicker than stepping all at once in {len(faster)} of {len(pools)} settings"


def _of(found: dict[str, Any], kind: str) -> float:
    return found[kind]["median"]


def _sweep(held: dict[str, Any]) -> str:
    auto = held["auto"]
    ratios = ", ".join(f"{turn['sweep']['ratio to processes']:.2f}" for turn in auto["turns"])
    return f"{auto['seeds']} seeds take {ratios} of the time of runs in {auto['processes']} processes"


def _tuning(held: dict[str, Any]) -> str:
    shares = [found["share of the grid's steps"] for found in held["asha"]["asha"]]
    overhead = " and ".join(
        f"{_percent(found['one after the other'])} ({_percent(found['in segments'])} in segments) on {engine}"
        for engine in ("torch", "jax")
        for found in [held["overhead"][engine]]
    )
    return (
        f"successive halving takes {min(shares):.2f} to {max(shares):.2f} of the grid's steps; two jobs are "
        f"{_spread(held['jobs']['two over one'])} times as fast as one; what a study does outside of its "
        f"runs takes {overhead} of their processor time"
    )


def _percent(shares: dict[str, float]) -> str:
    return f"{100 * shares['median']:.2g} %"


def _median(values: Iterable[float]) -> int:
    return int(statistics.median(values))


def _each(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _ratio(found: dict[str, float]) -> str:
    return f"{found['ratio']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _compiled(held: dict[str, Any]) -> str:
    found = held["speed"]["processor"]
    pairs = {"the bare loop": "bare", "the loop over Gymnasium's": "gymnasium", "rejax": "rejax"}
    beside = [f"{found[f'fused / {way}']['median']:g} times {name}" for name, way in pairs.items()]
    return f"fused runs make {', '.join(beside)}, in steps per second of processor time"


def _spread(found: dict[str, float]) -> str:
    alone = found["repeats"] == 1
    return f"{found['median']:g}" + (" (once)" if alone else f" ({found['lowest']:g} to {found['highest']:g})")


FEATURES = (
    Feature("rllib", "coming-from-rllib.md", _rllib),
    Feature("adapting", "adapting.md", _adapting),
    Feature("atari", "environments.md", _atari),
    Feature("auxiliary_loss", "building-blocks.md", _auxiliary_loss),
    Feature("bandits", "algorithms/lin_ucb.md", _bandits),
    Feature("before_after", "benchmarks.md", _before_after),
    Feature("board", "board.md", _board),
    Feature("by_embedding", "distributions.md", _by_embedding),
    Feature("callbacks", "training.md", _callbacks),
    Feature("compiled", "compiled.md", _compiled),
    Feature("connect_four", "multi-agent.md", _connect_four),
    Feature("curriculum", "curricula.md", _curriculum),
    Feature("envpool_steps", "environments.md", _envpool_steps),
    Feature("estimation", "estimating.md", _estimation),
    Feature("evaluation", "training.md", _evaluation),
    Feature("evolving_gpts", "evolving.md", _evolving_gpts),
    Feature("gsde", "algorithms/sac.md", _gsde),
    Feature("gpu", "compiled.md", _gpu),
    Feature("hindsight", "training.md", _hindsight),
    Feature("policies", "multi-agent.md", _policies),
    Feature("prior_data", "offline.md", _prior_data),
    Feature("ray_rollouts", "scaling.md", _ray_rollouts),
    Feature("recorded_data", "offline.md", _recorded_data),
    Feature("replicas", "scaling.md", _replicas),
    Feature("serving", "serving.md", _serving),
    Feature("serving_learns", "serving.md", _serving_learns),
    Feature("solo_irl", "your-own-agent.md", _solo_irl),
    Feature("sparse_rewards", "rewriting.md", _sparse_rewards),
    Feature("go_explore", "rewriting.md", _go_explore),
    Feature("stepping", "scaling.md", _stepping),
    Feature("sweep", "tuning.md", _sweep),
    Feature("text_environments", "language.md", _text_environments),
    Feature("wordle", "language.md", _wordle),
    Feature("transformer", "algorithms/recurrent_ppo.md", _transformer),
    Feature("tuning", "tuning.md", _tuning),
)
