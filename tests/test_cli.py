import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from making import assert_one_line, small_checkpoint
from parcels import entry_of, random_state, renamed, tamper, truncate, weights_wheel
from PIL import Image
from typer.testing import CliRunner

import cyctr
from cyctr import cli
from cyctr.backbones.weights import CATALOGUE
from cyctr.config import BackboneConfig
from cyctr.datasets.gallery import PLANS
from cyctr.inference.showcase import is_page
from cyctr.methods.cyctr.config import PAPER, PRESETS
from cyctr.methods.cyctr.network import build

SCRIPT = Path(sys.executable).parent / "cyctr"
HEAVY = ("torch", "timm", "torchvision", "numpy", "PIL", "matplotlib")


def command_of(words):
    """The command that the first of some words name."""
    command = typer.main.get_command(cli.app)
    for word in words.split() if isinstance(words, str) else words:
        if not hasattr(command, "commands"):
            break
        command = command.commands[word]
    return command


def names_below(command, before=""):
    """Every command and group of commands, by the words that name it."""
    return [name for word, one in getattr(command, "commands", {}).items() for name in _with(one, f"{before}{word}")]


def _with(command, name):
    return [name, *names_below(command, f"{name} ")]


EVERY = names_below(typer.main.get_command(cli.app))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """An empty cache, and room for wide tables."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CYCTR_CACHE", str(folder))
    monkeypatch.setenv("COLUMNS", "200")
    return folder


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """The archive of two entries that are in the catalogue for this test, 'small' and 'other'."""
    path = weights_wheel(tmp_path, renamed(random_state()))
    monkeypatch.setitem(CATALOGUE, "small", entry_of(path))
    monkeypatch.setitem(CATALOGUE, "other", replace(entry_of(path), name="other"))
    return path


def in_a_fresh_process(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=os.environ.copy(), check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_installed_command_tells_its_version():
    assert in_a_fresh_process(SCRIPT, "--version") == (0, f"cyctr {cyctr.__version__}\n", "")


def test_the_installed_command_meets_a_mistake_with_one_line():
    assert_one_line(in_a_fresh_process(SCRIPT, "weights", "get", "resnet51"), "'resnet51'", *CATALOGUE)


def test_the_help_lists_every_command():
    result = CliRunner().invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    names = ("segment", "explain", "support", "demo", "info", "evaluate", "train", "weights")
    assert all(name in result.output for name in names)
    result = CliRunner().invoke(cli.app, ["weights", "--help"])
    assert all(name in result.output for name in ("list", "get", "verify"))


@pytest.mark.parametrize("path", ["", *EVERY])
def test_every_command_says_what_it_does_shortly_and_in_one_style(path):
    short, long = (CliRunner().invoke(cli.app, [*path.split(), option]) for option in ("-h", "--help"))
    assert short.exit_code == 0 and short.output == long.output
    assert "-h, --help" in short.output
    assert not [mark for mark in ("<", "{", "x>=", "default: (") if mark in short.output]


def test_examples_in_the_help_are_commands_that_are_taken():
    leaves = [command_of(path) for path in EVERY if not hasattr(command_of(path), "commands")]
    assert [one.name for one in leaves if not one.epilog] == []
    found = [line.split() for one in leaves for line in one.epilog.splitlines()]
    for name, *words in found:
        command = command_of(words)
        assert name == "cyctr" and not command.make_context("cyctr", words[words.index(command.name) + 1 :]).args


def heavy_modules_after(code, *arguments):
    last = f"import sys; {code}; print('heavy:', *[name for name in {HEAVY} if name in sys.modules])"
    code, output, error = in_a_fresh_process(sys.executable, "-c", last, *arguments)
    assert (code, error) == (0, "")
    return output.splitlines()[-1].split()[1:]


def test_importing_the_package_imports_nothing_heavy():
    assert heavy_modules_after("import cyctr; dir(cyctr); cyctr.__version__") == []


def test_what_the_package_offers_is_imported_when_it_is_asked_for():
    assert "torch" in heavy_modules_after("import cyctr; cyctr.Episode")


def test_help_and_version_import_nothing_heavy():
    calls = [["--version"], *([*name.split(), "--help"] for name in ("", *EVERY))]
    code = f"from cyctr.cli import app; [app(words, standalone_mode=False) for words in {calls}]"
    assert heavy_modules_after(code) == []


def rows(table):
    return {line.split()[0]: line.split() for line in table.splitlines() if line.strip()}


def test_the_list_shows_every_entry_and_which_are_here(run, archive, cache_folder):
    code, output, _ = run("weights", "list")
    assert code == 0
    table = rows(output)
    assert set(CATALOGUE) <= set(table)
    assert all("yes" not in table[name] for name in CATALOGUE)
    assert str(cache_folder) in output

    run("weights", "get", "small", "--from", archive)
    table = rows(run("weights", "list")[1])
    assert [name for name in CATALOGUE if "yes" in table[name]] == ["small"]


def test_get_prints_the_file_and_verify_finds_it_good(run, archive, cache_folder):
    code, output, error = run("weights", "get", "small", "--from", archive)
    assert (code, error) == (0, "")
    assert [Path(output.strip())] == list(cache_folder.iterdir())
    assert run("weights", "verify", "small") == (0, "small: good\n", "")
    assert run("weights", "verify") == (0, "small: good\n", "")


def test_force_mends_what_verify_found_damaged(run, archive):
    path = Path(run("weights", "get", "small", "--from", archive)[1].strip())
    truncate(path)
    assert_one_line(run("weights", "verify", "small"), "checksum", "cyctr weights get small --force")
    assert_one_line(run("weights", "get", "small", "--from", archive), "cyctr weights get small --force")
    assert run("weights", "get", "small", "--from", archive, "--force")[0] == 0
    assert run("weights", "verify")[1] == "small: good\n"


def test_verify_names_every_damaged_file_in_one_line(run, archive):
    for name in ("small", "other"):
        tamper(Path(run("weights", "get", name, "--from", archive)[1].strip()))
    assert_one_line(run("weights", "verify"), "cyctr weights get small --force", "cyctr weights get other --force")


def test_verify_of_an_empty_cache_says_so(run, cache_folder):
    assert run("weights", "verify") == (0, f"nothing to verify: {cache_folder} holds no weights\n", "")


def test_verify_of_weights_that_are_not_here_says_how_to_get_them(run):
    assert_one_line(run("weights", "verify", "mobilenetv2"), "run: cyctr weights get mobilenetv2")


@pytest.mark.parametrize("command", ["get", "verify"])
def test_an_unknown_name_is_one_line_with_the_known_ones(command, run):
    assert_one_line(run("weights", command, "resnet51"), "'resnet51'", *CATALOGUE)


def test_a_wrong_archive_is_one_line_and_leaves_nothing(run, archive, cache_folder):
    tamper(archive)
    assert_one_line(run("weights", "get", "small", "--from", archive), "sha256", "fetch it again")
    assert list(cache_folder.iterdir()) == []


def test_info_prints_what_is_trained_on_the_tiny_backbone(run):
    code, output, error = run("info", "--backbone", "tiny")
    count = build(replace(PAPER.model, backbone=BackboneConfig("tiny"))).parameter_count()
    assert (code, error) == (0, "")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert f"trained {count.trained:,}" in lines
    assert f"trained and used at test {count.used_at_test:,}" in lines


def test_info_shows_the_settings_of_the_preset(run):
    for name in PRESETS:
        _, output, _ = run("info", "--backbone", "tiny", "--preset", name)
        assert rows(output)["optimizer.rate_multiplier"][1] == str(cyctr.preset(name).optimizer.rate_multiplier)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--preset", "papre"), ("'papre'", "paper, released, best")),
        (("--backbone", "resnet5O"), ("'resnet5O'", "did you mean resnet50")),
    ],
    ids=["preset", "backbone"],
)
def test_info_meets_a_mistake_with_one_line(arguments, words, run):
    assert_one_line(run("info", *arguments), *words)


def test_features_are_made_once_or_always_and_nothing_else(run, tmp_path):
    result = run("evaluate", "--data", "synthetic", "--method", "background", "--encode", "never", "--output", tmp_path / "out")
    assert_one_line(result, "--encode is 'never'; expected once or always")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def network(tmp_path):
    """A checkpoint of a network that has learned nothing and is fast."""
    return small_checkpoint(tmp_path / "small.safetensors")


def test_the_demo_prints_every_class_and_writes_a_page_and_a_picture(run, network, tmp_path):
    folder = tmp_path / "deep" / "pictures"
    code, output, _ = run("demo", "--model", network, "--device", "cpu", "--output", folder)
    assert code == 0
    assert all(plan.title in output for plan in PLANS)
    assert str(folder / "index.html") in output
    page = (folder / "index.html").read_text()
    assert all(plan.title in page and plan.photo.licence in page for plan in PLANS)
    with Image.open(folder / "demo.png") as picture:
        low, high = picture.convert("L").getextrema()
    assert low < high
    assert is_page(folder / "index.html") and not is_page(folder / "demo.png") and not is_page(folder)


@pytest.mark.parametrize("name", ["index.html", "demo.png"])
def test_the_demo_does_not_replace_what_is_not_of_a_demo(run, network, tmp_path, name):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("<html>mine</html>")
    command = ("demo", "--model", network, "--device", "cpu", "--output", folder)
    assert_one_line(run(*command), f"{name}: is not of an earlier demo, and would be replaced; choose another --output")
    assert [path.read_text() for path in folder.iterdir()] == ["<html>mine</html>"]


def test_the_demo_does_not_write_over_a_file(run, network, tmp_path):
    occupied = tmp_path / "occupied"
    occupied.write_text("mine")
    assert_one_line(run("demo", "--model", network, "--output", occupied), str(occupied), "choose another --output")
    assert occupied.read_text() == "mine"
