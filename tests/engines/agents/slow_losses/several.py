"""Several agents."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from slow_losses.actor_critics import ensemble_loss
from slow_losses.given import Numbers, average, best, half_square, part_of, tree_row, vector
from slow_losses.policies import policy_at, ppo


def spaces_of(given: Numbers) -> dict[str, tuple[Any, Any]]:
    """The spaces of each agent: of its observations, and of its actions."""
    return {name: (part, given.action[name]) for name, part in sorted(given.observation["agents"].spaces.items())}


def actions_of(given: Numbers, joint: np.ndarray) -> dict[str, Any]:
    """Each agent's own part of a joint action."""
    found, start = {}, 0
    for name, (_, space) in spaces_of(given).items():
        if isinstance(space, gym.Discrete):
            found[name], start = int(joint[start]), start + 1
        else:
            found[name], start = np.asarray(joint[start : start + len(space.low)], np.float64), start + len(space.low)
    return found


def there(observation: Any) -> np.ndarray:
    """1 for each agent that acts, 0 for one that waits or has ended."""
    return np.float64([status == 1 for status in observation["status"]])


def everything(given: Numbers, observation: Any) -> np.ndarray:
    """What a centralised critic reads: the observations of all agents, or the global state."""
    part = "state" if given.c.critic_reads == "state" else "agents"
    return vector(given.observation[part], observation[part], given.moments, part)


def steps_of(given: Numbers, batch: Any, policy: str) -> tuple[Numbers, list]:
    """(what is given to one policy, the steps at which its agents act). Each knows which `place` its agent has among
    those of the policy, and what all observed."""
    spaces, names, steps = spaces_of(given), given.driven[policy], []
    order = list(spaces)
    own = Numbers({}, {}, given.c, *spaces[names[0]])
    own.w, own.noise = part_of(given.w, policy), part_of(given.noise, policy)
    for place, name in enumerate(names):
        identity = np.eye(len(names))[place] if given.identity and len(names) > 1 else np.zeros(0)
        see = lambda o, name=name, one=identity: np.concatenate(  # noqa: E731
            [one, vector(spaces[name][0], o["agents"][name], given.moments, f"agents.{name}")]
        )
        for b in range(len(batch.weight)):
            if not batch.extras["active"][b, order.index(name)]:
                continue
            row = SimpleNamespace(joint=tree_row(batch.observation, b), number=(b, place), w=float(batch.weight[b]))
            row.o, row.a = see(row.joint), actions_of(given, batch.action[b])[name]
            row.r, row.d = (float(x[b, order.index(name)]) for x in (batch.reward, batch.discount))
            row.extras = {key: x[b, order.index(name)] for key, x in batch.extras.items()}
            row.mask, row.next_mask = masks = [None, None]
            raw = [row.joint["agents"][name]]
            if batch.next_observation is not None:
                following = tree_row(batch.next_observation, b)
                row.next_o, raw = see(following), [*raw, following["agents"][name]]
            masks[: len(raw)] = [each.get("action_mask") if isinstance(each, dict) else None for each in raw]
            row.mask, row.next_mask = masks
            steps.append(row)
    return own, steps


def independent(truth: Any) -> Any:
    """The losses of an algorithm for one agent, of each policy, over the steps at which its agents act."""

    def found(given: Numbers, batch: Any) -> Any:
        losses, metrics, errors = {}, {}, np.zeros(len(batch.weight))
        for policy in given.driven:
            own, steps = steps_of(given, batch, policy)
            its_losses, its_metrics, its_errors = truth(own, SimpleNamespace(rows=steps))
            losses |= {f"{policy}.{name}": x for name, x in its_losses.items()}
            metrics |= {f"{policy}.{name}": x for name, x in its_metrics.items()}
            for row, error in zip(steps, its_errors or [], strict=False):
                errors[row.number[0]] += abs(error) / len(spaces_of(given))
        return losses, metrics, errors

    return found


def mappo(given: Numbers, batch: Any) -> Any:
    losses, metrics = {}, {}
    for policy, names in given.driven.items():
        own, steps = steps_of(given, batch, policy)
        for row in steps:
            identity = np.eye(len(names))[row.number[1]] if len(names) > 1 else np.zeros(0)
            row.policy = policy_at(own, "model", row)
            seen = np.concatenate([identity, everything(given, row.joint), there(row.joint)])
            row.value = own.value("model.critic", seen)
        its_losses, its_metrics, _ = ppo(own, batch, steps)
        losses |= {f"{policy}.{name}": x for name, x in its_losses.items()}
        metrics |= {f"{policy}.{name}": x for name, x in its_metrics.items()}
    return losses, metrics, None


