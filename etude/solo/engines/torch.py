"""Agents of one's own in PyTorch: their parameters and buffers by name, the layers of their networks, and eager
gradient steps with the user's optimizers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from etude.base import seeding
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.engines.devices import threads_for
from etude.engines.torch import limited
from etude.networks.dense import Activation, Affine, Flatten, Layer
from etude.protocols import Weights
from etude.solo.engines.engine import AgentInterface, AgentVariables, OptimizerSetting, UserAgentEngine
from etude.solo.engines.user_agent import (
    Bound,
    PriorityRecorder,
    called,
    each,
    grouped,
    hyperparameters,
    no_gradient,
    of_numpy,
    read_losses,
    single,
)

_NOTHING = (nn.Identity, nn.Dropout)  # what does nothing when a network is evaluated
_ACTIVATIONS: dict[type, str] = {
    nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.ELU: "elu", nn.SiLU: "silu", nn.Softplus: "softplus",
    nn.Softmax: "softmax", nn.LogSoftmax: "log_softmax",
}  # fmt: skip


class TorchVariables(AgentVariables):
    """The parameters and buffers that an agent's attributes hold."""

    kinds = (nn.Module, torch.Tensor)
    variable = torch.Tensor

    @torch.no_grad()
    def write(self, weights: Weights) -> None:
        """Give variables these values."""
        for name, value in weights.items():
            self.by_name[name].copy_(torch.as_tensor(np.array(value)))

    @staticmethod
    def value(variable: torch.Tensor) -> np.ndarray:
        """See `AgentVariables`."""
        return variable.detach().cpu().numpy().copy()

    @staticmethod
    def trainable(variable: torch.Tensor) -> bool:
        """See `AgentVariables`."""
        return variable.requires_grad

    def _held(self, path: str, holder: Any) -> list[tuple[str, Any]]:
        if isinstance(holder, torch.Tensor):
            return [(path, holder)] if holder.is_leaf else []
        named = (*holder.named_parameters(), *holder.named_buffers())
        return [(f"{path}.{name}", value) for name, value in named]

    def modes(self) -> list[dict[str, Any]]:
        """The attributes of every module of the networks, of which "training" is one: to set it by name is slow."""
        modules = [part for one in self._found.values() if isinstance(one, nn.Module) for part in one.modules()]
        return [vars(part) for part in modules if "training" in vars(part)]

    def chains(self) -> list[tuple[Layer, ...]]:
        """The layers of every network that has dense layers and activations only, in the order it lists them."""
        modules = [one for one in self._found.values() if isinstance(one, nn.Module)]
        chains = [self._chain(part) for module in modules for part in module.modules()]
        return [tuple(chain) for chain in chains if chain]

    def _chain(self, module: nn.Module) -> list[Layer] | None:
        if isinstance(module, nn.Linear):
            bias = None if module.bias is None else self.name_of(module.bias)
            return [Affine(self.name_of(module.weight), bias, transposed=True)]
        if isinstance(module, _NOTHING):
            return []
        if isinstance(module, nn.Flatten):
            return [Flatten()]
        if isinstance(module, nn.GELU):
            return [Activation("gelu" if module.approximate == "none" else "gelu_tanh")]
        if type(module) in _ACTIVATIONS:  # odd settings of theirs show when the chain is compared with the network
            return [Activation(_ACTIVATIONS[type(module)])]
        parts = [self._chain(part) for part in module.children()]
        return None if not parts or None in parts else [one for part in parts for one in part or ()]


