import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from learning import (
    SMALL,
    assert_close,
    begun,
    changed,
    go,
    photos,
    resumed,
    same_bits,
    state_of,
    timeless,
    without_dropout,
)
from safetensors.torch import load_file

from cyctr import cli
from cyctr.checkpoint import load_checkpoint
from cyctr.errors import ConfigError, PeerError
from cyctr.training.distributed import World, _together, join
from cyctr.training.run_folder import LAST, RunFolder

TESTS = Path(__file__).parents[1]
STILL = without_dropout(changed(SMALL, training={"hold_out": 2}))
CONVOLUTIONS = changed(STILL, model={"mixer": "residual"}, optimizer={"convolutions": "sgd", "convolution_rate": 1e-2})
LATENT = changed(CONVOLUTIONS, training={"latent_classes": 4, "latent_share": 0.5, "latent_unsure": 0.3})
RUNS = {"transformer": STILL, "convolutions": CONVOLUTIONS, "latent": LATENT}

SCRIPT = """
import json, sys
from dataclasses import replace
from pathlib import Path

import torch
from learning import *
from cyctr.training import latent_classes as train
from cyctr.training.distributed import join
from cyctr.errors import CyctrError
from cyctr.methods.cyctr.loss import Losses
from test_distributed import CONVOLUTIONS, LATENT, RUNS, STILL
from test_trainer import gradients_of, spied

torch.set_num_threads(1)
session._LOG_STEPS = 2  # how often the processes ask each other
session.draw_curves = lambda records: None  # which takes longer than the runs
out = Path(sys.argv[1])
said = {}


def threads():
    return [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]


with join("cpu") as world:
    import torch._dynamo  # brings functions that keep a group as default, as a compiled network would

    said["threads"] = [any("gloo" in name for name in threads())]
    said["world"] = [world.rank, world.size, world.leads]
    torch.manual_seed(world.rank)

    weight, other = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(2))
    weight.grad = torch.arange(6.0).view(2, 3) + world.rank
    world.average([weight, other])
    said["average"] = weight.grad.tolist()
    said["agree"] = world.agree(3.5 + world.rank)
    said["share"] = world.share(lambda: {"first": world.rank == 0})
    said["gather"] = world.gather(torch.tensor([world.rank, 7])).tolist()

    def of(name):
        return out / (name if world.leads else f"{name} of process {world.rank}")

    if not world.leads:
        del train.mine  # the first looks for latent classes, for all
    for name, config in RUNS.items():
        trainer = begun(of(name), config, replace(QUIET, keep_every=8), world=world)
        gradients, seen = gradients_of(trainer), spied(trainer)
        said[f"{name} outcome"] = go(trainer)
        said[f"{name} draws"] = [[draw.number for draw in groups.draws] for groups, _ in seen]
        torch.save(gradients[0], out / f"{name} {world.rank}.pt")
        torch.save(trainer.optimization.state(), out / f"{name} state {world.rank}.pt")

    trainer = resumed(out / "begun by one", LATENT, world=world)
    said["resumed"] = [trainer.step, go(trainer)]
    trainer = resumed(of("begun elsewhere"), LATENT, world=world)
    said["resumed elsewhere"] = [trainer.step, go(trainer)]
    try:
        resumed(of("begun by one"), STILL, world=world)
    except CyctrError as error:
        said["resumed in another way"] = str(error)

    trainer = begun(of("stopped"), CONVOLUTIONS, world=world)
    session._ASKING = 1e9  # steps are never long
    said["stopped"] = [trainer.run(stop=lambda: world.leads and trainer.step >= 4), trainer.step]
    trainer = begun(of("stopped at once"), CONVOLUTIONS, world=world)
    session._ASKING = 0  # all steps are long
    said["stopped at once"] = [trainer.run(stop=lambda: world.leads and trainer.step >= 4), trainer.step]

    try:
        prepared(of("refused"), changed(SMALL, training={"batch": 3}), world=world)
    except CyctrError as error:
        said["refused"] = str(error)
    try:
        prepared(of("refused"), SMALL, replace(QUIET, accumulate=4), world=world)
    except CyctrError as error:
        said["refused parts"] = str(error)
    (out / f"said {world.rank}.json").write_text(json.dumps(said))

    trainer = begun(out / "infinite", STILL, replace(QUIET, save_minutes=0.0), world=world)
    losses = trainer.losses

    def infinite(groups, tokens):
        found = losses(groups, tokens)
        if world.leads or trainer.step != 1:
            return found
        each = found.each * torch.inf
        return Losses(each, found.parts)

    trainer.losses = infinite
    try:
        said["infinite"] = go(trainer)
    except Exception as error:
        said["infinite"] = f"{type(error).__name__}: {error}"
said["threads"].append(any("gloo" in name for name in threads()))
(out / f"said {world.rank}.json").write_text(json.dumps(said))
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more):
    """Ours, for processes that find the modules of the tests wherever they are started."""
    inherited = map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    paths = (str(TESTS / "support"), str(TESTS / "training"), *inherited)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **more}


def side_by_side(folders, *arguments, on_one_machine=True):
    """The exit codes, and all that is said, of two processes that were started by hand, each in a folder."""
    shared = environment(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    processes = [
        subprocess.Popen(
            list(map(str, (sys.executable, *arguments))),
            cwd=folder,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank if on_one_machine else 0)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, folder in enumerate(folders)
    ]
    try:
        texts = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, texts, strict=True)]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A folder in which two processes did what the script says, and what each of them said."""
    out = tmp_path_factory.mktemp("both")
    (out / "script.py").write_text(SCRIPT)
    go(begun(out / "begun by one", LATENT), until=3)
    shutil.copytree(out / "begun by one", out / "begun elsewhere")
    texts = [text for _, text in side_by_side([out, out], out / "script.py", out)]
    said = [json.loads(path.read_text()) for rank in range(2) if (path := out / f"said {rank}.json").exists()]
    assert len(said) == 2, texts
    return out, said


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same runs by one process: folders, and the gradients of their first step."""
    out = tmp_path_factory.mktemp("alone")
    gradients = {}
    for name, config in RUNS.items():
        trainer = begun(out / name, config)
        weights, step = trainer.optimization.weights, trainer.optimization.step

        def spy(number, name=name, weights=weights, step=step):
            gradients.setdefault(name, {key: value.grad.clone() for key, value in weights.items()})
            step(number)

        trainer.optimization.step = spy
        assert go(trainer) == "finished"
    return out, gradients


def test_two_processes_know_each_other(both):
    _, said = both
    assert [one["world"] for one in said] == [[0, 2, True], [1, 2, False]]


def test_gradients_are_averaged_values_agreed_on_and_gathered(both):
    _, said = both
    mean = [[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]]
    assert [one["average"] for one in said] == [mean, mean]
    assert [one["agree"] for one in said] == [3.5, 3.5]
    assert [one["share"] for one in said] == [{"first": True}] * 2
    assert [one["gather"] for one in said] == [[[0, 7], [1, 7]]] * 2


def test_each_process_sees_its_half_of_every_step(both):
    _, said = both
    halves = [one["transformer draws"] for one in said]
    assert halves[0] == [[4 * step, 4 * step + 1] for step in range(6)]
    assert halves[1] == [[4 * step + 2, 4 * step + 3] for step in range(6)]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_take_the_gradients_of_one(name, both, alone):
    out, _ = both
    expected = alone[1][name]
    for rank in range(2):
        assert_close(torch.load(out / f"{name} {rank}.pt"), expected, 1e-6)
    assert max(float(value.abs().max()) for value in expected.values()) > 1e-3


@pytest.mark.parametrize(("name", "tolerance"), [("transformer", 1e-4), ("convolutions", 1e-6), ("latent", 1e-6)])
def test_two_processes_train_the_network_of_one(name, tolerance, both, alone):
    out, said = both
    assert [one[f"{name} outcome"] for one in said] == ["finished", "finished"]
    assert_close(state_of(out / name), state_of(alone[0] / name), tolerance)
    assert_close(load_file(out / name / LAST), load_file(alone[0] / name / LAST), tolerance)
    each = [torch.load(out / f"{name} state {rank}.pt") for rank in range(2)]
    assert_close(each[0], each[1], 0.0)
    ours, theirs = timeless(out / name), timeless(alone[0] / name)
    assert ours[-1]["validation"]["miou"] == pytest.approx(theirs[-1]["validation"]["miou"], abs=0.02)
    mean = [sum(2 * line[part] for line in ours[:-1]) / 6 for part in ("loss", "main", "auxiliary")]
    assert mean == pytest.approx([theirs[0][part] for part in ("loss", "main", "auxiliary")], rel=1e-4)


def test_only_the_first_process_writes(both):
    out, _ = both
    assert not list(out.glob("* of process 1"))
    written = {path.name for path in (out / "transformer").iterdir()}
    assert {"config.json", "metrics.jsonl", "state.safetensors", "last.safetensors", "at-000000008.safetensors"} <= written
    assert load_checkpoint(out / "transformer" / LAST)[1] == STILL


def test_a_run_that_one_process_began_is_resumed_by_two(both, alone):
    out, said = both
    assert [one["resumed"] for one in said] == [[3, "finished"], [3, "finished"]]
    assert_close(state_of(out / "begun by one"), state_of(alone[0] / "latent"), 1e-6)


def test_a_run_whose_folder_only_the_first_process_sees_is_resumed_to_the_same_bits(both):
    out, said = both
    assert [one["resumed elsewhere"] for one in said] == [[3, "finished"], [3, "finished"]]
    assert same_bits(state_of(out / "begun elsewhere"), state_of(out / "begun by one"))
    assert same_bits(load_file(out / "begun elsewhere" / LAST), load_file(out / "begun by one" / LAST))
    assert not (out / "begun elsewhere of process 1").exists()


def test_a_run_that_was_made_in_another_way_is_refused_by_all(both):
    _, said = both
    for one, folder in zip(said, ("begun by one", "begun by one of process 1"), strict=True):
        assert f"{folder} was made with other settings" in one["resumed in another way"]


def test_a_run_that_two_processes_began_is_stopped_in_both_and_resumed_by_one(both, alone):
    """The first is asked at every second step here, or at every step where they take long."""
    out, said = both
    assert [one["stopped"] for one in said] == [["stopped", 5], ["stopped", 5]]
    assert [one["stopped at once"] for one in said] == [["stopped", 4], ["stopped", 4]]
    trainer = resumed(out / "stopped", CONVOLUTIONS)
    assert trainer.step == 5
    go(trainer)
    assert_close(state_of(out / "stopped"), state_of(alone[0] / "convolutions"), 1e-6)


def test_a_step_that_the_processes_cannot_share_is_refused_by_both(both):
    _, said = both
    for one in said:
        assert one["refused"].startswith("a step has 3 groups of 2 images, which 2 processes times 1 accumulated part do not")
        assert one["refused"].endswith("change training.batch")
        assert "2 processes times 4 accumulated parts" in one["refused parts"]


def test_a_loss_that_is_no_number_in_one_process_ends_both_before_anything_of_it_is_saved(both):
    out, said = both
    assert said[0]["infinite"] == said[1]["infinite"]
    assert said[0]["infinite"].startswith("TrainingError: the loss is inf at step 2, in episode 6 ")
    assert RunFolder(out / "infinite").load_state()[1].step == 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_no_thread_of_the_group_outlives_it(both):
    _, said = both
    assert [one["threads"] for one in said] == [[True, False]] * 2  # in it, and after it


def test_a_world_of_one_changes_nothing():
    world = World()
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([1.0, 2.0])
    world.average([weight])
    assert weight.grad.tolist() == [1.0, 2.0]
    assert world.agree(0.25) == world.share(lambda: 0.25) == 0.25
    assert world.gather(torch.tensor([4.0])).tolist() == [[4.0]]
    assert world.leads


def test_where_nobody_started_several_processes_there_is_one(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join("cpu") as world:
        assert world == World(0, 1, 0)
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("size", ["2", "0", "two", ""])
def test_several_processes_that_nobody_started_are_refused(size, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.delenv("RANK", raising=False)
    with (
        pytest.raises(ConfigError, match=f"WORLD_SIZE is '{size}', .* start them with torchrun, or unset") as found,
        join("cpu"),
    ):
        pass
    assert "\n" not in str(found.value)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="3 processes on a machine with 2 GPUs; lower nproc-per-node"), join("cuda"):
        pass


def test_more_processes_than_gpus_are_refused_by_the_first_of_them_too(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="4 processes on a machine with 1 GPU; lower"), join("cuda"):
        pass


OPTIONS = {
    "--weights": "tiny",
    "--validation-episodes": 3,
    "--model.dim": 16,
    "--model.encoder.heads": 2,
    "--model.encoder.dropout": 0,
    "--model.reduction-dropout": 0,
    "--training.episodes": 8,
    "--training.batch": 4,
    "--training.augmentation.size": 65,
}
QUICK = ("--no-tensorboard", "--validate-every", 0)  # what takes longer than the steps


def training(root):
    """The command that trains a small network on photographs."""
    return ("train", "--data", root, "--test-classes", "thing0", *(x for pair in OPTIONS.items() for x in pair))


def in_two_processes(folder, *arguments):
    """What a script, or `-m` a module, says when `torchrun` starts it twice."""
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", free_port())
    command = list(map(str, (sys.executable, *launcher, *arguments)))
    shared = environment(TMPDIR=str(folder))
    return subprocess.run(command, capture_output=True, text=True, env=shared, check=False, timeout=600)


def test_the_whole_command_runs_in_two_processes_to_the_network_of_one(run, tmp_path):
    root = photos(tmp_path / "photos")
    assert run(*training(root), "--output", tmp_path / "one")[0] == 0
    done = in_two_processes(tmp_path, "-m", "cyctr", *training(root), "--output", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("8 episodes, 4 a step") == 1
    assert done.stdout.count("network: ") == 1
    assert {path.name for path in (tmp_path / "two").iterdir()} == {path.name for path in (tmp_path / "one").iterdir()}
    assert_close(load_file(tmp_path / "two" / LAST), load_file(tmp_path / "one" / LAST), 1e-4)


ENDING = """
import json, os, signal, sys
import torch
from cyctr.training.distributed import join
from cyctr.errors import PeerError

