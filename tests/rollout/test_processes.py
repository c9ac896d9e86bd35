"""Whole programs that use a pool: what they need, and what they leave behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
import gymnasium
import numpy as np
from etude.envs import make_environments
from etude.rollout import Pool, PoolOptions
from labelled import Adder, Labelled, Noisy

class Mine(Labelled):
    pass

def pids(rollout):
    return " ".join(str(worker.process.pid) for worker in rollout._supervisor.workers)

def make(kind=Mine, **options):
    rollout = Pool(kind, Adder, Noisy(), 1, 4, 2, PoolOptions(**options))
    print(pids(rollout), flush=True)
    return rollout
"""


def start(tmp_path: Path, body: str, **variables: str) -> subprocess.Popen:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT + textwrap.dedent(body))
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""), str(tmp_path)])
    environment = os.environ | {"PYTHONPATH": path} | variables
    return subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def workers_of(program: subprocess.Popen) -> list[int]:
    return [int(pid) for pid in program.stdout.readline().split()]


def assert_nothing_is_left(program: subprocess.Popen, workers: list[int]) -> None:
    assert len(workers) == 2
    until = time.monotonic() + 120
    while time.monotonic() < until and any(Path(f"/proc/{pid}/exe").exists() for pid in workers):
        time.sleep(0.02)
    assert [pid for pid in workers if Path(f"/proc/{pid}/exe").exists()] == []
    if os.path.isdir("/dev/shm"):
        assert [name for name in os.listdir("/dev/shm") if f"-{program.pid}-" in name] == []


def test_a_script_needs_no_main_guard_and_workers_do_not_run_it_again(tmp_path):
    program = start(tmp_path, "print('ran'); rollout = make(); print(rollout.collect(5, 0).shape)")
    out, err = program.communicate(timeout=60)
    lines = out.split("\n")
    assert (lines[0], lines[2], err) == ("ran", "(5, 4)", "")
    assert_nothing_is_left(program, [int(pid) for pid in lines[1].split()])


@pytest.mark.parametrize("last", ["raise RuntimeError('mine')", "del rollout; time.sleep(0.3)"])
def test_a_program_that_ends_without_closing_leaves_nothing(tmp_path, last):
    program = start(tmp_path, f"rollout = make(overlap=True)\nrollout.collect(5, 0, upcoming=100000)\n{last}")
    workers = workers_of(program)
    _, err = program.communicate(timeout=60)
    assert_nothing_is_left(program, workers)
    assert "etude" not in err


def test_ctrl_c_ends_the_program_and_its_workers_without_their_tracebacks(tmp_path):
    program = start(tmp_path, "rollout = make()\nwhile True: rollout.collect(1000, 0)")
    workers = workers_of(program)
    time.sleep(0.2)
    os.killpg(program.pid, signal.SIGINT)
    _, err = program.communicate(timeout=60)
    assert_nothing_is_left(program, workers)
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_a_program_that_handles_ctrl_c_goes_on_with_the_same_workers(tmp_path):
    body = """
    import signal
    asked = []
    signal.signal(signal.SIGINT, lambda *_: asked.append(True))
    rollout = make()
    while not asked:
        rollout.collect(50, 0)
    rollout.collect(50, 0)
    rollout.state()
    print(rollout.warnings(), pids(rollout))
    rollout.close()
    """
    program = start(tmp_path, body)
    workers = workers_of(program)
    time.sleep(0.2)
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert err == ""
    assert out.split() == ["[]", *(str(pid) for pid in workers)]
    assert_nothing_is_left(program, workers)


def test_signals_to_the_group_end_no_worker_not_even_one_that_starts(tmp_path):
    body = """
    import signal, threading
    names = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
    for name in names:
        signal.signal(name, lambda *_: None)
    done = threading.Event()

    def send():
        while not done.wait(0.02):
            for name in names:
                os.killpg(0, name)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        rollout = make()
        rollout.collect(50, 0)
        print(rollout.warnings(), pids(rollout))
        rollout.close()
    finally:
        done.set()
        sender.join()
    """
    program = start(tmp_path, body)
    workers = workers_of(program)
    out, err = program.communicate(timeout=60)
    assert err == ""
    assert out.split() == ["[]", *(str(pid) for pid in workers)]
    assert_nothing_is_left(program, workers)


@pytest.mark.parametrize(
    "doing, number, within",
    [
        ("time.sleep(100)", signal.SIGTERM, "pass"),
        ("rollout.collect(99, 0)", signal.SIGKILL, "time.sleep(100)"),
        pytest.param(
            "rollout.collect(99, 0)", signal.SIGKILL, "ctypes.PyDLL(None).sleep(100)",  # keeps Python's lock
            marks=pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux"),
        ),
    ],
)  # fmt: skip
def test_workers_end_with_a_parent_that_is_killed_even_inside_an_environment(tmp_path, number, doing, within):
    body = f"""
    import ctypes

    class Slow(Mine):
        def step(self, action, at=None):
            {within}

    rollout = make({"Slow" if "collect" in doing else "Mine"})
    {doing}
    """
    program = start(tmp_path, body)
    workers = workers_of(program)
    time.sleep(0.2)
    program.send_signal(number)
    program.communicate(timeout=60)
    assert_nothing_is_left(program, workers)


TELLING = """
class Telling(Mine):
    def __init__(self, columns):
        super().__init__(columns)
        told = hash("a string"), random.random(), np.random.random(), os.getppid() == int(sys.argv[1])
        os.write(1, " ".join(["worker", *map(str, told)]).encode() + b"\\n")  # in one piece, as all write to one pipe
"""


