"""The tables of names in the pages for users of other libraries, from the hints that etude's errors give."""

from __future__ import annotations

from markdown_table import table

from etude.base.other_libraries import INSTEAD

SB3 = (
    "learn", "total_timesteps", "reset_num_timesteps", "predict", "n_envs", "vec_env_cls", "wrapper_class",
    "env_kwargs", "n_stack", "set_env", "policy_kwargs", "net_arch", "n_steps", "batch_size", "n_epochs", "ent_coef",
    "vf_coef", "clip_range_vf",
    "max_grad_norm", "target_kl", "train_freq", "target_update_interval", "exploration_fraction",
    "exploration_initial_eps", "exploration_final_eps", "action_noise", "use_sde", "sde_sample_freq",
    "replay_buffer_class",
    "goal_selection_strategy", "n_sampled_goal",
    "optimize_memory_usage", "eval_env", "eval_freq", "n_eval_episodes", "save_freq", "callback", "tensorboard_log",
    "progress_bar", "verbose",
)  # fmt: skip
CLEANRL = (
    "total_timesteps", "num_envs", "num_steps", "num_minibatches", "update_epochs", "anneal_lr", "policy_lr", "q_lr",
    "ent_coef", "vf_coef", "clip_coef", "norm_adv", "max_grad_norm", "target_kl", "batch_size", "train_frequency",
    "target_network_frequency", "policy_frequency", "start_e", "end_e", "alpha", "capture_video", "track", "cuda",
)  # fmt: skip


def names(those: tuple[str, ...]) -> str:
    """A table from the names of another library to those of etude."""
    return table(["there", "in etude"], ([f"`{name}`", INSTEAD[name]] for name in those))
