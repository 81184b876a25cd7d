"""Negatives: images without the class are background, and nothing else."""

import numpy as np
import pytest
import torch
from making import most_memory
from PIL import Image
from segmenting import scene

from cyctr.errors import DataError
from cyctr.inference.matching import balanced
from cyctr.inference.supports.encoded import read_support
from cyctr.inference.supports.shots import find_negatives
from cyctr.methods.base import Matching
from cyctr.methods.cyctr.extras.votes import vote_map


@pytest.fixture
def shown():
    return scene((60, 70), 0)


@pytest.fixture
def without():
    return [np.random.default_rng(seed).integers(0, 256, (50, 40, 3)).astype(np.uint8) for seed in (1, 2)]


def test_tokens_of_negatives_are_background_and_take_none_from_the_labelled_images(segmenter, shown, without):
    plain = segmenter.encode_support(*shown)
    found = segmenter.encode_support(*shown, negatives=without)
    assert (found.shots, found.negatives, len(found.images)) == (1, 2, len(plain.images) + 2)
    tokens, cells = found.encoded, found.encoded.grid[0] * found.encoded.grid[1]
    of_negative = tokens.index >= cells * len(plain.images)
    assert (of_negative & tokens.valid).any()
    assert not (tokens.is_foreground & of_negative & tokens.valid).any()
    assert int((tokens.is_foreground & tokens.valid).sum()) >= int((plain.encoded.is_foreground & plain.encoded.valid).sum())
    torch.testing.assert_close(tokens.prototype, plain.encoded.prototype)


def test_a_negative_never_raises_what_matching_says(segmenter, shown, without):
    support = segmenter.encode_support(*shown, negatives=without).encoded
    cells = support.grid[0] * support.grid[1]
    labelled = support.valid & (support.index < cells)
    query = torch.randn(1, support.voters[0].shape[-1], 6, 6, generator=torch.Generator().manual_seed(0))
    shares = [vote_map(query, support.voters[0], support.is_foreground, valid, 0.05) for valid in (labelled, support.valid)]
    matching = Matching(query, support.is_foreground, support.valid, support.index // cells)
    alone, joined = (balanced(share, matching, labelled=1) for share in shares)
    assert (joined <= alone + 1e-6).all() and (joined < alone).any()


def test_a_mask_of_zeros_beside_others_is_a_negative(segmenter, shown, without):
    image, mask = shown
    given = segmenter.encode_support(image, mask, negatives=without[:1])
    drawn = segmenter.encode_support([without[0], image], [np.zeros(without[0].shape[:2], bool), mask])
    assert drawn.negatives == 1 and drawn.digest == given.digest


def test_negatives_survive_a_file_and_older_files_have_none(segmenter, shown, without, tmp_path):
    support = segmenter.encode_support(*shown, negatives=without)
    support.save(tmp_path / "disc.cyctr")
    again = segmenter.load_support(tmp_path / "disc.cyctr")
    assert (again.shots, again.closer, again.negatives) == (support.shots, support.closer, support.negatives)
    torch.testing.assert_close(again.encoded.tokens, support.encoded.tokens)


def test_negatives_alone_or_labelled_or_marked_are_refused(segmenter, shown, without, tmp_path):
    image, mask = shown
    with pytest.raises(DataError, match="2 negatives and no labelled image; expected one or more"):
        segmenter.encode_support([], [], negatives=without)
    with pytest.raises(DataError, match=r"masks\[0\]: marks nothing"):
        segmenter.encode_support(image, np.zeros(image.shape[:2], bool))
    with pytest.raises(DataError, match=r"negatives\[1\] is labelled image 1, which shows the class"):
        segmenter.encode_support(image, mask, negatives=[without[0], image])
    support = segmenter.encode_support(image, mask, negatives=without)
    support.labels[-1, :3, :3] = 1
    support.save(tmp_path / "disc.cyctr")
    with pytest.raises(DataError, match="is of a negative and marks something"):
        read_support(tmp_path / "disc.cyctr")


def test_in_tiles_a_negative_is_the_window_in_its_middle(segmenter):
    image, mask = np.zeros((400, 500, 3), np.uint8), np.zeros((400, 500), bool)
    mask[300:340, 400:450] = True
    other = np.zeros((300, 300, 3), np.uint8)
    other[100:200, 100:200] = 200
    found = segmenter.encode_support(image, mask, tile=100, negatives=other)
    assert (found.images[-1] == 200).all()


@pytest.mark.parametrize("kind", ["labelled", "empty", "negative"])
def test_only_one_image_is_in_memory_however_many_are_given(segmenter, tmp_path, kind):
    image, mask = scene((900, 800), 0)
    paths = [tmp_path / f"{number}.png" for number in range(8)]
    for number, path in enumerate(paths):
        Image.fromarray(image + np.uint8(number)).save(path, compress_level=0)
    masks = [np.zeros_like(mask) if number and kind == "empty" else mask for number in range(8)]

    def encode(count):
        labelled = 1 if kind == "negative" else count
        return segmenter.encode_support(paths[:labelled], masks[:labelled], negatives=paths[labelled:count])

    encode(1)
    one, many = (most_memory(lambda count=count: encode(count)) for count in (2, 8))
    assert many < one + image.size / 2


def test_a_folder_of_negatives_holds_images_and_no_mask_that_marks(tmp_path, without):
    with pytest.raises(DataError, match="no such folder"):
        find_negatives(tmp_path / "missing")
    with pytest.raises(DataError, match="holds no image"):
        find_negatives(tmp_path)
    for number, image in enumerate(without):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    blank = np.zeros((50, 40), np.uint8)
    Image.fromarray(blank).save(tmp_path / "0_mask.png")
    assert [path.name for path in find_negatives(tmp_path)] == ["0.png", "1.png"]
    blank[4:9, 4:9] = 255
    Image.fromarray(blank).save(tmp_path / "0_mask.png")
    with pytest.raises(DataError, match=r"0_mask\.png: marks something; a negative shows nothing"):
        find_negatives(tmp_path)
