"""Write d3rlpy.npz: 100 random inputs of each loss, and what d3rlpy and Stable-Baselines3 contrib make of them.

    python make_d3rlpy.py d3rlpy        needs `pip install torch d3rlpy`, writes d3rlpy.npz
    python make_d3rlpy.py sb3_contrib   needs `pip install torch sb3-contrib`, writes sb3_contrib.npz

Arrays are named `case/input` and `case/expected`. The losses of d3rlpy are methods: they are called with an object
whose networks return the inputs, and with one case at a time where they average over the batch.
"""

import sys
from pathlib import Path
from types import SimpleNamespace as Has

import numpy as np
import torch

RNG = np.random.default_rng(21)
CASES, CHOICES, SIZE, CRITICS, SAMPLES = 100, 4, 3, 2, 5
FOUND: dict[str, np.ndarray] = {}


def normal(*shape: int) -> torch.Tensor:
    return torch.tensor(RNG.normal(size=shape).astype(np.float32)).double()


def choices(*shape: int) -> torch.Tensor:
    return torch.tensor(RNG.integers(CHOICES, size=shape))


def record(case: str, inputs: dict[str, torch.Tensor], expected: torch.Tensor) -> None:
    for name, tensor in (inputs | {"expected": expected}).items():
        FOUND[f"{case}/{name}"] = tensor.detach().numpy().astype(np.float32 if tensor.is_floating_point() else np.int32)


def each(function, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The function of each case with a batch of one."""
    return torch.stack([function(*(x[i : i + 1] for x in inputs.values())) for i in range(CASES)])


def implicit_q_learning() -> None:
    from d3rlpy.algos.qlearning.torch.iql_impl import IQLImpl

    def agent(q: torch.Tensor, value: torch.Tensor) -> Has:
        forwarder = Has(compute_expected_q=lambda *_: q)
        modules = Has(value_func=lambda _: value)
        return Has(_targ_q_func_forwarder=forwarder, _modules=modules, _expectile=0.7, _weight_temp=3.0, _max_weight=20)

    batch = Has(observations=None, actions=None)
    inputs = {"q": normal(CASES), "value": normal(CASES)}
    record("expectile", inputs, each(lambda *x: IQLImpl.compute_value_loss(agent(*x), batch), inputs))
    record("exponential_weight", inputs, IQLImpl._compute_weight(agent(*inputs.values()), batch))


def conservative_q_learning() -> None:
    from d3rlpy.algos.qlearning.torch.cql_impl import CQLImpl, DiscreteCQLImpl

    uniform = SIZE * float(np.log(0.5))

    def gap(policy_q, policy_log_prob, next_q, next_log_prob, random_q, q):
        found = iter([(policy_q, policy_log_prob), (next_q, next_log_prob)])
        agent = Has(
            _compute_policy_is_values=lambda **_: next(found),
            _compute_random_is_values=lambda _: (random_q, uniform),
            _q_func_forwarder=Has(compute_expected_q=lambda *_: q),
            _conservative_weight=1.0,
            _alpha_threshold=0.0,
        )
        return CQLImpl._compute_conservative_loss(agent, None, None, None, None)

    sampled = {f"{name}_q": normal(CRITICS, CASES, SAMPLES) for name in ("policy", "next", "random")}
    log_prob = {f"{name}_log_prob": normal(CASES, SAMPLES) for name in ("policy", "next")}
    q = normal(CRITICS, CASES)
    expected = [
        gap(
            sampled["policy_q"][:, i : i + 1],
            log_prob["policy_log_prob"][i : i + 1],
            sampled["next_q"][:, i : i + 1],
            log_prob["next_log_prob"][i : i + 1],
            sampled["random_q"][:, i : i + 1],
            q[:, i : i + 1, None],
        )
        for i in range(CASES)
    ]
    record("cql_sampled_gap", sampled | log_prob | {"q": q}, torch.stack(expected, 1))

    def discrete_gap(q, action):
        agent = Has(_q_func_forwarder=Has(compute_expected_q=lambda _: q), action_size=CHOICES)
        return DiscreteCQLImpl._compute_conservative_loss(agent, None, action)

    inputs = {"q": normal(CASES, CHOICES), "action": choices(CASES)}
    record("cql_gap", inputs, each(discrete_gap, inputs))


def td3_plus_bc() -> None:
    from d3rlpy.algos.qlearning.torch.td3_plus_bc_impl import TD3PlusBCImpl

    inputs = {
        "q": normal(CASES),
        "action": torch.tanh(normal(CASES, SIZE)),
        "data_action": torch.tanh(normal(CASES, SIZE)),
    }
    agent = Has(_q_func_forwarder=Has(compute_expected_q=lambda *_: inputs["q"][None]), _alpha=2.5)
    batch = Has(observations=None, actions=inputs["data_action"])
    found = TD3PlusBCImpl.compute_actor_loss(agent, batch, Has(squashed_mu=inputs["action"]))
    record("mean td3_bc", inputs, found.actor_loss)


def discrete_soft_actor_critic() -> None:
    from d3rlpy.algos.qlearning.torch.sac_impl import DiscreteSACImpl
    from d3rlpy.models.torch import Parameter

    log_temperature = -0.7
    temperature = Parameter(torch.full((1, 1), log_temperature, dtype=torch.float64))

    def agent(q, logits):
        forwarder = Has(compute_target=lambda _: q, compute_expected_q=lambda *_, **__: q)
        policy = lambda _: torch.distributions.Categorical(logits=logits)  # noqa: E731
        modules = Has(policy=policy, log_temp=temperature, temp_optim=None)
        return Has(_modules=modules, _targ_q_func_forwarder=forwarder, _q_func_forwarder=forwarder)

    batch = Has(observations=None, next_observations=None)
    inputs = {"q": normal(CASES, CHOICES), "logits": normal(CASES, CHOICES)}
    value = DiscreteSACImpl.compute_target(agent(*inputs.values()), batch)
    record("soft_value", inputs, value[:, 0])
    record(
        "soft_discrete_actor",
        inputs,
        each(lambda *x: DiscreteSACImpl.compute_actor_loss(agent(*x), batch)["loss"], inputs),
    )


def quantiles() -> None:
    from d3rlpy.models.torch.q_functions.utility import compute_quantile_huber_loss

    inputs = {"quantile": normal(CASES, 8), "target": normal(CASES, 6)}
    fraction = ((torch.arange(8) + 0.5) / 8).double()
    loss = compute_quantile_huber_loss(inputs["quantile"][:, None], inputs["target"][:, :, None], fraction[None, None])
    record("quantile_regression", inputs, loss)


def contributed_quantiles() -> None:
    from sb3_contrib.common.utils import quantile_huber_loss

    inputs = {"quantile": normal(CASES, 8), "target": normal(CASES, 6)}
    record("quantile_regression", inputs, each(quantile_huber_loss, inputs))


if __name__ == "__main__":
    library = sys.argv[1]
    if library == "d3rlpy":
        implicit_q_learning()
        conservative_q_learning()
        td3_plus_bc()
        discrete_soft_actor_critic()
        quantiles()
    else:
        contributed_quantiles()
    np.savez_compressed(Path(__file__).with_name(f"{library}.npz"), **FOUND)
