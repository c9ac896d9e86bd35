"""What is called otherwise in Stable-Baselines3, CleanRL and RLlib: the name there, and what to use here."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

_CALLBACKS = "`callbacks`, an argument of `train`: objects derived from etude.Callback, or functions of an event"
_REPORT = "`callbacks`, an argument of `train`, as in callbacks=[etude.report.Progress()]"
_EVALUATE = "`evaluate_every`, an argument of `train`, in environment steps"
_NETWORK = "`network` of the config, such as etude.Mlp((64, 64))"
_ACTOR_CRITIC = "`network` of the config, as in network=etude.ActorCritic(actor=..., critic=...)"
_PARALLEL = "`environments`, an argument of Run"
_ROLLOUT = (
    "`rollout_length` of an on-policy config (time steps of every environment), `n_step` of an off-policy one (returns)"
)
_RATE = "`learning_rate` of the config, a number or etude.Linear(0.001, 0.0)"
_EPSILON = "`epsilon` of the config, such as etude.Linear(1.0, 0.05, 0.1): from, to, over the first tenth of the run"

INSTEAD: dict[str, str] = {
    "act_noise": "`exploration_noise` of the config",
    "action_noise": "`exploration_noise` of the config, or `explorer` of etude.Execution",
    "actor": _ACTOR_CRITIC,
    "alpha": "`temperature` of SAC's config, `priority_exponent` of prioritised replay",
    "anneal_lr": _RATE,
    "batch_size": "`minibatch_size` of an on-policy config",
    "callback": _CALLBACKS,
    "callback_on_new_best": _CALLBACKS,
    "callbacks_class": _CALLBACKS,
    "capture_video": "`etude watch RUN --video out.gif`, after training",
    "clip_coef": "`clip_range` of PPO's config",
    "clip_param": "`clip_range` of PPO's config",
    "clip_range_vf": "`value_clip_range` of PPO's config",
    "clip_rewards": "`clip_reward` of the config",
    "compute_single_action": "`act`, as in run.act(observation, info)",
    "create_eval_env": _EVALUATE,
    "critic": _ACTOR_CRITIC,
    "cuda": "`device` of etude.Execution",
    "device_name": "`device` of etude.Execution",
    "double_q": "`double` of DQN's config",
    "end_e": _EPSILON,
    "ent_coef": "`entropy_coefficient` of the config; SAC learns its `temperature`",
    "entropy_coeff": "`entropy_coefficient` of the config",
    "env": "`environment`, as in run.environment; a new Run takes it second, after the algorithm",
    "env_config": "`args` of etude.Environment, as in etude.Environment(ENV, args={...})",
    "env_kwargs": "`args` of etude.Environment, as in etude.Environment(ENV, args={...})",
    "env_runners": "`workers` and `environments`, arguments of Run",
    "eval_env": _EVALUATE + "; evaluations have environments of their own",
    "eval_episodes": "`evaluate_episodes`, an argument of `train`",
    "eval_freq": _EVALUATE,
    "eval_interval": _EVALUATE,
    "evaluate_policy": "`evaluate`, as in run.evaluate(episodes=20)",
    "evaluation_interval": _EVALUATE,
    "exploration_final_eps": _EPSILON,
    "exploration_fraction": _EPSILON,
    "exploration_initial_eps": _EPSILON,
    "framework": "`engine`, an argument of Run: jax, torch or tensorflow",
    "get_env": "`environment`, as in run.environment",
    "get_parameters": "`engine`, as in run.engine.weights()",
    "goal_selection_strategy": "`hindsight` of an off-policy config: future, final or episode",
    "grad_clip": "`max_gradient_norm` of the config",
    "lambda": "`gae_lambda` of an on-policy config",
    "learn": "`train`, as in run.train(100_000)",
    "log_interval": _REPORT,
    "logger": "`history`, as in run.history.frame()",
    "lr": _RATE,
    "lr_schedule": _RATE,
    "max_grad_norm": "`max_gradient_norm` of the config",
    "model": _NETWORK,
    "n_envs": _PARALLEL,
    "n_epochs": "`epochs` of an on-policy config",
    "n_eval_episodes": "`evaluate_episodes`, an argument of `train`; `episodes` of run.evaluate",
    "n_sampled_goal": "`hindsight_goals` of an off-policy config",
    "n_stack": "`frame_stack` of etude.Environment",
    "n_steps": _ROLLOUT,
    "net_arch": _NETWORK,
    "norm_adv": "`normalize_advantage` of PPO's config",
    "num_env_runners": "`workers`, an argument of Run",
    "num_envs": _PARALLEL,
    "num_envs_per_env_runner": _PARALLEL + " (of all workers together)",
    "num_envs_per_worker": _PARALLEL + " (of all workers together)",
    "num_epochs": "`epochs` of an on-policy config",
    "num_minibatches": "`minibatch_size` of an on-policy config: the steps in one, not their number",
    "num_sgd_iter": "`epochs` of an on-policy config",
    "num_steps": _ROLLOUT,
    "num_timesteps": "`step`, as in run.step",
    "num_workers": "`workers`, an argument of Run",
    "optimize_memory_usage": "`replay_folder` of etude.Execution",
    "policy_frequency": "`policy_delay` of TD3's config",
    "policy_kwargs": _NETWORK,
    "policy_lr": _RATE,
    "predict": "`act`, as in run.act(observation, info)",
    "progress_bar": _REPORT,
    "q_lr": _RATE,
    "render": "`watch`, as in run.watch(), or run.watch('out.gif')",
    "replay_buffer_class": "`priority_exponent` of the config, or `hindsight` (HER)",
    "reset_num_timesteps": "`total`, an argument of `train`: the steps of a run that is trained in pieces",
    "rollout_fragment_length": "`rollout_length` of an on-policy config",
    "save_freq": "`save_every`, an argument of `train`, in environment steps",
    "sde_sample_freq": "`gsde_sample_every` of the config; None: once for each episode",
    "set_env": "`env`, an argument of etude.load",
    "set_parameters": "`start_from`, an argument of Run",
    "sgd_minibatch_size": "`minibatch_size` of an on-policy config",
    "start_e": _EPSILON,
    "stop": "`target`, an argument of `train`: the mean return of an evaluation at which it ends",
    "target_kl": "`kl_target` of PPO's config, with its `objective` at penalty",
    "target_network_frequency": "`target_update_every` of the config, in gradient steps",
    "target_update_interval": "`target_update_every` of the config, in gradient steps",
    "tensorboard_log": "etude.report.TensorBoard, a reporter; `etude train` always writes one",
    "timesteps": "`steps`, an argument of `train`",
    "total_timesteps": "`steps`, an argument of `train`, as in run.train(100_000)",
    "track": _REPORT,
    "train_batch_size": "`rollout_length` times `environments` on-policy; `batch_size` of an off-policy config",
    "train_freq": "`train_every` of an off-policy config, in environment steps",
    "train_frequency": "`train_every` of an off-policy config, in environment steps",
    "update_epochs": "`epochs` of an on-policy config",
    "use_sde": "`gsde` of the config",
    "vec_env_cls": "`workers`, an argument of Run",
    "verbose": _REPORT,
    "vf_coef": "`value_coefficient` of the config",
    "vf_loss_coeff": "`value_coefficient` of the config",
    "wrapper_class": "`wrappers` of etude.Environment",
}


def explain(owner: str, unknown: Iterable[str], known: Collection[str]) -> str:
    """Why `owner` takes none of these names, and for each the one that was meant, where that can be said."""
    unknown = sorted(unknown)
    hints = [hint for name in unknown if (hint := meant(name, known))]
    all_known = [] if len(hints) == len(unknown) else [f"It takes {', '.join(known)}."]
    return " ".join([f"{owner} takes no {', '.join(unknown)}.", *hints, *all_known])


def meant(name: str, known: Collection[str] = ()) -> str:
    """The one that was meant by a name, in a sentence; '' where that cannot be said."""
    if name in INSTEAD:
        return f"{name}: use {INSTEAD[name]}."
    close = difflib.get_close_matches(name, known, 1, 0.7)
    return f"{name}: did you mean {close[0]}?" if close else ""
