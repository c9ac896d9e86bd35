"""The methods by which an agent of one's own adjusts its hyperparameters while it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

import numpy as np

from etude.adapt.signals import UnusableSignal, effective_sample_size
from etude.base.errors import ConfigError, DataError
from etude.base.events import Adjusted
from etude.solo.adjusting import Adjuster

Params = Mapping[str, float | None] | None


class AdjustedParams(TypedDict, total=False):
    """What `adjust` may move. Hyperparameters of the losses, policies and optimizers have the keys rate (the largest
    relative change at once, 0.1), min, max (a tenth and ten times of the value given) and smooth (weight of a new value
    in the moving average of the signal, 0.2). Whole numbers, which are batch, freq, store and num_updates, have scale
    (multiplies the ratio of the signal to its target, 1), min and max (a quarter and four times), and batch has align
    (the batch size is a multiple of it; None: it moves in powers of 2)."""

    batch_params: Params  # minibatch size
    alpha_params: Params  # exponent of the priorities
    lr_params: Params  # learning rate of each optimizer
    eps_params: Params  # eps of each policy
    freq_params: Params  # update_steps or update_batches
    tau_params: Params  # the agent's attribute tau
    gamma_params: Params  # the agent's attribute gamma
    store_params: Params  # num_store, collections before a learning phase
    weight_decay_params: Params  # of each optimizer
    beta1_params: Params  # of each optimizer
    beta2_params: Params  # of each optimizer
    clip_params: Params  # the agent's attribute clip
    beta_params: Params  # the agent's attribute beta
    num_updates_params: Params  # minibatches after each collection


class AdaptiveMethods:
    """`adjust` and what belongs to it. An agent calls these in `adjust_func`, in a callback, or between two calls of
    `train`; each returns the changes. They follow

    - the effective sample size (ESS) `1 / sum(p**2)` of the priorities p, normalised to sum to 1: where it is larger,
      updates become bolder;
    - the noise of gradients, their variance over minibatches: where it is larger, updates become more careful.

    adjust_func: called without arguments before each learning phase. window_size_func: called with the number of each
    process where the pool is cut; returns how many of its oldest transitions to drop, in the place of `window_size`.
    """

    adjust_func: Callable[[], Any] | None = None
    window_size_func: Callable[[int], int | None] | None = None
    _session_state: Any

    def adjust(
        self,
        target_ess: float | None = None,
        target_noise: float | None = None,
        num_samples: int | None = None,
        smooth: float = 0.2,
        *,
        jit_compile: bool = True,
        **params: Unpack[AdjustedParams],
    ) -> tuple[Adjusted, ...]:
        """`adabatch` where target_noise is given, which takes num_samples too; else `adjust_batch_size`."""
        if target_noise is None:
            return self.adjust_batch_size(smooth, target_ess=target_ess, **params)
        if target_ess is not None or num_samples is None:
            raise ConfigError(
                f"adjust: target_ess = {target_ess!r}, num_samples = {num_samples!r} with target_noise; expected "
                "num_samples, the minibatches whose gradients are compared, and no target_ess."
            )
        return self.adabatch(num_samples, target_noise, smooth, jit_compile=jit_compile, **params)

    def adjust_batch_size(
        self,
        smooth: float = 0.2,
        *,
        target_ess: float | None = None,
        **params: Unpack[AdjustedParams],
    ) -> tuple[Adjusted, ...]:
        """Multiply each hyperparameter in `params` by the ratio of the smoothed ESS of the priorities to target_ess, or
        divide it, as its direction says; see `AdjustedParams`. Nothing changes before errors were reported.

        smooth: weight of a new ESS in its moving average, for whole numbers. target_ess: in transitions; None: the
        first smoothed ESS. Raises ConfigError without PR=True.
        """
        return self._adjuster("adjust_batch_size").by_effective_sample_size(smooth, target_ess, dict(params))

    def adabatch(
        self,
        num_samples: int,
        target_noise: float = 1e-3,
        smooth: float = 0.2,
        *,
        jit_compile: bool = True,
        **params: Unpack[AdjustedParams],
    ) -> tuple[Adjusted, ...]:
        """The same by the ratio of the gradient noise to target_noise.

        num_samples: minibatches, drawn uniformly from the pool. target_noise: of the variance of each entry of the
        gradient over them, averaged over entries. jit_compile: for TensorFlow, whether XLA compiles the gradient.
        """
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 2:
            raise ConfigError(f"adabatch: num_samples = {num_samples!r}; expected at least 2 minibatches.")
        adjuster = self._adjuster("adabatch")
        return adjuster.by_gradient_noise(num_samples, smooth, target_noise, dict(params), jit_compile)

    def adjust_window_size(self, p: int | None = None, scale: float = 1.0, ema: float | None = None) -> int:
        """How many of the oldest transitions to drop: `scale * (n - ESS)` of n, rounded down, and never all. 0 where
        the ESS cannot be computed, as for fewer than two transitions.

        p: the number of a process; None: the whole pool. ema: a smoothed ESS, in the place of the present one. Raises
        ConfigError without PR=True.
        """
        weight = self._adjuster("adjust_window_size").priorities(p)
        try:
            size = effective_sample_size(weight) if ema is None else float(ema)
        except UnusableSignal:
            return 0
        wanted = scale * (len(weight) - size)
        if not np.isfinite(wanted):
            raise ConfigError(f"adjust_window_size: scale = {scale!r}, ema = {ema!r}; expected finite numbers.")
        return int(min(max(wanted, 0), max(len(weight) - 1, 0)))

    def compute_ess_from_weights(self, weights: Any) -> float:
        """The effective sample size `1 / sum(p**2)` of weights [n] normalised to p: from 1 to n. DataError for fewer
        than two weights, and where they are negative, not finite, or all 0."""
        try:
            return effective_sample_size(np.asarray(weights))
        except UnusableSignal as error:
            raise DataError(
                f"compute_ess_from_weights: {error}. Give at least two weights, one of them above 0."
            ) from None

    def _adjuster(self, method: str) -> Adjuster:
        session = self._session_state.session
        if session is None:
            raise ConfigError(
                f"{method} adjusts an agent that trains, and {type(self).__name__} has not been trained since it was "
                "made or restored. Call it in adjust_func or in a callback, or after train."
            )
        return session.adjuster
