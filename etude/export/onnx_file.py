"""Policies as an ONNX file, checked by onnxruntime when it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from etude import ops
from etude.base.errors import ConfigError, NetworkError, needing
from etude.base.files import replacing
from etude.export.policy import ExportedPolicy, exported, title
from etude.ops.tracing import Traced, steps

OPSET, IR = 17, 8  # what every onnxruntime since 1.12 reads, onnxruntime-web too
TOLERANCE, CHECKED = 1e-5, 1_000  # of the largest number of an output; observations


def write(run: Any, path: Path) -> None:
    """Write the file, or one for each agent into a folder."""
    for place, policy in exported(run, path, ".onnx").items():
        model = OnnxModel(policy, title(run)).bytes
        check(policy, model)
        with replacing(place) as file:
            file.write(model)


class OnnxModel:
    """An ONNX model of the steps of a policy. Inputs and outputs have the names of the policy's."""

    def __init__(self, policy: ExportedPolicy, about: str):
        with needing("onnx", "export"):
            import onnx
        self._helper, self._to_tensor = onnx.helper, onnx.numpy_helper.from_array
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._names: dict[Any, str] = {}
        outputs = policy.trace()
        for step in steps(outputs.values()):
            self._add(step)
        for name, step in outputs.items():
            self.node("Identity", self.cast(step, step.dtype), name=name)
        of = self._helper.make_tensor_value_info
        graph = self._helper.make_graph(
            self._nodes, "policy",
            [of(each.name, _type(each.dtype), ["N", *each.shape]) for each in policy.inputs],
            [of(name, _type(step.dtype), ["N", *step.shape[1:]]) for name, step in outputs.items()],
            self._constants, about,
        )  # fmt: skip
        opset = self._helper.make_opsetid("", OPSET)
        model = self._helper.make_model(graph, opset_imports=[opset], ir_version=IR, producer_name="etude")
        onnx.checker.check_model(model)
        self.bytes: bytes = model.SerializeToString()

    def _add(self, step: Traced) -> None:
        if step.varies and not step.operation:
            self._names[step] = step.name
        elif step.varies:
            emit = _EMITTED.get(step.operation)
            if emit is None:
                raise ConfigError(
                    f"This policy computes ops.{step.operation}, which --to onnx does not know. --to numpy does."
                )
            self._names[step] = emit(self, step, *step.arguments)

    def node(self, operation: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """The name of what an operation of ONNX gives."""
        name = name or f"x{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64, name: str = "") -> str:
        """The name of a constant."""
        name = name or f"constant{len(self._constants)}"
        self._constants.append(self._to_tensor(np.array(value, dtype), name))
        return name

    def cast(self, x: Any, dtype: Any) -> str:
        """The name of an argument, an array or a number, in this dtype."""
        if not isinstance(x, Traced):
            return self.constant(x, dtype)
        if not x.varies:
            key = x, np.dtype(dtype)
            if key not in self._names:
                self._names[key] = self.constant(x.value, dtype, x.name if x.dtype == dtype else "")
            return self._names[key]
        return self.named(self._names[x], x.dtype, dtype)

    def named(self, name: str, given: Any, wanted: Any) -> str:
        """The name of what is called so, in the wanted dtype."""
        return name if np.dtype(given) == np.dtype(wanted) else self.node("Cast", name, to=_type(wanted))


def _type(dtype: Any) -> int:
    import onnx

    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _computing(*arguments: Any) -> np.dtype:
    """The dtype that NumPy computes with; of whole numbers one that onnxruntime computes with, too."""
    found = np.result_type(*(x.value if isinstance(x, Traced) else x for x in arguments))
    return np.dtype(np.int32) if found.kind in "iu" and found.itemsize < 4 else found


Emit = Callable[..., str]  # (model, step, *its arguments) -> the name of what it gives


def _binary(operation: str, logical: bool = False) -> Emit:
    def emit(model: OnnxModel, step: Traced, *arguments: Any) -> str:
        own = step.dtype if step.operation == "truediv" else _computing(*arguments)
        found = model.node(operation, *(model.cast(x, own) for x in arguments))
        return found if logical else model.named(found, own, step.dtype)

    return emit


def _unary(operation: str, **attributes: Any) -> Emit:
    return lambda model, step, x: model.node(operation, model.cast(x, step.dtype), **attributes)


def _reduction(operation: str) -> Emit:
    def emit(model: OnnxModel, step: Traced, x: Traced, axis: Any = None, keepdims: bool = False) -> str:
        axes = list(range(x.ndim)) if axis is None else list(axis) if isinstance(axis, tuple) else [axis]
        name = model.cast(x, step.dtype)
        if operation == "ReduceSum":
            return model.node(operation, name, model.constant(axes), keepdims=int(keepdims))
        return model.node(operation, name, axes=axes, keepdims=int(keepdims))

    return emit


def _conv(model: OnnxModel, step: Traced, x: Traced, kernel: Traced, stride: int) -> str:
    first = model.node("Transpose", model.cast(x, step.dtype), perm=[0, 3, 1, 2])
    filters = model.node("Transpose", model.cast(kernel, step.dtype), perm=[3, 2, 0, 1])
    found = model.node("Conv", first, filters, strides=[stride, stride])
    return model.node("Transpose", found, perm=[0, 2, 3, 1])


def _clip(model: OnnxModel, step: Traced, x: Any, low: Any, high: Any) -> str:
    own = _computing(x, low, high)
    above = model.node("Max", model.cast(x, own), model.cast(low, own))
    return model.named(model.node("Min", above, model.cast(high, own)), own, step.dtype)


def _where(model: OnnxModel, step: Traced, condition: Any, x: Any, y: Any) -> str:
    given = (model.cast(part, step.dtype) for part in (x, y))
    return model.node("Where", model.cast(condition, bool), *given)


def _composed(function: Callable[..., Traced]) -> Emit:
    """Of what ONNX has not, by what it has."""

    def emit(model: OnnxModel, step: Traced, *arguments: Any) -> str:
        found = function(*arguments)
        for part in steps([found]):
            if part not in model._names:
                model._add(part)
        return model._names[found]

    return emit


def _gelu(x: Traced) -> Traced:
    return 0.5 * x * (1 + ops.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))  # type: ignore[operator]


