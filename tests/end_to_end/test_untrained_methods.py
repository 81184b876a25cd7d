"""Methods that learn nothing, in `cyctr segment` and `cyctr explain`."""

import json

import numpy as np
import pytest
from making import assert_one_line
from PIL import Image
from segmenting import labelled, photos

from cyctr.inference import Segmenter, read_supports

TINY = ("--weights", "tiny", "--device", "cpu")


@pytest.fixture(scope="module")
def disc(tmp_path_factory):
    return labelled(tmp_path_factory.mktemp("supports") / "disc")


@pytest.fixture
def queries(tmp_path):
    return photos(tmp_path / "queries", 2)


@pytest.mark.parametrize("name", ["prototype", "prior:0.6", "own_method:Alike"])
def test_a_method_that_learns_nothing_segments_by_its_name(run, disc, queries, tmp_path, name):
    output = tmp_path / "out"
    code, _, error = run("segment", "--support", disc, "--query", queries, "--output", output, "--method", name, *TINY)
    assert (code, error) == (0, "")
    segmenter = Segmenter.from_method(name, weights="tiny", device="cpu")
    (support,) = segmenter.encode_supports(read_supports(disc)).values()
    paths = sorted(path for path in queries.iterdir() if path.suffix != ".txt")
    for path, expected in zip(paths, segmenter.segment_many(paths, support), strict=True):
        written = np.asarray(Image.open(next(output.rglob(f"masks/{path.stem}*.png"))))
        assert np.array_equal(written > 0, expected.classes[support.name].mask)
    assert json.loads((output / "run.json").read_text())["model"].startswith(name)


def test_the_supports_of_one_method_are_not_those_of_another():
    names = ("prototype", "prototype:mid", "prior", "prior:0.6", "own_method:Alike")
    assert len({Segmenter.from_method(name, weights="tiny", device="cpu").digest for name in names}) == len(names)


@pytest.mark.parametrize("command", ["segment", "explain"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "cyclops"), "method is 'cyclops'; expected prior, prototype, or package.module:Class of your own"),
        (("--method", "nowhere.at.all:Method"), "nowhere.at.all cannot be imported"),
        (("--method", "own_method:NoMethod"), "NoMethod is no method"),
        (
            ("--method", "own_method:Pyramid"),
            f"which learns {16 * (48 + 64 + 64 + 3):,} numbers; expected the path of a checkpoint",
        ),
        (
            ("--method", "panet"),
            "needs trained weights; train it with `cyctr train --method panet`, and give its",
        ),
        (("--method", "lite0"), "has trained weights; give it as --model"),
        (("--method", "background"), "which looks at no image; expected one that does, such as prior, prototype"),
        (("--method", "prior:7"), "expected a threshold from 0 to 1"),
        (("--method", "prototype", "--model", "lite0"), "a checkpoint names its method: leave one of them out"),
        (("--weights", "tiny"), "--weights is tiny without --method"),
    ],
)
def test_a_method_that_cannot_be_opened_is_one_line(run, disc, queries, tmp_path, command, options, words):
    query = queries if command == "segment" else next(queries.iterdir())
    given = ("--support", disc, "--query", query, "--output", tmp_path / "out.png", *options)
    weights = () if "--weights" in options else ("--weights", "tiny") if "--method" in options else ()
    assert_one_line(run(command, *given, *weights), words)
    assert not (tmp_path / "out.png").exists()


def test_a_method_that_does_not_explain_itself_says_so(run, disc, queries, tmp_path):
    given = ("--support", disc, "--query", next(queries.iterdir()), "--output", tmp_path / "why.png")
    words = "prototype is of NearestPrototype, which does not explain itself; choose a network that does, such as lite0"
    assert_one_line(run("explain", *given, "--method", "prototype", *TINY), words)
