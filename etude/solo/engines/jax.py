"""Agents of one's own in Keras on JAX: k gradient steps are one jitted loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend.core import Literal, jaxpr_as_fun

from etude.base.data import power_of_two
from etude.base.errors import ConfigError
from etude.solo.engines.keras import KerasAgentEngine, length, padded
from etude.solo.engines.user_agent import (
    Compiled,
    MakeCopy,
    PriorityRecorder,
    each,
    no_gradient,
    not_traceable,
    read_losses,
)

_NEEDS_NUMBERS = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)


class _Scope(keras.StatelessScope):
    """Variables have the values of the trace. One that was not found before would be a constant in compiled code."""

    def __init__(self, agent: Any, variables: list[Any], values: list[Any]):
        super().__init__(state_mapping=list(zip(variables, values, strict=True)))
        self.agent = agent

    def get_current_value(self, variable: Any) -> Any:
        """Its value in this trace; ConfigError for a variable that the agent does not hold."""
        value = super().get_current_value(variable)
        if value is None:
            raise ConfigError(
                f"{type(self.agent).__name__} uses the variable {variable.path!r}, which none of its attributes "
                "holds. Make networks and seed generators in __init__ and keep them as attributes of the agent, or in "
                "lists and dicts that are."
            )
        return value


class JaxAgentEngine(KerasAgentEngine):
    """k gradient steps are one jitted loop."""

    name = "jax"

    @staticmethod
    def _device_of(variable: Any) -> str:
        device = next(iter(variable.value.devices()))
        return "cpu" if device.platform == "cpu" else f"cuda:{device.id}"

    def _evaluated(self, compiled: Compiled, inputs: Any) -> Any:
        n = length(inputs)
        values = [variable.value for variable in (*self.trained, *self.others)]
        output, moved = compiled(values, padded(inputs, power_of_two(n)))
        self._put(moved)
        return each(lambda x: np.array(x)[:n] if np.ndim(x) else np.array(x), output)

    def _learn(self, arguments: Any, weight: np.ndarray) -> Any:
        k = len(weight)
        inputs = padded((arguments, weight), power_of_two(k))
        state = (
            [variable.value for variable in self.trained],
            [variable.value for variable in self.others],
            [[variable.value for variable in optimizer.variables] for optimizer in self.optimizers],
            self.scalars(),
        )
        with self._explained("__call__"):
            trained, moved, optimizers, records = self._steps()(state, inputs, k)
        for variable, value in zip(self.trained, trained, strict=True):
            variable.assign(value)
        for optimizer, values in zip(self.optimizers, optimizers, strict=True):
            for variable, value in zip(optimizer.variables, values, strict=True):
                variable.assign(value)
        self._put(moved)
        return tuple(None if x is None else np.array(x)[:k] for x in records)

    def _gradients(self, row: Any, jit_compile: bool) -> list[list[np.ndarray]]:
        values = tuple([variable.value for variable in part] for part in (self.trained, self.others))
        return [list(map(np.array, group)) for group in self._differentiating[jit_compile](values, row)]

    def _compile_gradients(self, jit: bool, copy: MakeCopy) -> Callable[..., Any]:
        def differentiate(values: Any, row: Any, hyper: Any) -> Any:
            return self._differentiated(copy, values, row, hyper)[0]

        return jax.jit(differentiate)

    def _put(self, moved: dict[str, Any]) -> None:
        for name, value in moved.items():
            self.variables.by_name[name].assign(value)

    def _explanation(self, method: str, problem: Exception) -> Exception | None:
        return not_traceable(self.agent, method, problem) if isinstance(problem, _NEEDS_NUMBERS) else None

    def _compile(self, call: Callable[[Any, Any], Any], copy: MakeCopy) -> Callable[..., Any]:
        variables = [*self.trained, *self.others]

        def evaluate(values: list[Any], inputs: Any, hyper: Any) -> Any:
            agent = copy(hyper)
            with _Scope(self.agent, variables, values) as scope:
                before = dict(scope.state_mapping)
                output = call(agent, inputs)
            return each(jnp.asarray, output), self._moved(before, scope)

        return jax.jit(evaluate)

    def _moved(self, before: dict[int, Any], scope: Any) -> dict[str, Any]:
        """The values of the variables that no loss trains and that changed in the scope."""
        after = scope.state_mapping
        others = [variable for variable in self.others if after[id(variable)] is not before[id(variable)]]
        return {self.variables.name_of(variable): after[id(variable)] for variable in others}

    def _compile_learn(self, copy: MakeCopy) -> Callable[..., Any]:
        def learn(state: Any, inputs: Any, k: Any, hyper: Any) -> Any:
            trained, others, optimizers, scalars = state
            gradients, (_, record, moved) = self._traced(copy, (trained, others), _row(inputs, 0), hyper)
            room = len(inputs[1])
            records = jax.tree.map(lambda x: jnp.zeros((room, *x.shape), x.dtype), record)
            changed = map(self.variables.name_of, self.others) if self._interface.update_targets else moved
            places = {name: _index(self.others, self.variables.by_name[name]) for name in changed}

            def step(i: Any, carry: Any) -> Any:
                trained, others, optimizers, records = carry
                found, record, moved = gradients((trained, others), _row(inputs, i), hyper)
                trained, optimizers = self._apply(found, trained, optimizers, scalars)
                others = list(others)
                for name, value in moved.items():
                    others[places[name]] = value
                if self._interface.update_targets:
                    trained, others = self._followed(copy, hyper, trained, others)
                records = jax.tree.map(lambda all, x: all.at[i].set(x), records, record)
                return trained, others, optimizers, records

            carry = jax.lax.fori_loop(0, k, step, (trained, others, optimizers, records))
            trained, others, optimizers, records = carry
            return trained, {name: others[place] for name, place in places.items()}, optimizers, records

        return jax.jit(learn)

    def _followed(self, copy: MakeCopy, hyper: Any, trained: list[Any], others: list[Any]) -> Any:
        """(trained, others) after the agent's `update_param`."""
        variables = [*self.trained, *self.others]
        with _Scope(self.agent, variables, [*trained, *others]) as scope, self._explained("update_param"):
            copy(hyper).update_param()
        after = [scope.get_current_value(variable) for variable in variables]
        return after[: len(trained)], after[len(trained) :]

    def _traced(self, copy: MakeCopy, variables: Any, row: Any, hyper: Any) -> Any:
        """`_differentiated` as a function that does not go through the agent's code again, and the shapes of it."""
        gradients = lambda variables, row, hyper: self._differentiated(copy, variables, row, hyper)  # noqa: E731
        closed, shapes = jax.make_jaxpr(gradients, return_shape=True)(variables, row, hyper)
        losses = shapes[1][0].shape[0]
        owned = [(loss, variable) for loss, group in enumerate(self.groups) for variable in group]
        for (loss, variable), connected in zip(owned, _connected(closed), strict=False):
            if not connected:
                raise no_gradient(self.agent, self.variables.name_of(variable), min(loss, losses - 1), losses)
        return _as_function(closed, shapes), shapes

    def _differentiated(self, copy: MakeCopy, variables: Any, row: Any, hyper: Any) -> Any:
        """(gradients by group, (losses [L], td_error, ratio), what else moved)."""
        losses = lambda *arguments: self._losses(copy, *arguments)  # noqa: E731
        run = _as_function(*jax.make_jaxpr(losses, return_shape=True)(variables, row, hyper))
        found, record, moved = run(variables, row, hyper)
        gradients = []
        for i, group in enumerate(self.groups):
            # Each loss is differentiated by itself; the compiler merges what they have in common.
            number = min(i, len(found) - 1)
            own = jax.grad(lambda trained, n=number: run((trained, variables[1]), row, hyper)[0][n])(variables[0])
            gradients.append([own[_index(self.trained, variable)] for variable in group])
        return gradients, (jnp.stack(found), *record), moved

    def _losses(self, copy: MakeCopy, variables: Any, row: Any, hyper: Any) -> Any:
        """(losses, (td_error, ratio), what else moved): one pass through the agent's code."""
        self.traces += 1
        (trained, others), (arguments, weight) = variables, row
        recorder = PriorityRecorder(weight)
        agent = copy(hyper, recorder)
        with _Scope(self.agent, [*self.trained, *self.others], [*trained, *others]) as scope:
            before = dict(scope.state_mapping)
            found = read_losses(self.agent, agent(*arguments), weight, len(self.groups))
        return found, (recorder.td_error, recorder.ratio), self._moved(before, scope)

    def _apply(self, gradients: list[list[Any]], trained: list[Any], optimizers: list[list[Any]], scalars: Any) -> Any:
        trained, after = list(trained), []
        for optimizer, group, own, values in zip(self.optimizers, self.groups, gradients, optimizers, strict=True):
            variables = [*self.trained, *optimizer.variables]
            held = list(zip(variables, [*trained, *values], strict=True))
            with keras.StatelessScope(state_mapping=held) as scope, self.tracing(scalars):
                optimizer.apply(own, group)
            trained = [scope.get_current_value(variable) for variable in self.trained]
            after.append([scope.get_current_value(variable) for variable in optimizer.variables])
        return trained, after


def _as_function(closed: Any, shapes: Any) -> Callable[..., Any]:
    """What was traced, as a function that returns what the traced one did."""
    structure, run = jax.tree.structure(shapes), jaxpr_as_fun(closed)
    return lambda *arguments: jax.tree.unflatten(structure, run(*jax.tree.leaves(arguments)))


def _row(tree: Any, i: Any) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(jnp.asarray(x), i, keepdims=False), tree)


def _index(variables: list[Any], variable: Any) -> int:
    return next(i for i, one in enumerate(variables) if one is variable)


def _connected(closed: Any) -> list[bool]:
    """For each output of a jaxpr, whether it is more than zeros that stand for "no gradient"."""
    made = {id(out): equation for equation in closed.jaxpr.eqns for out in equation.outvars}
    found = []
    for out in closed.jaxpr.outvars:
        equation = made.get(id(out))
        source = (
            out if equation is None else equation.invars[0] if equation.primitive.name == "broadcast_in_dim" else None
        )
        found.append(not (isinstance(source, Literal) and np.all(np.asarray(source.val) == 0)))
    return found