class TorchAgentEngine(UserAgentEngine):
    """Eager gradient steps with the user's optimizers. seed: of torch's random numbers."""

    name = "torch"

    def __init__(self, agent: Any, optimizers: Sequence[Any], interface: AgentInterface, seed: int):
        groups = grouped(agent, optimizers, torch.Tensor)  # first: an iterator in param can be read once
        super().__init__(TorchVariables(agent), groups, optimizers, interface)
        for optimizer, group in zip(self.optimizers, self.groups, strict=True):
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise ConfigError(
                    f"An agent in PyTorch was given a {type(optimizer).__module__}.{type(optimizer).__name__} to train "
                    "with; expected a torch.optim.Optimizer, such as torch.optim.Adam(model.param)."
                )
            own = {id(value) for part in optimizer.param_groups for value in part["params"] if value.requires_grad}
            if own != {id(variable) for variable in group}:
                raise ConfigError(
                    f"The {type(optimizer).__name__} optimizer holds {len(own)} parameters, and they are not the "
                    f"{len(group)} that it is to train. Make it with those: torch.optim.Adam(model.param), or one with "
                    "model.param[0] and so on for a list of lists."
                )
        self._device = next(iter(self.variables.by_name.values())).device
        self.device = str(self._device)
        self._bound, self._trial = Bound(agent, "kept"), Bound(agent, "forgotten")
        self._modes = self.variables.modes()
        self._random = {name: seeding.generator(seed, f"solo {name}") for name in ("act", "learn")}

    def _evaluate(self, method: str, inputs: Any) -> Any:
        """Modules that are in training mode are in evaluation mode for the call."""
        busy, purpose = (self.busy.acting, "act") if method == "action" else (self.busy.learning, "learn")
        training = [module for module in self._modes if module["training"]]
        for module in training:
            module["training"] = False
        try:
            with self._threads(busy), self._drawing(purpose), self._explained(method), torch.no_grad():
                return _arrays(called(self.agent, method, self._tensors(inputs), self._interface.agents))
        finally:
            for module in training:
                module["training"] = True

    def _learn(self, arguments: Any, weight: np.ndarray) -> Any:
        inputs = self._tensors((arguments, weight))
        steps = []
        with self._threads(self.busy.learning):
            for i in range(len(weight)):
                with self._drawing("learn"), torch.enable_grad():
                    steps.append(self._step(each(operator.itemgetter(i), inputs), hyperparameters(self.agent)))
        stacked = (None if parts[0] is None else torch.stack(parts) for parts in zip(*steps, strict=True))
        return tuple(None if x is None else x.cpu().numpy() for x in stacked)

    def _gradients(self, row: Any, jit_compile: bool) -> list[list[np.ndarray]]:
        arguments, weight = self._tensors(row)
        with self._threads(self.busy.learning), self._drawing("learn"), torch.enable_grad():
            losses = self._trial.copy(hyperparameters(self.agent), PriorityRecorder(weight))(*arguments)
            found = self._differentiated(read_losses(self.agent, losses, weight, len(self.groups)))
        return [[one.cpu().numpy() for one in group] for group in found]

    def optimizer_settings(self, name: str, of_all: bool = False) -> list[OptimizerSetting]:
        """One of each group of parameters that an optimizer treats alike."""
        found = [_setting(one, i, name) for one in self.optimizers for i in range(len(one.param_groups))]
        return [one for one in found if one is not None]

    def _step(self, inputs: Any, hyper: dict[str, float]) -> Any:
        arguments, weight = inputs
        recorder = PriorityRecorder(weight)
        with self._explained("__call__"):
            found = self._bound.copy(hyper, recorder)(*arguments)
        losses = read_losses(self.agent, found, weight, len(self.groups))
        gradients = self._differentiated(losses)
        for optimizer, group, own in zip(self.optimizers, self.groups, gradients, strict=True):
            for variable, gradient in zip(group, own, strict=True):
                # Fused optimizers walk both in memory order, and the gradient of a permuted kernel comes permuted.
                variable.grad = gradient.contiguous() if variable.is_contiguous() else gradient
            optimizer.step()
            optimizer.zero_grad()
        if self._interface.update_targets:
            self.update_param()
        return torch.stack([loss.detach() for loss in losses]), recorder.td_error, recorder.ratio

    def _differentiated(self, losses: list[Any]) -> list[Any]:
        """For each group the gradients of its own loss, all at the same values of the variables."""
        found = []
        for i, group in enumerate(self.groups):
            number, last = min(i, len(losses) - 1), i == len(self.groups) - 1
            if not losses[number].requires_grad:
                raise no_gradient(self.agent, self.variables.name_of(group[0]), number, len(losses))
            own = torch.autograd.grad(losses[number], group, retain_graph=not last, allow_unused=True)
            for variable, gradient in zip(group, own, strict=True):
                if gradient is None:
                    raise no_gradient(self.agent, self.variables.name_of(variable), number, len(losses))
            found.append(own)
        return found

    def _explanation(self, method: str, problem: Exception) -> Exception | None:
        return of_numpy(self.agent, method, problem, "torch") if isinstance(problem, TypeError | RuntimeError) else None

    @torch.no_grad()
    def update_param(self) -> None:
        """Call the agent's method, without recording for gradients."""
        self.agent.update_param()

    def _own_state(self) -> dict[str, Any]:
        """The optimizers, and the generators that torch's are seeded from."""
        generators = {name: seeding.generator_state(rng) for name, rng in self._random.items()}
        return {"optimizers": [_plain(one.state_dict()) for one in self.optimizers], "generators": generators}

    def _check_own(self, stored: dict[str, Stored]) -> None:
        generators = stored["generators"].fields(self._random)
        for generator in generators.values():
            seeding.check_generator(generator)
        for optimizer, saved in zip(self.optimizers, stored["optimizers"].items(len(self.optimizers)), strict=True):
            _check_saved(optimizer, saved)

    def _restore_own(self, state: dict[str, Any]) -> None:
        for name, rng in self._random.items():
            seeding.restore_generator(rng, state["generators"][name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            moments = {int(number): _tensors_of(one) for number, one in saved["state"].items()}
            groups = [_tensors_of(group) for group in saved["param_groups"]]
            optimizer.load_state_dict({**saved, "state": moments, "param_groups": groups})

    def _threads(self, busy: int) -> AbstractContextManager[object]:
        return limited(threads_for(self.variables.by_name.values(), busy))

    def _tensors(self, tree: Any) -> Any:
        def put(x: Any) -> torch.Tensor:
            x = single(x)
            return torch.as_tensor(x if x.flags.writeable else x.copy(), device=self._device)

        return each(put, tree)

    @contextmanager
    def _drawing(self, purpose: str) -> Iterator[None]:
        """Random numbers come from this engine's seed; the user's own generators are as before afterwards."""
        cuda = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(cuda):
            seed = int(self._random[purpose].integers(2**63))
            torch.default_generator.manual_seed(seed)
            if cuda:
                with torch.cuda.device(self._device):
                    torch.cuda.manual_seed(seed)
            yield


def _setting(optimizer: torch.optim.Optimizer, i: int, name: str) -> OptimizerSetting | None:
    """A number of a parameter group, which is looked up each time: loading a state replaces the groups. None where it
    has none; one that is kept in a tensor is a learning rate."""
    group: Callable[[], dict[str, Any]] = lambda: optimizer.param_groups[i]  # noqa: E731
    if name in ("beta1", "beta2"):
        place = int(name[-1]) - 1

        def write(value: float) -> None:
            group()["betas"] = tuple(value if i == place else own for i, own in enumerate(group()["betas"]))

        return OptimizerSetting(lambda: float(group()["betas"][place]), write) if "betas" in group() else None
    key = "lr" if name == "learning_rate" else name
    read: Callable[[], float] = lambda: float(group()[key])  # noqa: E731
    if key == "lr" and isinstance(group()[key], torch.Tensor):
        return OptimizerSetting(read, lambda value: group()[key].fill_(value))
    if not isinstance(group().get(key), int | float):
        return None
    return OptimizerSetting(read, lambda value: group().update({key: value}))


def _arrays(output: Any) -> Any:
    """What an agent's method returned, in NumPy."""
    return each(lambda x: x.cpu().numpy().copy() if isinstance(x, torch.Tensor) else np.asarray(x), output)


def _plain(tree: Any) -> Any:
    """An optimizer's state as arrays and plain data."""
    if isinstance(tree, dict):
        return {str(key): _plain(part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_plain(part) for part in tree)
    return tree.detach().cpu().numpy().copy() if isinstance(tree, torch.Tensor) else tree


def _tensors_of(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: torch.tensor(value) if isinstance(value, np.ndarray) else value for key, value in tree.items()}


def _check_saved(optimizer: torch.optim.Optimizer, saved: Stored) -> None:
    """Raise CheckpointError where this is not the state of such an optimizer. What it keeps of a parameter, from that
    one's first gradient on, has the parameter's shape or is one number."""
    own, parts = optimizer.state_dict(), saved.fields(("state", "param_groups"))
    for group, before in zip(parts["param_groups"].items(len(own["param_groups"])), own["param_groups"], strict=True):
        settings = group.fields(before)
        settings["params"].like(before["params"])
        for name in before.keys() - {"params"}:
            _check_setting(settings[name], before[name])
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names: set[str] = set()
    for number, moments in parts["state"].fields((), map(str, range(len(parameters)))).items():
        kept = moments.fields(names or moments.table())
        names = set(kept)
        for name, moment in kept.items():
            shape = tuple(parameters[int(number)].shape)
            shape = shape if np.shape(moment.value) == shape else ()
            least = 0 if name in ("step", "square_avg") or name.endswith("_sq") else None
            moment.array(np.float32, shape, least)


def _check_setting(saved: Stored, own: Any) -> None:
    """A learning rate may have been scheduled, and flags be decided on the way; numbers stay numbers."""
    if isinstance(own, bool) or own is None:
        if saved.value is not None and not isinstance(saved.value, bool):
            saved.refuse("true, false or nothing")
    elif isinstance(own, int | float):
        saved.number()
    elif isinstance(own, list | tuple):
        for part in saved.items(len(own)):
            part.number()