def told(tmp_path: Path, before: str = "") -> list[tuple[str, ...]]:
    """What the workers of a pool say: a number that only copies of one process share, two draws, and whether the
    program is their parent."""
    body = f"import multiprocessing, random\nsys.argv.append(str(os.getpid()))\n{before}{TELLING}"
    body += "rollout = make(Telling)\nrollout.collect(5, 0)\nrollout.close()"
    program = start(tmp_path, body, PYTHONHASHSEED="random")
    out, err = program.communicate(timeout=60)
    assert err == ""
    return list(zip(*(line.split()[1:] for line in out.splitlines() if line.startswith("worker")), strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_workers_are_copies_of_one_process_and_children_of_the_program_which_draw_numbers_of_their_own(tmp_path):
    copies, *draws, children = told(tmp_path)
    assert copies[0] == copies[1]
    assert all(one != other for one, other in draws)
    assert children == ("True", "True")


def test_workers_are_no_copies_where_the_program_asks_for_the_start_method_spawn(tmp_path):
    copies, *_ = told(tmp_path, "multiprocessing.set_start_method('spawn')\n")
    assert copies[0] != copies[1]


@pytest.mark.long_but("os.kill(os.getpid(), 9)")
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize("ends", ["os._exit(1)", "os.kill(os.getpid(), 9)"])
def test_workers_start_by_themselves_where_the_process_that_forks_them_ends(tmp_path, ends):
    (tmp_path / "ending.py").write_text(f"import os\n{ends}")
    body = """
    from etude.workers import process
    process.modules_named_by = lambda job: ["ending"]
    rollout = make()
    print(rollout.collect(5, 0).shape, rollout.warnings())
    rollout.close()
    """
    program = start(tmp_path, body)
    workers = workers_of(program)
    out, err = program.communicate(timeout=60)
    assert (out.split("\n")[0], err) == ("(5, 4) []", "")
    assert_nothing_is_left(program, workers)


def test_environments_that_a_program_registered_are_known_to_its_workers(tmp_path):
    body = """
    from gymnasium.envs.classic_control import CartPoleEnv
    gymnasium.register("Twice-v0", entry_point=lambda: CartPoleEnv(), max_episode_steps=5)
    from functools import partial
    rollout = make(partial(make_environments, "Twice-v0", run_seed=1))
    """
    program = start(tmp_path, body)
    out, err = program.communicate(timeout=60)
    assert err == ""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_a_script_names_of_itself_is_known_to_its_workers(tmp_path, method):
    program = start(
        tmp_path,
        f"""
        import multiprocessing
        from functools import partial
        from etude.envs import configured

        multiprocessing.set_start_method({method!r})

        class Cart(gymnasium.Wrapper):
            def __init__(self, env=None):
                super().__init__(env or gymnasium.make("CartPole-v1"))

        gymnasium.register("Mine-v0", entry_point="__main__:Cart")
        for env in ("Mine-v0", "__main__:Cart", configured("CartPole-v1", None, ["__main__:Cart"], 1)):
            rollout = make(partial(make_environments, env, run_seed=1))
            print(rollout.spaces.action, flush=True)
            rollout.close()
        """,
    )
    out, error = program.communicate(timeout=100)
    assert out.splitlines()[1::2] == ["Discrete(2)"] * 3, error


def test_cached_functions_of_a_script_are_sent_to_its_workers(tmp_path):
    program = start(
        tmp_path,
        """
        import functools
        from functools import partial

        class Cart(gymnasium.Wrapper):  # as environments of PettingZoo remember their spaces
            @functools.lru_cache(maxsize=None)
            def space(self, agent):
                return self.env.action_space

            @property
            def action_space(self):
                return self.space("me")

        rollout = make(partial(make_environments, lambda: Cart(gymnasium.make("CartPole-v1")), run_seed=1))
        print(rollout.spaces.action, flush=True)
        rollout.close()
        """,
    )
    out, error = program.communicate(timeout=100)
    assert out.splitlines()[-1:] == ["Discrete(2)"], error


def test_a_worker_stays_small_and_imports_no_framework(tmp_path):
    body = """
    from functools import partial
    class Counting(Mine):
        def __init__(self, columns):
            super().__init__(columns)
            self.inner = make_environments("CartPole-v1", np.asarray(columns), 1)
        def step(self, action, at=None):
            found = {"torch", "jax", "keras", "tensorflow", "matplotlib", "rich", "tyro"} & set(sys.modules)
            assert not found, found
            return super().step(action)
    rollout = make(Counting)
    rollout.collect(5, 0)
    for pid in pids(rollout).split():
        print(int(open(f"/proc/{pid}/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2 ** 20)
    """
    program = start(tmp_path, body)
    out, err = program.communicate(timeout=60)
    assert err == ""
    assert all(float(size) <= 90 for size in out.split("\n")[1:3])


@pytest.mark.long_but("os.kill(os.getpid(), 9)", "while True: play()")
@pytest.mark.parametrize("last", ["raise RuntimeError('mine')", "os.kill(os.getpid(), 9)", "while True: play()"])
def test_a_program_whose_workers_only_step_leaves_nothing_either(tmp_path, last):
    body = f"""
    from etude.rollout import LockstepPool
    rollout = LockstepPool(Mine, Adder(), Noisy(), 1, 4, 2, PoolOptions(halves=True))
    print(pids(rollout), flush=True)
    play = lambda: rollout.collect_episodes(0)
    play()
    {last}
    """
    program = start(tmp_path, body)
    workers = workers_of(program)
    if "while" in last:
        time.sleep(0.3)
        os.killpg(program.pid, signal.SIGINT)
    _, err = program.communicate(timeout=60)
    assert_nothing_is_left(program, workers)
    assert err.count("Traceback") == (0 if "kill" in last else 1)
