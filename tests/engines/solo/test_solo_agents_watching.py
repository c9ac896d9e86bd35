"""How users follow the training of agents of one's own: callbacks, lines, figures, films."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from solo_agents import agent_for, discrete, on_policy, once, train
from solo_agents_worlds import Walk
from solo_cases import agents_of, optimizers_for

from etude.base.errors import ConfigError
from etude.solo import Callback, LambdaCallback
from etude.solo.callbacks import Callbacks
from etude.solo.engines import weights

pytestmark = pytest.mark.variant  # what is shown of training knows no engine


class Noting(Callback):
    """Notes every call."""

    def __init__(self):
        self.heard = []

    def on_train_begin(self, logs):
        self.heard.append(("train begins", dict(logs)))

    def on_episode_begin(self, episode, logs):
        self.heard.append(("episode begins", episode, dict(logs)))

    def on_batch_begin(self, batch, logs):
        self.heard.append(("batch begins", batch))

    def on_batch_end(self, batch, logs):
        self.heard.append(("batch ends", batch, sorted(logs)))

    def on_episode_end(self, episode, logs):
        self.heard.append(("episode ends", episode, dict(logs)))

    def on_train_end(self, logs):
        self.heard.append(("train ends", dict(logs)))


def test_all_hooks_are_called_in_order_with_loss_and_reward(engine_name):
    agent, noting = agent_for(engine_name), Noting()
    agent.set(**discrete(num_updates=2))
    train(agent, engine_name, 2, callbacks=[noting])
    first, second = ({"loss": agent.loss_list[i], "reward": 5.0} for i in range(2))
    batches = [(name, i, *rest) for i in range(2) for name, *rest in (("batch begins",), ("batch ends", ["loss"]))]
    assert noting.heard == [
        ("train begins", {}),
        ("episode begins", 0, {}),
        *batches,
        ("episode ends", 0, first),
        ("episode begins", 1, first),
        *batches,
        ("episode ends", 1, second),
        ("train ends", second),
    ]
    assert noting.agent is agent


def test_watching_every_minibatch_changes_nothing(engine_name):
    watched, alone = agent_for(engine_name), agent_for(engine_name)
    for agent, callbacks in ((watched, [Noting()]), (alone, None)):
        agent.set(**discrete(num_updates=5))
        train(agent, engine_name, 2, callbacks=callbacks)
    assert watched.loss_list == pytest.approx(alone.loss_list, rel=1e-5)


def test_a_callback_stops_training_after_the_episode_at_hand(engine_name):
    once(engine_name)
    agent = agent_for(engine_name)

    def stop(episode, logs):
        agent.stop_training = episode == 1

    agent.set(**discrete())
    train(agent, engine_name, 10, callbacks=[LambdaCallback(on_episode_end=stop)])
    assert agent.total_episode == 2
    train(agent, engine_name, 1)
    assert agent.total_episode == 3, "the next training goes on"


@pytest.mark.parametrize("processes", [None, 2])
def test_hooks_of_events_get_the_collected_steps_the_losses_and_the_checkpoints(engine_name, processes, tmp_path):
    if processes:
        once(engine_name)
    agent, steps, losses, saved = agent_for(engine_name), [], [], []
    agent.set(**discrete())
    agent.path, agent.save_freq = str(tmp_path / "agent.etude"), 2
    listening = LambdaCallback(
        on_steps_collected=lambda event: steps.append(sum(len(part) for part in event.steps)),
        on_update=lambda event: losses.append(event.losses["loss"]),
        on_save=lambda event: saved.append((event.step, event.path, event.kind)),
    )
    train(agent, engine_name, 4, processes=processes, callbacks=[listening])
    assert len(steps) == 4
    assert losses == agent.loss_list
    assert saved == [(sum(steps[:2]), agent.path, "last"), (sum(steps), agent.path, "last")]


def test_what_keras_calls_its_callbacks_with_works(engine_name):
    if engine_name == "torch":
        pytest.skip("keras is imported on another engine here")
    import keras

    class Stopping(keras.callbacks.Callback):
        rewards: list = []  # noqa: RUF012

        def on_episode_end(self, episode, logs=None):
            self.rewards.append(logs["reward"])
            self.model.stop_training = len(self.rewards) == 2

    agent = agent_for(engine_name)
    agent.set(**discrete())
    train(agent, engine_name, 10, callbacks=[Stopping()])
    assert Stopping.rewards == [5.0, 5.0]


def with_keras(engine_name):
    if engine_name == "torch":
        pytest.skip("keras is imported on another engine here")
    import keras

    return keras.callbacks


def earning(engine_name, *rewards):
    """An agent whose episodes earn these, and the callback that makes them."""
    agent = agent_for(engine_name, env=Walk(length=1))
    agent.set(**discrete(batch=1))
    begin = LambdaCallback(on_episode_begin=lambda i, logs: setattr(agent.env, "reward", (*rewards, 0.0)[i]))
    return agent, begin


def test_early_stopping_of_keras_ends_training_when_the_reward_has_not_risen_for_its_patience(engine_name):
    stopping = with_keras(engine_name).EarlyStopping(monitor="reward", mode="max", patience=2)
    agent, begin = earning(engine_name, 1.0, 5.0, 4.0, 3.0, 9.0, 9.0)
    train(agent, engine_name, 6, callbacks=[begin, stopping])
    assert agent.reward_list == [1.0, 5.0, 4.0, 3.0]


def test_reduce_lr_on_plateau_and_the_scheduler_of_keras_set_the_learning_rate_that_is_learned_with(engine_name):
    callbacks = with_keras(engine_name)
    agent, begin = earning(engine_name, 1.0, 1.0, 1.0, 1.0)
    plateau = callbacks.ReduceLROnPlateau(monitor="reward", mode="max", factor=0.5, patience=1)
    train(agent, engine_name, 4, callbacks=[begin, plateau])
    assert float(agent.optimizer.learning_rate) == pytest.approx(0.01 / 8)
    zero = callbacks.LearningRateScheduler(lambda epoch, rate: 0.0)
    before = weights(agent)
    train(agent, engine_name, 2, callbacks=[begin, zero])
    assert all(np.array_equal(value, before[name]) for name, value in weights(agent).items() if name[:2] == "q.")


def test_the_csv_logger_of_keras_writes_a_row_for_each_episode(engine_name, tmp_path):
    logger = with_keras(engine_name).CSVLogger(str(tmp_path / "log.csv"))
    agent, begin = earning(engine_name, 2.0, 7.0)
    train(agent, engine_name, 2, callbacks=[begin, logger])
    header, *rows = (tmp_path / "log.csv").read_text().split()
    assert header.startswith("epoch,loss,reward")
    losses = agent.loss_list
    assert [row.split(",")[:3] for row in rows] == [["0", f"{losses[0]}", "2.0"], ["1", f"{losses[1]}", "7.0"]]


def test_epochs_and_train_batches_of_a_callback_of_keras_are_episodes_and_minibatches(engine_name):
    heard = []

    class Noting(with_keras(engine_name).Callback):
        def on_epoch_begin(self, epoch, logs=None):
            heard.append(("epoch", epoch))

        def on_train_batch_end(self, batch, logs=None):
            heard.append(("batch", batch))

    agent, begin = earning(engine_name, 1.0, 1.0)
    train(agent, engine_name, 2, callbacks=[Noting(), begin])
    assert heard == [("epoch", 0), ("batch", 0), ("batch", 1), ("epoch", 1), ("batch", 0), ("batch", 1)]


def test_callbacks_of_keras_that_cannot_work_with_an_agent_are_refused_by_name(engine_name, tmp_path):
    callbacks = with_keras(engine_name)
    agent, _ = earning(engine_name, 1.0)
    refused = [
        (callbacks.ModelCheckpoint(str(tmp_path / "model.keras")), "ModelCheckpoint of Keras .*agent.path.*save_best"),
        (callbacks.TensorBoard(str(tmp_path)), "TensorBoard of Keras .*CSVLogger"),
        (callbacks.EarlyStopping(), "EarlyStopping of Keras monitors 'val_loss'.*loss, reward"),
        (callbacks.EarlyStopping("loss", restore_best_weights=True), "EarlyStopping.*restore_best_weights.*save_best"),
    ]
    for callback, said in refused:
        with pytest.raises(ConfigError, match=said):
            train(agent, engine_name, 1, callbacks=[callback])
    agent.optimizer = [agent.optimizer, agent.optimizer]
    with pytest.raises(ConfigError, match="ReduceLROnPlateau of Keras sets the learning rate of one optimizer"):
        Callbacks([callbacks.ReduceLROnPlateau("loss")], agent)


def test_a_callback_that_raises_ends_training_and_nothing_is_left_open(engine_name):
    once(engine_name)
    agent = agent_for(engine_name)

    def fail(episode, logs):
        raise RuntimeError("not today")

    agent.set(**discrete())
    with pytest.raises(RuntimeError, match="not today"):
        train(agent, engine_name, 3, callbacks=[LambdaCallback(on_episode_end=fail)])
    assert agent.total_episode == 1
    train(agent, engine_name, 2)
    assert agent.reward_list == [5.0] * 3


def test_training_ends_when_the_mean_of_the_last_episodes_reaches_the_criterion(engine_name):
    once(engine_name)
    env = Walk()
    agent = agent_for(engine_name, env=env)

    def earn_more(episode, logs):
        env.reward = float(episode)  # of the episode that begins: 5 * episode in all

    agent.set(**discrete(trial_count=2, criterion=12.0))
    train(agent, engine_name, 20, callbacks=[LambdaCallback(on_episode_begin=earn_more)])
    assert agent.reward_list == [0.0, 5.0, 10.0, 15.0], "the mean of 10 and 15 is the first of at least 12"


def test_without_a_number_of_episodes_training_goes_on_until_the_criterion(engine_name):
    once(engine_name)
    agent = agent_for(engine_name)
    agent.set(**discrete(trial_count=3, criterion=5.0))
    train(agent, engine_name, None)
    assert agent.total_episode == 3


@pytest.mark.parametrize("p, lines", [(0, 0), (2, 5), (None, 9), (5, 2)])
def test_every_p_episodes_and_after_the_last_a_line_is_printed(p, lines, engine_name, capsys):
    once(engine_name)
    agent = agent_for(engine_name)
    agent.set(**discrete(num_updates=1))
    train(agent, engine_name, 9, p=p)
    printed = capsys.readouterr().out.splitlines()
    told = [line for line in printed if line.startswith("episode")]
    assert len(told) == lines
    assert not told or ("reward 5" in told[0] and "loss" in told[0])
    assert bool(printed) == bool(lines)


def test_train_returns_the_mean_loss_and_adds_it_to_the_metric(engine_name):
    agent = agent_for(engine_name)
    agent.set(**discrete())
    loss = train(agent, engine_name, 2)
    assert loss == agent.loss_list[-1] and math.isfinite(loss)
    if engine_name == "torch":
        return
    import keras

    metric = keras.metrics.Mean()
    found = agent.train(metric, None, 1, p=0)
    assert float(metric.result()) == pytest.approx(found)


def test_agents_in_pytorch_take_the_arguments_that_agents_in_keras_take(engine_name):
    once(engine_name)
    agent = agent_for(engine_name)
    agent.set(**discrete())
    optimizer, added = optimizers_for(agent, agents_of(engine_name)), []
    metric = SimpleNamespace(update_state=added.append)
    losses = [agent.train(metric, optimizer, 2, p=0), agent.train(optimizer, 1, p=0, train_loss=metric)]
    assert agent.total_episode == 3
    assert added == losses


def test_without_saying_when_the_old_policy_follows_prioritised_ppo_lets_it_follow_after_each_phase(engine_name):
    told = pytest.warns(UserWarning, match="update_param is called at the end of each learning phase.*update_steps")
    first, second = agent_for(engine_name, "PPO"), agent_for(engine_name, "PPO")
    second.set(**on_policy(PR=True, update_steps=1, num_updates=2))
    with told:
        first.set(**on_policy(PR=True, update_steps=None, num_updates=2))
    for agent in (first, second):
        train(agent, engine_name, 3)
    assert first.loss_list == second.loss_list


def test_figures_are_written_where_a_path_is_given(engine_name, tmp_path):
    once(engine_name)
    agent = agent_for(engine_name)
    agent.set(**discrete())
    train(agent, engine_name, 3)
    for name in ("visualize_loss", "visualize_reward", "visualize_reward_loss"):
        figure = getattr(agent, name)(path=tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert figure.axes
        drawn = {tuple(line.get_ydata().tolist()) for axes in figure.axes for line in axes.lines}
        wanted = {"loss": agent.loss_list, "reward": agent.reward_list}
        assert all(tuple(series) in drawn for what, series in wanted.items() if what in name)


@pytest.mark.parametrize("name, kind", [("film.gif", b"GIF8"), ("film.mp4", b"ftyp")])
def test_an_agent_is_filmed(name, kind, engine_name, tmp_path):
    agent = agent_for(engine_name)
    assert agent.animate_agent(200, path=tmp_path / name) == 5.0, "also one that has not trained"
    assert kind in (tmp_path / name).read_bytes()[:12]


def test_an_agent_is_shown_in_a_window(engine_name):
    once(engine_name)
    drawn = []

    class Window(Walk):
        metadata = {"render_modes": ["human"]}  # noqa: RUF012

        def render(self):
            drawn.append(self.t)

    agent = agent_for(engine_name, env=lambda render_mode=None: Window(render_mode=render_mode))
    assert agent.animate_agent(3) == 3.0
    assert drawn == [0, 1, 2, 3]
    assert np.isclose(agent.animate_agent(200), 5.0)
