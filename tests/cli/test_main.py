import errno
import os
import subprocess
import sys

import pytest

from etude import cli
from etude.base.errors import ConfigError

DRAWING_AND_FRAMEWORKS = {"tyro", "rich", "matplotlib", "torch", "jax", "keras", "tensorflow"}


def test_help_names_every_command(capsys):
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        assert cli.main(arguments) == 0
        text = capsys.readouterr().out
        assert all(f"  {name}" in text for name in cli.COMMANDS)


def test_the_version_is_told(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("etude 0.")


def test_a_command_that_there_is_not_is_refused_with_those_that_there_are(capsys):
    assert cli.main(["trian"]) == 2
    error = capsys.readouterr().err
    assert "'trian'. Did you mean train? There are train, resume" in error


def test_the_package_is_a_program():
    done = subprocess.run([sys.executable, "-m", "etude", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout[:6]) == (0, "etude ")
    done = subprocess.run([sys.executable, "-m", "etude", "trian"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help_with_its_options(name, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main([name, "--help"])
    assert exit.value.code == 0
    assert f"usage: etude {name}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--help"], ["train", "--help"]])
def test_help_loads_no_framework_and_nothing_that_draws(arguments):
    listing = (
        "import sys, contextlib\nfrom etude.cli import main\n"
        "with contextlib.suppress(SystemExit):\n    main(sys.argv[1:])\n"
        "sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", listing, *arguments], capture_output=True, text=True, timeout=60)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    allowed = {"tyro"} if arguments != ["--help"] else set()
    assert done.stdout.startswith("usage: etude")
    assert loaded & DRAWING_AND_FRAMEWORKS <= allowed
    if arguments == ["--help"]:  # it costs no more than `import etude`
        assert not {"etude.report", "etude.run", "etude.training"} & set(done.stderr.split())


def fail_with(error, monkeypatch):
    def fail(_):
        raise error

    monkeypatch.setattr("etude.cli.looking.doctor", fail)


def test_an_error_of_etude_is_one_message_without_a_traceback(monkeypatch, capsys):
    fail_with(ConfigError("gamma = 3; expected at most 1."), monkeypatch)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "etude: gamma = 3; expected at most 1.\n"


def test_debug_shows_the_traceback(monkeypatch, capsys):
    fail_with(ConfigError("gamma = 3; expected at most 1."), monkeypatch)
    assert cli.main(["doctor", "--debug"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.endswith("etude: gamma = 3; expected at most 1.\n")


def test_an_error_that_nobody_expected_keeps_its_traceback(monkeypatch):
    fail_with(ZeroDivisionError("a bug"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_few_descriptors_are_explained(number, monkeypatch, capsys):
    fail_with(OSError(number, "Too many open files"), monkeypatch)
    assert cli.main(["doctor"]) == 2
    error = capsys.readouterr().err
    assert "this process may have" in error
    assert "ulimit -n" in error


def test_a_full_disk_is_explained_without_a_traceback(monkeypatch, capsys):
    fail_with(OSError(errno.ENOSPC, "No space left on device", "runs/results.csv"), monkeypatch)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "etude: No space left on device: runs/results.csv\n"


def test_another_error_of_the_system_keeps_its_traceback(monkeypatch):
    fail_with(OSError(errno.ENOENT, "No such file"), monkeypatch)
    with pytest.raises(OSError, match="No such file"):
        cli.main(["doctor"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes of this kind")
@pytest.mark.parametrize("arguments", [["doctor"], ["trian"]], ids=" ".join)
def test_a_reader_that_went_away_costs_no_traceback_and_no_exit_code(arguments, tmp_path):
    code = tmp_path / "code"
    program = f"from etude.cli import main; open({str(code)!r}, 'w').write(str(main({arguments!r})))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", program], stdout=writing, stderr=writing, timeout=60, check=False)
    os.close(writing)
    assert (code.read_text(), done.returncode) == ("0" if arguments == ["doctor"] else "2", 0)


def test_an_interrupt_ends_a_command_with_the_exit_code_of_the_shell(monkeypatch):
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert cli.main(["doctor"]) == 130
