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