def _attention(query: Traced, keys: Any, values: Any, mask: Traced) -> Traced:
    key, value = (ops.swapaxes(ops.concatenate(pieces, 1), 1, 2) for pieces in (keys, values))
    scores = ops.matmul(ops.swapaxes(query, 1, 2) * query.shape[-1] ** -0.5, ops.swapaxes(key, 2, 3))
    weights = ops.softmax(ops.where(ops.expand_dims(mask, 1), scores, -1e30))
    return ops.swapaxes(ops.matmul(weights, value), 1, 2)


def _standardised(x: Any, epsilon: float) -> Traced:
    x = x - ops.mean(x, -1, keepdims=True)
    return x / ops.sqrt(ops.mean(x * x, -1, keepdims=True) + epsilon)


def _like(value: float) -> Emit:
    def emit(model: OnnxModel, step: Traced, x: Traced) -> str:
        shape = model.node("Shape", model.cast(x, x.dtype))
        return model.node("ConstantOfShape", shape, value=model._to_tensor(np.array([value], step.dtype)))

    return emit


def _one_hot(model: OnnxModel, step: Traced, index: Traced, n: int) -> str:
    each = model.node("Unsqueeze", model.cast(index, np.int64), model.constant([-1]))
    return model.named(model.node("Equal", each, model.constant(np.arange(n))), bool, step.dtype)


def _picked(model: OnnxModel, step: Traced, x: Traced, index: Traced, batch: int | None = None) -> str:
    """x[b, index[b]], where b counts what the index has axes for, or so many axes."""
    each = model.node("Unsqueeze", model.cast(index, np.int64), model.constant([-1]))
    return model.node("GatherND", model.cast(x, step.dtype), each, batch_dims=batch or index.ndim)


def _with_axes(operation: str) -> Emit:
    return lambda model, step, x, axis: model.node(operation, model.cast(x, step.dtype), model.constant([axis]))


def _swapaxes(model: OnnxModel, step: Traced, x: Traced, axis1: int, axis2: int) -> str:
    order = np.arange(x.ndim)
    order[[axis1, axis2]] = order[[axis2, axis1]]
    return model.node("Transpose", model.cast(x, step.dtype), perm=order.tolist())


def _stack(model: OnnxModel, step: Traced, arrays: tuple[Any, ...], axis: int = 0) -> str:
    each = (model.node("Unsqueeze", model.cast(x, step.dtype), model.constant([axis])) for x in arrays)
    return model.node("Concat", *each, axis=axis)


