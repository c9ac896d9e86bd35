"""What algorithms learn on one and on two devices of JAX: `runs_on_devices.py NAME...`; raises where that differs."""

import os
import sys

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np  # noqa: E402
from test_replicas_of_runs import CASES, EVERY_ALGORITHM, made, steps_of  # noqa: E402


def learned(algorithm, devices):
    case = EVERY_ALGORITHM.get(algorithm, CASES.get(algorithm))
    with made(algorithm, devices, case, engine="jax") as run:
        run.train(steps_of(algorithm))
        return run.engine.weights(), run.learner.progress.gradient_steps


def main(names):
    for name in names:
        (alone, gradient_steps), (shared, own) = learned(name, 1), learned(name, 2)
        assert own == gradient_steps >= 3, (name, own, gradient_steps)
        for weight in alone:
            np.testing.assert_allclose(shared[weight], alone[weight], rtol=1e-5, atol=1e-6, err_msg=f"{name} {weight}")
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
