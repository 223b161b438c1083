"""Python files with parts of the user's own, named by `--plugin` and by the key `plugins`."""

import subprocess
import sys

import pytest

import fedloom as fl
from fedloom.core import plugins
from fedloom.core.errors import ConfigError
from fedloom.methods import METHODS
from fedloom.runs.config.run_config import load, parse

METHOD = '''
import fedloom.methods as fm

class {name}Options(fm.Options):
    pass

@fm.register
class {name}(fm.Method):
    """{name}: FedAvg under another name."""

    Options = {name}Options
'''
DIGITS = "scenario: {source: digits, partition: iid, clients: 2}\nrounds: 1\nmodel: logistic\n"


@pytest.fixture(autouse=True)
def _own_process_settings(monkeypatch):
    monkeypatch.setenv("FEDLOOM_PLUGINS", "")
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    METHODS.names()
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))


def written(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def test_a_config_loads_its_files_and_is_known_by_their_content(tmp_path):
    written(tmp_path, "own_alpha.py", METHOD.format(name="OwnAlpha"))
    config = written(tmp_path, "a.yaml", f"plugins: [own_alpha.py]\nmethod: ownalpha\n{DIGITS}")
    parsed = parse(load(config))
    assert [*parsed.plugins] == ["own_alpha"]
    assert len(parsed.plugins["own_alpha"]) == 64
    other = parsed.model_copy(update={"plugins": {"own_alpha": "0" * 64}})
    assert other.fingerprint() != parsed.fingerprint()


def test_a_stored_config_loads_nothing(tmp_path):
    stored = {"plugins": {"own_never": "0" * 64}, "method": "ownnever", "scenario": {"source": "digits", "alpha": 1}}
    written(tmp_path, "own_never.py", "raise SystemExit('executed')")
    with pytest.raises(ConfigError, match=r"plugins\.own_never: the file is not loaded; `fedloom --plugin FILE"):
        parse(stored)
    with pytest.raises(ConfigError, match="plugins = "):  # a list in a folder that is only read
        parse({**stored, "plugins": [str(tmp_path / "own_never.py")]})


def test_other_processes_load_them_too(tmp_path):
    (folder := tmp_path / "a:b, c").mkdir()
    file = written(folder, "own_beta.py", METHOD.format(name="OwnBeta"))
    digits = fl.scenario("digits", partition="iid", clients=2)
    comparison = fl.compare(
        ["ownbeta"], digits, rounds=1, seeds=2, model="logistic", plugins=[file], out=tmp_path / "runs", jobs=2
    )
    assert len(comparison.results) == 2


def test_the_command_line_takes_it_before_and_after_a_command(tmp_path):
    file = written(tmp_path, "own_gamma.py", METHOD.format(name="OwnGamma"))
    for arguments in (["--plugin", str(file), "methods", "owngamma"], ["methods", "owngamma", f"--plugin={file}"]):
        done = subprocess.run([sys.executable, "-m", "fedloom", *arguments], capture_output=True, text=True)
        assert "OwnGamma: FedAvg under another name." in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("own_fails.py", "import no_such_module_here", "cannot be imported .ModuleNotFoundError: No module named"),
        ("own_exits.py", "raise SystemExit(3)", "cannot be imported .SystemExit: 3"),
        ("own_syntax.py", "def (", "cannot be imported .SyntaxError"),
        ("own_empty.py", "x = 1", "it registers nothing; put @fm.register above your method"),
        ("own_known.py", METHOD.format(name="FedSC"), "method 'fedsc' is registered already"),
        ("json.py", METHOD.format(name="OwnJson"), "there is another module json .*; rename the file"),
        ("own-word.py", METHOD.format(name="OwnWord"), "need a Python file, named by a word, as mine.py"),
        ("own.txt", "", "need a Python file, named by a word, as mine.py"),
    ],
)
def test_a_file_that_does_not_serve_is_refused_in_one_line(tmp_path, name, text, problem):
    file = written(tmp_path, name, text)
    for _ in range(2):  # a second try is no silence
        with pytest.raises(ConfigError, match=f"plug-in .*{name}: .*{problem}") as caught:
            plugins.load_plugin(file)
        assert "\n" not in str(caught.value)


def test_missing_files_and_other_values_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"plug-in .*gone\.py: there is no such file"):
        plugins.load_plugin(tmp_path / "gone.py")
    with pytest.raises(ConfigError, match=r"plugins = 'mine\.py': need a list of Python files"):
        fl.run("fedavg", "digits", plugins="mine.py")
