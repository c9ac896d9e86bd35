"""How the program ends."""

import os
import subprocess
import sys


def test_threads_of_an_environment_do_not_keep_the_program():
    program = """
import sys, threading
from etude import cli
threading.Thread(target=threading.Event().wait, name="the user's").start()
cli.PATIENCE = 0.1
sys.argv = ["etude", "list"]
sys.exit(cli.main())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ, check=False)
    assert done.returncode == 0
    assert "dqn" in done.stdout
    assert done.stderr == (
        "etude: ended with threads still running: the user's. An environment has to stop its threads in close(), or "
        "start them with daemon=True.\n"
    )


def test_a_command_whose_streams_are_closed_runs_and_lends_no_file_their_numbers(tmp_path):
    program = f"""
import os, sys
from etude import cli
sys.argv = ["etude", "list"]
code = cli.main()
opened = os.open("{tmp_path}/opened", os.O_CREAT | os.O_WRONLY)
os.write(opened, f"{{code}} {{opened > 2}}".encode())
"""
    command = ["/bin/sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    done = subprocess.run(command, timeout=120, env=os.environ, check=False)
    assert done.returncode == 0
    assert (tmp_path / "opened").read_text() == "0 True"