def maddpg(given: Numbers, batch: Any) -> Any:
    """Lowe et al. 2017, equations 5 and 6; choices by Gumbel-softmax, of which critics see the one-hot sample."""
    c, spaces, losses, metrics = given.c, spaces_of(given), {}, {}
    errors = np.zeros(len(batch.weight))

    def outputs(name: str, actor: str, observation: Any) -> tuple[np.ndarray, Any]:
        own = observation["agents"][name]
        seen = vector(spaces[name][0], own, given.moments, f"agents.{name}")
        return given.net(f"{name}.{actor}", seen), own.get("action_mask") if isinstance(own, dict) else None

    def drawn(name: str, x: np.ndarray, mask: Any, noise: np.ndarray) -> np.ndarray:
        if not isinstance(spaces[name][1], gym.Discrete):
            return np.tanh(x)
        gumbel = -np.log(0.5 * np.sum(noise**2, 0))  # of an exponential number, from two normal ones
        return np.eye(len(x))[best(x + gumbel, mask)]

    def target(name: str, observation: Any, noise: np.ndarray) -> np.ndarray:
        action = drawn(name, *outputs(name, "actor_target", observation), noise)
        if isinstance(spaces[name][1], gym.Discrete):
            return action
        return np.clip(action + np.clip(c.target_noise * noise, -c.target_noise_clip, c.target_noise_clip), -1, 1)

    def qs(name: str, critic: str, observation: Any, actions: dict[str, np.ndarray]) -> list[float]:
        here = there(observation)
        taken = np.concatenate([here[i] * actions[agent] for i, agent in enumerate(spaces)])
        return [float(q[0]) for q in given.critics(f"{name}.{critic}", everything(given, observation), taken, here)]

    for i, name in enumerate(spaces):
        found = []
        for b in np.flatnonzero(batch.extras["active"][:, i]):
            observation, following = tree_row(batch.observation, b), tree_row(batch.next_observation, b)
            taken = actions_of(given, batch.action[b])
            discrete = {agent: isinstance(space, gym.Discrete) for agent, (_, space) in spaces.items()}
            actions = {agent: np.eye(spaces[agent][1].n)[a] if discrete[agent] else a for agent, a in taken.items()}
            next_actions = {agent: target(agent, following, given.noise[f"{agent}.next_action"][b]) for agent in spaces}
            row = SimpleNamespace(w=float(batch.weight[b]), qs=qs(name, "critic", observation, actions))
            next_q = min(qs(name, "critic_target", following, next_actions))
            row.target = float(batch.reward[b, i]) + float(batch.discount[b, i]) * next_q
            x, mask = outputs(name, "actor", observation)
            own = {**actions, name: drawn(name, x, mask, given.noise[f"{name}.action"][b])}
            cost = c.policy_cost * np.mean(x**2 * (1 if mask is None else mask))
            row.actor = cost - qs(name, "critic", observation, own)[0]
            errors[b] += np.mean([abs(row.target - q) for q in row.qs]) / len(spaces)
            found.append(row)
        losses[f"{name}.critic"], metrics[f"{name}.q_value"], _ = ensemble_loss(found)
        losses[f"{name}.actor"] = average(found, lambda row: row.w * row.actor)
    return losses, metrics, errors


def qmix(given: Numbers, batch: Any) -> Any:
    """Rashid et al. 2018, equations 4 to 6; Sunehag et al. 2017 where values are summed."""
    c, spaces, found = given.c, spaces_of(given), []
    errors = np.zeros(len(batch.weight))

    def values(part: str, observation: Any) -> dict[str, np.ndarray]:
        q = {}
        for policy, names in given.driven.items():
            for place, name in enumerate(names):
                identity = np.eye(len(names))[place] if given.identity and len(names) > 1 else np.zeros(0)
                seen = vector(spaces[name][0], observation["agents"][name], given.moments, f"agents.{name}")
                q[name] = given.net(f"{policy}.{part}", np.concatenate([identity, seen]))
        return q

    def mixed(mixer: str, qs: np.ndarray, observation: Any) -> float:
        if c.mixer == "sum":
            return float(sum(qs))
        seen = np.concatenate([everything(given, observation), there(observation)])
        made = {name: given.net(f"{mixer}.{name}", seen) for name in ("weight", "bias", "last_weight", "last_bias")}
        hidden = np.array(made["bias"])
        for u in range(c.mixing_units):
            hidden[u] += sum(q * abs(made["weight"][i * c.mixing_units + u]) for i, q in enumerate(qs))
            hidden[u] = hidden[u] if hidden[u] > 0 else math.expm1(hidden[u])
        return float(sum(hidden * np.abs(made["last_weight"])) + made["last_bias"][0])

    for b in range(len(batch.weight)):
        active = batch.extras["active"][b]
        if not active.any():
            continue
        observation, following = tree_row(batch.observation, b), tree_row(batch.next_observation, b)
        q, next_q, online = values("q", observation), values("q_target", following), values("q", following)
        taken, chosen, best_next, here = actions_of(given, batch.action[b]), [], [], there(following)
        for i, name in enumerate(spaces):
            own = following["agents"][name]
            choice = best((online if c.double else next_q)[name], own.get("action_mask"))
            chosen.append(active[i] * q[name][taken[name]])
            best_next.append(here[i] * next_q[name][choice])
        row = SimpleNamespace(w=float(batch.weight[b]), q=mixed("mixer", np.array(chosen), observation))
        reward = np.mean([r for r, acts in zip(batch.reward[b], active, strict=True) if acts])
        discount = max(d for d, acts in zip(batch.discount[b], active, strict=True) if acts)
        errors[b] = row.error = reward + discount * mixed("mixer_target", np.array(best_next), following) - row.q
        found.append(row)
    loss = average(found, lambda row: row.w * half_square(row.error))
    return {"q": loss}, {"q_value": average(found, lambda row: row.q)}, errors