def _getitem(model: OnnxModel, step: Traced, x: Traced, key: Any) -> str:
    key = key if isinstance(key, tuple) else (key,)
    named, axis = model.cast(x, step.dtype), 0
    dropped: list[int] = []
    added: list[int] = []
    for i, part in enumerate(key):
        if part is Ellipsis:
            axis = x.ndim - sum(later is not None for later in key[i + 1 :])
            continue
        if part is None:
            added.append(axis - len(dropped) + len(added))
            continue
        if isinstance(part, Traced):
            raise ConfigError("This policy picks numbers by an array, which --to onnx does not know: use ops.gather.")
        if isinstance(part, int):
            dropped.append(axis)
            part = slice(part, part + 1 or None)
        start, stop, by = part.start, part.stop, part.step
        if (start, stop, by) != (None, None, None):
            ends = [start or 0, np.iinfo(np.int64).max if stop is None else stop, axis, 1 if by is None else by]
            named = model.node("Slice", named, *(model.constant([end]) for end in ends))
        axis += 1
    named = model.node("Squeeze", named, model.constant(dropped)) if dropped else named
    return model.node("Unsqueeze", named, model.constant(added)) if added else named


_EMITTED: dict[str, Emit] = {
    **{name: _binary(own) for name, own in {
        "add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div", "floordiv": "Div", "mod": "Mod", "pow": "Pow",
        "and": "And", "or": "Or", "minimum": "Min", "maximum": "Max", "matmul": "MatMul",
    }.items()},
    **{name: _binary(own, True) for name, own in {
        "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "eq": "Equal",
    }.items()},
    **{name: _unary(own) for name, own in {
        "neg": "Neg", "invert": "Not", "relu": "Relu", "elu": "Elu", "tanh": "Tanh", "sigmoid": "Sigmoid",
        "softplus": "Softplus", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "abs": "Abs",
        "sign": "Sign", "rint": "Round",
    }.items()},
    **{name: _reduction(own) for name, own in {
        "sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin",
        "logsumexp": "ReduceLogSumExp",
    }.items()},
    **{name: _composed(own) for name, own in {
        "square": lambda x: x * x, "silu": lambda x: x * ops.sigmoid(x), "gelu": _gelu,
        "expm1": lambda x: ops.exp(x) - 1, "log1p": lambda x: ops.log(x + 1),
    }.items()},
    "attention": _composed(_attention), "standardised": _composed(_standardised),
    "softmax": _unary("Softmax", axis=-1), "log_softmax": _unary("LogSoftmax", axis=-1), "conv": _conv, "clip": _clip,
    "where": _where, "zeros_like": _like(0), "ones_like": _like(1), "one_hot": _one_hot, "take_last": _picked,
    "take_row": _picked, "expand_dims": _with_axes("Unsqueeze"), "squeeze": _with_axes("Squeeze"),
    "swapaxes": _swapaxes, "stack": _stack, "getitem": _getitem,
    "gather": lambda model, step, x, index: _picked(model, step, x, index, 1),
    "cast": lambda model, step, x, dtype: model.cast(x, dtype),
    "ne": lambda model, step, x, y: model.node("Not", _binary("Equal", True)(model, step, x, y)),
    "affine": lambda model, step, x, w, bias: model.node(
        "Add", _binary("MatMul")(model, step, x, w), model.cast(bias, step.dtype)),
    "pad": lambda model, step, x, n: model.node(
        "Pad", model.cast(x, step.dtype), model.constant([0, n, n, 0, 0, n, n, 0])),
    "argmax": lambda model, step, x, axis=-1: model.node("ArgMax", model.cast(x, x.dtype), axis=axis, keepdims=0),
    "cumsum": lambda model, step, x, axis=-1: model.node("CumSum", model.cast(x, step.dtype), model.constant(axis)),
    "reshape": lambda model, step, x, shape: model.node("Reshape", model.cast(x, step.dtype), model.constant(shape)),
    "concatenate": lambda model, step, arrays, axis=-1: model.node(
        "Concat", *(model.cast(x, step.dtype) for x in arrays), axis=axis),
}  # fmt: skip


def check(policy: ExportedPolicy, model: bytes) -> None:
    """Raise NetworkError where onnxruntime does not compute what etude does."""
    with needing("onnx", "export"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = policy.examples(CHECKED, np.random.default_rng(0))
    found = dict(zip([each.name for each in session.get_outputs()], session.run(None, inputs), strict=True))
    for name, expected in policy(inputs, policy.weights()).items():
        if expected.dtype.kind != "f":  # rounding decides between equal values
            fits = np.mean(found[name] == expected) > 0.99
        else:
            largest = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
            fits = np.allclose(found[name], expected, 0, TOLERANCE * largest)
        if not fits:
            raise NetworkError(f"onnxruntime computes another {name!r} than etude, on random observations.")
