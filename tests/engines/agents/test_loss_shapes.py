"""Losses check the shapes of their arguments when they are traced, on one engine."""

import numpy as np
import pytest
from frameworks import FRAMEWORKS
from wrong_shapes import fitting_arguments, public_losses, wrong_arguments

from etude.base.errors import ConfigError

LOSSES = {
    name: loss
    for name, loss in public_losses().items()
    if name in ("td", "q_learning", "categorical_td", "ppo_clip", "soft_target", "vtrace", "cql_gap", "td3_bc")
}
RNG = np.random.default_rng(0)


def compiled(framework, loss, arguments):
    """The loss of arrays inside the engine's compiled gradient, which also carries gradients to its floats."""
    floats = {name: x for name, x in arguments.items() if isinstance(x, np.ndarray) and x.dtype == np.float32}
    rest = {name: x for name, x in arguments.items() if name not in floats}

    def traced(*arrays):
        return loss(**dict(zip(floats, arrays, strict=True)), **rest)

    return framework.gradients(traced, *floats.values())


@pytest.mark.parametrize("name", LOSSES)
def test_a_compiled_loss_refuses_a_shape_that_it_does_not_document(name, engine_name):
    framework, loss = FRAMEWORKS[engine_name](), LOSSES[name]
    fitting = fitting_arguments(loss, RNG)
    fitting |= {key: framework.array(x) for key, x in fitting.items() if key == "action" and x.ndim == 1}
    assert all(np.isfinite(gradient).all() for gradient in compiled(framework, loss, fitting))
    for argument, arguments in wrong_arguments(loss, RNG):
        arguments |= {key: framework.array(x) for key, x in arguments.items() if x.dtype == np.int64}
        with pytest.raises(ConfigError, match=f"{name}: .* has shape"):
            compiled(framework, loss, arguments)
        assert argument in loss.shapes
