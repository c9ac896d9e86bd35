"""Write rlax.npz: 100 random inputs of each loss, and what RLax makes of them in float64. Needs `pip install rlax`.

Arrays are named `case/input` and `case/expected`. RLax knows no episode that ends inside a trajectory: each episode of
a column is given to it on its own, with the value of its true last observation.
"""

from pathlib import Path

import jax
import numpy as np
import rlax

jax.config.update("jax_enable_x64", True)

RNG = np.random.default_rng(20)
CASES, STEPS, CHOICES, ATOMS = 100, 7, 3, 9
FOUND: dict[str, np.ndarray] = {}


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32).astype(np.float64)


def discounts(*shape: int) -> np.ndarray:
    return np.where(RNG.random(shape) < 0.15, 0, RNG.uniform(0.8, 1.0, shape)).astype(np.float32).astype(np.float64)


def choices(*shape: int) -> np.ndarray:
    return RNG.integers(CHOICES, size=shape)


def record(case: str, inputs: dict[str, np.ndarray], expected: np.ndarray) -> None:
    for name, array in (inputs | {"expected": np.asarray(expected)}).items():
        FOUND[f"{case}/{name}"] = array.astype(np.int32 if array.dtype.kind == "i" else np.float32)


def each(function, inputs: dict[str, np.ndarray], *fixed) -> np.ndarray:
    return jax.jit(jax.vmap(lambda *x: function(*x, *fixed)))(*inputs.values())


def episodes() -> tuple[np.ndarray, list[tuple[slice, int]]]:
    """goes_on [T, B], and the rows of each episode with its column."""
    goes_on = (RNG.random((STEPS, CASES)) > 0.25).astype(np.float64)
    found = []
    for column in range(CASES):
        starts = [0, *(np.flatnonzero(goes_on[:-1, column] == 0) + 1), STEPS]
        found += [(slice(start, end), column) for start, end in zip(starts[:-1], starts[1:], strict=True)]
    return goes_on, found


def following(now: np.ndarray, goes_on: np.ndarray) -> np.ndarray:
    """What follows each row: the next row, or where an episode ends, something of its own."""
    final = normal(*now.shape)
    shape = goes_on[:-1].shape + (1,) * (now.ndim - 2)
    final[:-1] = np.where(goes_on[:-1].reshape(shape) > 0, now[1:], final[:-1])
    return final


def vtrace() -> None:
    goes_on, parts = episodes()
    shape = (STEPS, CASES)
    inputs = {"value": normal(*shape), "reward": normal(*shape), "discount": discounts(*shape)}
    inputs |= {"next_value": following(inputs["value"], goes_on), "log_ratio": normal(*shape), "goes_on": goes_on}
    for name, lambda_, rho_bar, advantage_bar in (("vtrace", 1.0, 1.0, 1.0), ("vtrace mixed", 0.8, 1.5, 1.2)):
        expected = np.zeros((2, *shape))
        for part in parts:
            value, reward, discount, next_value, log_ratio, _ = (array[part] for array in inputs.values())
            found = rlax.vtrace_td_error_and_advantage(
                value, next_value, reward, discount, np.exp(log_ratio), lambda_, rho_bar, advantage_bar
            )
            expected[0][part], expected[1][part] = found.errors, found.pg_advantage
        record(name, inputs, expected)


def retrace() -> None:
    goes_on, parts = episodes()
    shape = (STEPS, CASES)
    logits, target_q = normal(*shape, CHOICES), normal(*shape, CHOICES)
    inputs = {"q": normal(*shape, CHOICES), "target_q": target_q, "next_q": following(target_q, goes_on)}
    inputs |= {"logits": logits, "next_logits": following(logits, goes_on), "action": choices(*shape)}
    inputs |= {"behaviour": RNG.uniform(0.1, 1.0, shape), "reward": normal(*shape), "discount": discounts(*shape)}
    probability = np.asarray(jax.nn.softmax(inputs["next_logits"]))
    expected = np.zeros(shape)
    for rows, column in parts:
        q, next_q, action = inputs["q"][rows, column], inputs["next_q"][rows, column], inputs["action"][rows, column]
        behaviour = inputs["behaviour"][rows, column]
        expected[rows, column] = rlax.retrace(
            q,
            next_q,
            action,
            np.append(action[1:], 0),
            inputs["reward"][rows, column],
            inputs["discount"][rows, column],
            probability[rows, column],
            np.append(behaviour[1:], 1.0),
            0.9,
        )
    record("retrace", inputs | {"goes_on": goes_on}, expected)


def distributional() -> None:
    support = np.linspace(-2, 2, ATOMS)
    atoms, weight = 2 * normal(CASES, 6), RNG.dirichlet(np.ones(6), CASES)
    expected = each(rlax.categorical_l2_project, {"atoms": atoms, "weight": weight}, support)
    record("project", {"atoms": atoms, "weight": weight}, expected)

    inputs = {"logits": normal(CASES, CHOICES, ATOMS), "action": choices(CASES), "reward": normal(CASES)}
    inputs |= {"discount": discounts(CASES), "next_logits": normal(CASES, CHOICES, ATOMS)}
    inputs |= {"chooser": normal(CASES, CHOICES)}
    record(
        "categorical_q_learning",
        inputs,
        jax.vmap(
            lambda logits, action, reward, discount, next_logits, chooser: rlax.categorical_double_q_learning(
                support, logits, action, reward, discount, support, next_logits, chooser
            )
        )(*inputs.values()),
    )
    inputs = {"quantile": normal(CASES, ATOMS), "fraction": RNG.random((CASES, ATOMS)), "target": 2 * normal(CASES, 5)}
    for width in (0.0, 0.7, 1.0):
        record(f"quantile_regression {width}", inputs, each(rlax.quantile_regression_loss, inputs, width))


def elementwise() -> None:
    inputs = {"prediction": normal(CASES), "target": normal(CASES)}
    record("expectile", inputs, each(rlax.expectile_loss, inputs, 0.8))
    value = {"value": np.sign(normal(CASES)) * np.exp(RNG.uniform(-7, 9, CASES))}
    record("rescaled", value, rlax.signed_hyperbolic(value["value"]))
    record("unscaled", value, rlax.signed_parabolic(value["value"]))


if __name__ == "__main__":
    vtrace()
    retrace()
    distributional()
    elementwise()
    np.savez_compressed(Path(__file__).with_name("rlax.npz"), **FOUND)