weight = torch.nn.Parameter(torch.zeros(2))
weight.grad = torch.ones(2)
said = []
with join("cpu") as world:
    if not world.leads:
        os.kill(os.getpid(), signal.SIGKILL)
    together = (
        lambda: world.average([weight]),
        lambda: world.agree(1.0),
        lambda: world.share(list),
        lambda: world.gather(torch.ones(2)),
    )
    for do in together:
        try:
            do()
        except PeerError as error:
            said.append(str(error))
print(json.dumps(said))
"""


def test_whatever_is_done_together_with_a_process_that_was_killed_says_so_in_one_line(tmp_path):
    (tmp_path / "ending.py").write_text(ENDING)
    (code, text), (killed, nothing) = side_by_side([tmp_path, tmp_path], tmp_path / "ending.py")
    assert (code, killed, nothing) == (0, -signal.SIGKILL, ""), text
    said = json.loads(text)
    assert len(said) == 4
    for line in said:
        assert line.startswith("another process of this run has ended, or cannot be reached (")
        assert line.endswith("); its own message says why")
        assert "\n" not in line


COMMANDS = """
import contextlib, json, os, sys
from pathlib import Path

import cyctr.cli

for number, (port, on_one_machine, arguments) in enumerate(json.loads(Path(sys.argv[1]).read_text())):
    os.environ["MASTER_PORT"] = str(port)
    os.environ["LOCAL_RANK"] = os.environ["RANK"] if on_one_machine else "0"
    sys.argv = ["cyctr", *arguments]
    with open(f"said {number}.txt", "w") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            cyctr.cli.main()
        except SystemExit as end:
            Path(f"code {number}.txt").write_text(str(end.code or 0))
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """The folders of two machines, and the code and words of each of three commands in each of two processes.

    The first has no data, the second goes on with a run that only the first machine has, and in the third the second
    machine's photographs are damaged.
    """
    root = tmp_path_factory.mktemp("commands")
    machines = root / "0", root / "1"
    photos(machines[0] / "photos")
    shutil.copytree(machines[0] / "photos", machines[0] / "damaged")
    shutil.copytree(machines[0], machines[1])
    for path in (machines[1] / "damaged" / "images").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    begin = (*training(machines[0] / "photos"), "--output", machines[0] / "run", "--max-minutes", 0, *QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CYCTR_CACHE", str(root / "cache"))
        patch.setattr(sys, "argv", ["cyctr", *map(str, begin)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert not stop.value.code
    asked = [
        (free_port(), True, ("train", "--data", "nowhere", "--output", "out")),
        (free_port(), False, ("train", "--data", "photos", "--test-classes", "thing0", "--output", "run", "--resume", *QUICK)),
        (
            free_port(),
            True,
            (*training("damaged"), "--resident", "no", "--output", "other", "--training.latent-classes", 0, *QUICK),
        ),
    ]
    (root / "asked.json").write_text(json.dumps([(port, one, list(map(str, given))) for port, one, given in asked]))
    (root / "commands.py").write_text(COMMANDS)
    ended = side_by_side(machines, root / "commands.py", root / "asked.json")
    found = [
        [(int((machine / f"code {i}.txt").read_text()), (machine / f"said {i}.txt").read_text()) for machine in machines]
        for i in range(len(asked))
    ]
    return machines, found, ended


def test_of_several_processes_the_first_says_what_is_wrong_for_all(commands):
    machines, (((code, text), (other_code, other_text)), _, _), _ = commands
    assert code == other_code == 2
    assert (text + other_text).count("cyctr: nowhere: no such folder") == 1
    assert not any((machine / "out").exists() for machine in machines)


def test_the_whole_command_resumes_where_only_the_first_machine_has_the_run(commands):
    machines, (_, ((code, text), (other_code, other_text)), _), _ = commands
    assert (code, other_code) == (0, 0), text + other_text
    assert "going on after 4 episodes" in text
    assert RunFolder(machines[0] / "run").load_state()[1].step == 2
    assert not (machines[1] / "run").exists()


def test_what_one_process_alone_meets_it_tells_itself_and_the_other_says_that_it_is_gone(commands):
    _, (_, _, ((code, text), (other_code, other_text))), ended = commands
    assert (code, other_code) == (2, 2), text + other_text
    assert re.fullmatch(r"cyctr: rank 1: damaged/images/\d\d\.png: damaged or cut short .*\n", other_text)
    assert re.findall(r"cyctr: .*", text) == [text.splitlines()[-1]]
    assert text.splitlines()[-1].startswith("cyctr: another process of this run has ended")
    assert "Traceback" not in text + "".join(text for _, text in ended)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_an_error_of_its_own_device_is_not_taken_for_the_end_of_another_process(kind):
    with pytest.raises(kind, match="CUDA error"), _together():
        raise kind("CUDA error: an illegal memory access was encountered")
    with pytest.raises(PeerError, match=r"has ended, or cannot be reached \(Connection closed by peer\)"), _together():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer. Some more\nof it")
