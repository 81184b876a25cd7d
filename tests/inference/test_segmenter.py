"""The Segmenter: whatever is given, masks at each image's own size, the same however they are asked for."""

import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from making import answered, tiny
from PIL import Image
from segmenting import MODEL as CONFIG
from segmenting import checkpoint, scene

from cyctr.config import BackboneConfig
from cyctr.errors import CheckpointError, ConfigError, DataError
from cyctr.images import geometry as transforms
from cyctr.images.edges import follow_edges
from cyctr.images.geometry import fit_image, planes, restore
from cyctr.inference import Box, Polygons, Segmenter, looking, predictor, reading_ahead, tiles
from cyctr.inference import result as result_module
from cyctr.inference import segmenter as segmenter_module
from cyctr.inference.confidence import Calibration
from cyctr.inference.result import ImageResult, Segmentation
from cyctr.inference.tiles import Window
from cyctr.methods.cyctr.network import build

SIZES = ((40, 50), (90, 30), (65, 65), (31, 200))


@pytest.fixture
def images():
    return [scene(size, seed)[0] for seed, size in enumerate(SIZES)]


def test_results_have_each_images_own_size_and_come_in_order(segmenter, disc, images):
    results = list(segmenter.segment_many(images, disc))
    assert [result.place for result in results] == [0, 1, 2, 3]
    for result, image in zip(results, images, strict=True):
        found = result.classes["disc"]
        assert found.size == image.shape[:2] == found.mask.shape == found.probability.shape
        assert found.probability.dtype == np.float32 and 0 <= found.probability.min() <= found.probability.max() <= 1
        assert np.array_equal(found.mask, found.probability > 0.5)
        assert 0 <= found.confidence <= 1
        assert result.image is found.image and np.array_equal(found.image, image)


def test_nothing_is_marked_of_what_is_probably_absent_where_that_is_wanted(segmenter, disc, images, monkeypatch):
    for sure in (0.3, 0.7):
        monkeypatch.setattr(segmenter_module, "confidence", lambda *_, sure=sure: sure)
        usual, dropped = (segmenter.segment(images[0], disc, drop_absent=drop) for drop in (False, True))
        assert usual.mask.any() and dropped.mask.any() == dropped.present == (sure > 0.5)
        assert np.array_equal(usual.probability, dropped.probability)


@pytest.mark.parametrize("measured", [False, True])
def test_the_confidence_of_a_tuned_backbone_is_another_than_of_the_same_frozen(images, monkeypatch, measured):
    name = ", tuned" if measured else ""
    monkeypatch.setattr(predictor, "CALIBRATIONS", {name: Calibration(bias=50.0, slope=0.0, per_log_shot=0.0)})
    for tuned in (False, True):
        certain = tuned == measured
        made = Segmenter(build(replace(CONFIG, backbone=BackboneConfig("tiny", tuned=tuned))), 65, "cpu")
        found = made.segment(images[0], made.encode_support(*scene((40, 50), 9)))
        assert (found.confidence == 1) == certain


@pytest.mark.parametrize("pays", [False, True])
def test_half_precision_is_taken_where_it_pays_and_answers_alike(images, monkeypatch, pays):
    monkeypatch.setattr(predictor, "half_pays", lambda device: pays)
    half = {name: Segmenter(tiny(CONFIG), 65, "cpu", name) for name in ("auto", "float32", "bfloat16")}
    assert {name: made.network.half for name, made in half.items()} == {"auto": pays, "float32": False, "bfloat16": True}
    found = {}
    for name, made in half.items():
        support = made.encode_support(*scene((40, 50), 9))
        found[name] = [one.classes["object"].probability for one in made.segment_many(images, support)]
    for one, other, same in zip(*(found[name] for name in ("float32", "bfloat16", "auto")), strict=True):
        assert np.array_equal(same, other if pays else one)
        assert np.abs(one - other).mean() < 0.01


@pytest.mark.parametrize("setting", ["flip", "fill_holes", "drop_absent"])
@pytest.mark.parametrize("value", ["no", 1, None])
def test_a_choice_that_is_neither_true_nor_false_is_refused(segmenter, disc, images, setting, value):
    with pytest.raises(ConfigError, match=rf"{setting} is {value!r}; expected True or False"):
        segmenter.segment(images[0], disc, **{setting: value})


@pytest.mark.parametrize("size", ["a", 0, 63, 100_000, True, 200.0])
def test_a_size_that_is_none_is_refused(size, tmp_path):
    path = checkpoint(tmp_path / "network.safetensors")
    with pytest.raises(ConfigError, match=r"size is .*; expected 64 to 4096 pixels"):
        Segmenter.from_pretrained(path, size=size, device="cpu")


@pytest.mark.parametrize("name", [5, "", None])
def test_names_that_are_none_are_refused(segmenter, images, name):
    with pytest.raises(ConfigError, match=r"name is .*; expected that of the class"):
        segmenter.encode_support(images[0], np.eye(40, 50, dtype=bool), name=name)
    if name == 5:
        with pytest.raises(ConfigError, match="name is 5; expected lite0 or resnet50, or the path"):
            Segmenter.from_pretrained(name)


@pytest.mark.parametrize(("tile", "remedy"), [(None, "mark the object alone$"), (64, "or take a larger tile than 64$")])
def test_a_mask_that_leaves_no_background_is_warned_of(segmenter, tile, remedy):
    image, mask = scene((90, 80), 1)
    full = np.ones((90, 80), bool)
    with pytest.warns(UserWarning, match=f"'cup': mask 2 of 2 leaves no background, .*; .*{remedy}"):
        segmenter.encode_support([image, image], [mask, full], name="cup", tile=tile)
    with pytest.warns(UserWarning, match="mask 1 and 1 more of 2 leaves no background"):
        segmenter.encode_support([image, image], [full, Box(0, 0, 80, 90)])


def test_what_stands_in_a_console_is_one_short_line(segmenter, disc, images):
    (result,) = segmenter.segment_many(images[:1], disc)
    found = result.classes["disc"]
    assert repr(disc).startswith("<EncodedSupport 'disc': ") and repr(disc).endswith(" labelled>")
    assert repr(found) == f"<Segmentation 40 x 50: {100 * found.mask.mean():.1f} % marked, confidence {found.confidence:.2f}>"
    assert repr(result) == f"<ImageResult 0: {{'disc': {found!r}}}>"


def test_no_class_keeps_a_speck_where_another_one_takes_the_rest_of_a_region(images):
    def flat(value, rows):
        mask = np.zeros((40, 50), bool)
        mask[rows] = True
        return Segmentation(np.where(mask, np.float32(value), np.float32(0)), mask, 1.0, images[0])

    below, above = flat(0.6, slice(10, 20)), flat(0.9, slice(11, 30))
    below.probability[15, :3] = 0.95  # a speck of it amid the other
    for smallest, left in ((0, 53), (4, 50), (51, 0)):
        result = ImageResult(None, 0, {"below": below, "above": above}, smallest)
        assert result.disjoint["below"].sum() == left and result.disjoint["above"].sum() == 19 * 50 - 3
        assert np.array_equal(result.labels == 1, result.disjoint["below"])


def test_without_votes_the_answer_is_the_networks_own(segmenter, disc, images):
    for image in images:
        inputs = fit_image(planes(image), segmenter.network.input)[None]
        model = segmenter.network.model
        with torch.inference_mode():
            answer = answered(model, inputs, disc.encoded)
            expected = restore(answer.probability, image.shape[:2], segmenter.network.input)[0]
        found = segmenter.segment(image, disc, votes=0, edges=False).probability
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_votes_are_a_weighted_mean_with_plain_matching(segmenter, disc, images):
    none, half, all_ = (segmenter.segment(images[0], disc, votes=weight, edges=False).probability for weight in (0, 0.5, 1))
    np.testing.assert_allclose(half, (none + all_) / 2, atol=1e-5)
    assert np.abs(none - all_).max() > 0.01


def test_the_answer_follows_the_edges_of_the_image_unless_it_should_not(segmenter, disc):
    image = scene((65, 65), 7)[0]  # as the network sees it
    plain = segmenter.segment(image, disc, edges=False).probability
    expected = follow_edges(planes(image)[None], torch.from_numpy(plain)[None])[0].numpy()
    found = segmenter.segment(image, disc).probability
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - plain).max() > 0.001
    mirrored = segmenter.segment(image[:, ::-1], disc).probability[:, ::-1]
    np.testing.assert_allclose(segmenter.segment(image, disc, flip=True).probability, (found + mirrored) / 2, atol=1e-5)


def test_plain_matching_counts_one_half_unless_it_is_said(segmenter, disc, images):
    said = [segmenter.segment(images[0], disc, **given).probability for given in ({}, {"votes": None}, {"votes": 0.5})]
    np.testing.assert_array_equal(said[0], said[1])
    np.testing.assert_array_equal(said[0], said[2])


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_the_batch_changes_nothing(segmenter, disc, images, batch):
    expected = [segmenter.segment(image, disc).probability for image in images]
    for result, one in zip(segmenter.segment_many(images, disc, batch=batch), expected, strict=True):
        np.testing.assert_allclose(result.classes["disc"].probability, one, atol=1e-5)


def test_several_classes_are_found_as_each_alone_and_the_backbone_sees_an_image_once(segmenter, disc, images, monkeypatch):
    other = segmenter.encode_support(*scene((70, 70), 9), name="other")
    alone = {name: segmenter.segment(images[0], one).probability for name, one in (("a", disc), ("b", other))}
    seen = []
    backbone = segmenter.network.model.backbone
    monkeypatch.setattr(backbone, "forward", lambda x, real=backbone.forward: (seen.append(len(x)), real(x))[1])
    (result,) = segmenter.segment_many(images[:1], {"a": disc, "b": other})
    assert seen == [1]
    assert list(result.classes) == ["a", "b"]
    for name, found in result.classes.items():
        np.testing.assert_allclose(found.probability, alone[name], atol=1e-5)


def test_one_label_per_pixel_is_that_of_the_likeliest_class_above_the_threshold(segmenter, disc, images):
    other = segmenter.encode_support(*scene((70, 70), 9), name="other")
    (result,) = segmenter.segment_many(images[:1], {"a": disc, "b": other}, threshold=0.4)
    stacked = np.stack([one.probability for one in result.classes.values()])
    expected = np.where(stacked.max(0) > 0.4, stacked.argmax(0) + 1, 0)
    assert np.array_equal(result.labels, expected)
    assert np.array_equal(result.disjoint["a"], expected == 1)


def test_with_flip_the_answer_to_a_mirror_image_is_the_mirrored_answer(segmenter, disc, images):
    for image in images[:2]:
        straight = segmenter.segment(image, disc, flip=True).probability
        mirrored = segmenter.segment(image[:, ::-1], disc, flip=True).probability
        np.testing.assert_allclose(mirrored[:, ::-1], straight, atol=1e-4)


def test_several_scales_are_averaged(segmenter, disc, images):
    one, other = (segmenter.segment(images[2], disc, scales=(scale,)).probability for scale in (1.0, 1.5))
    both = segmenter.segment(images[2], disc, scales=(1.0, 1.5)).probability
    np.testing.assert_allclose(both, (one + other) / 2, atol=1e-5)
    assert np.abs(one - other).max() > 1e-4


def test_a_tile_as_large_as_the_image_is_the_image(segmenter, disc, images):
    same = replace(disc, tile=200)
    whole, tiled = (segmenter.segment(images[3], one, tile=one.tile).probability for one in (disc, same))
    assert np.array_equal(whole, tiled)


def test_tiles_leave_no_seams(segmenter, disc):
    image, _ = scene((300, 260), 3)
    smooth = np.asarray(Image.fromarray(image).resize((26, 30)).resize((260, 300)))
    found = segmenter.segment(smooth, replace(disc, tile=128), tile=128, overlap=0.5).probability
    assert np.isfinite(found).all()
    steps = max(np.abs(np.diff(found, axis=axis)).max() for axis in (0, 1))
    assert steps < 0.15  # between neighbours, nowhere a jump


def test_a_support_is_cut_around_its_object_where_queries_are_looked_at_in_tiles(segmenter):
    image, mask = np.zeros((400, 500, 3), np.uint8), np.zeros((400, 500), bool)
    mask[300:340, 400:450] = True
    image[mask] = 255
    cut = segmenter.encode_support(image, mask, tile=100)
    share = float((cut.labels == 1).sum() / (cut.labels != 255).sum())
    assert share == pytest.approx(mask.sum() / 100**2, rel=0.1)
    assert cut.tile == 100


def corner(size=(200, 300), thing=30):
    """A noisy image with a small bright square in a corner, and where that is."""
    mask = np.zeros(size, bool)
    mask[10 : 10 + thing, 20 : 20 + thing] = True
    noise = np.random.default_rng(0).integers(0, 120, (*size, 3))
    return (noise + 120 * mask[..., None]).astype(np.uint8), mask


def test_what_is_small_in_a_labelled_image_is_a_further_shot_and_what_is_large_is_not(segmenter):
    small, large = segmenter.encode_support(*corner()), segmenter.encode_support(*corner(thing=150))
    assert (small.shots, small.closer, len(small.images)) == (1, 1, 2)
    assert (large.shots, large.closer, len(large.images)) == (1, 0, 1)
    shares = [float((label == 1).sum() / (label != 255).sum()) for label in small.labels]
    assert shares[0] < 0.02 and shares[1] > 0.2
    assert segmenter.encode_support(*corner(), tile=100).closer == 0
    both = segmenter.encode_support(*zip(corner(thing=150), corner(), strict=True))
    assert (both.shots, both.closer) == (2, 1)


def test_closer_looks_take_no_more_tokens_than_the_labelled_images_alone(segmenter):
    found = segmenter.encode_support(*corner()).encoded
    assert found.tokens.shape[1] <= segmenter.network.model.config.sampling.tokens_per_shot
    assert {int(cells) for cells in found.index[found.valid] // (found.grid[0] * found.grid[1])} == {0, 1}


def test_closer_looks_survive_a_file(segmenter, tmp_path):
    support = segmenter.encode_support(*corner(), name="speck")
    again = saved(segmenter, support, tmp_path / "speck.cyctr")
    assert (again.shots, again.closer) == (1, 1)
    torch.testing.assert_close(again.encoded.tokens, support.encoded.tokens)


def test_zoom_looks_again_at_what_is_small_and_leaves_the_rest_as_it_was(segmenter, disc, monkeypatch):
    window = Window(10, 20, 100, 100)
    monkeypatch.setattr(looking, "closer", lambda marked, most: window)
    image = scene((200, 300), 3)[0]
    whole, found = (segmenter.segment(image, disc, zoom=zoom).probability for zoom in (False, True))
    part = segmenter.segment(image[window.slices], disc, zoom=False).probability
    np.testing.assert_allclose(found[window.slices], part, atol=1e-5)
    found[window.slices] = whole[window.slices]
    np.testing.assert_array_equal(found, whole)


def test_zoom_looks_no_second_time_where_things_are_large_or_in_tiles(segmenter, disc, monkeypatch):
    looks = []
    at = looking._look_at
    monkeypatch.setattr(looking, "_look_at", lambda network, images, *rest: (looks.append(1), at(network, images, *rest))[1])
    monkeypatch.setattr(looking, "closer", lambda marked, most: None)
    segmenter.segment(scene((200, 300), 3)[0], disc)
    assert sum(looks) == 1
    monkeypatch.setattr(looking, "closer", lambda marked, most: 1 / 0)
    segmenter.segment(scene((200, 300), 3)[0], replace(disc, tile=100), tile=100)


def test_a_support_and_images_that_are_cut_in_different_ways_are_remarked_on(segmenter, disc, images):
    cut = replace(disc, tile=100)
    with pytest.warns(UserWarning, match="'disc' was cut in windows of 100 pixels, and whole images are .* use tile 100, or"):
        segmenter.segment(images[0], cut)
    with pytest.warns(UserWarning, match="'disc' is of whole images, and .* windows of 64: .* use no tile, or .* with tile 64"):
        segmenter.segment(images[0], disc, tile=64)
    with pytest.warns(UserWarning, match="cut in windows of 100 pixels, and .* windows of 64"):
        segmenter.segment_many(images, {"disc": cut}, tile=64)
    segmenter.segment(images[0], cut, tile=100)  # warnings are errors here


def test_supports_that_are_none_or_have_no_names_are_refused(segmenter, disc, images):
    with pytest.raises(DataError, match="a support is str; expected what encode_support gives"):
        segmenter.segment(images[0], "disc")
    with pytest.raises(DataError, match="supports are list; expected one, or several by name"):
        segmenter.segment_many(images, [disc])


def test_large_images_are_held_a_few_at_a_time_and_read_a_few_ahead(segmenter, disc, images, monkeypatch):
    chunks, read = [], []
    looked, to_image = segmenter_module.look, reading_ahead.to_image

    def look(network, images, *rest):
        chunks.append([image.shape[0] * image.shape[1] for image in images])
        return looked(network, images, *rest)

    monkeypatch.setattr(segmenter_module, "look", look)
    monkeypatch.setattr(reading_ahead, "to_image", lambda *given: (read.append(1), to_image(*given))[1])
    usual = list(segmenter.segment_many(images * 3, disc, batch=4))
    assert list(map(len, chunks)) == [4, 4, 4]
    monkeypatch.setattr(reading_ahead, "_MOST_PIXELS", 5000)  # one or two of these
    chunks.clear()
    read.clear()
    few, ahead = [], []
    for result in segmenter.segment_many(images * 3, disc, batch=4):
        few.append(result)
        ahead.append(len(read) - len(few))
    assert all(sum(areas) <= 5000 or len(areas) == 1 for areas in chunks) and max(ahead[2:]) <= 8
    assert sum(map(len, chunks)) == 12 and max(map(len, chunks)) == 2
    for one, other in zip(usual, few, strict=True):
        assert np.allclose(one.classes["disc"].probability, other.classes["disc"].probability, atol=1e-5)


def test_a_result_that_was_given_is_not_kept_meanwhile(segmenter, disc, images):
    for result in segmenter.segment_many(images, disc, batch=4):
        probability = weakref.ref(result.classes["disc"].probability)
        del result
        assert probability() is None


def test_one_segmenter_serves_many_threads(segmenter, disc, images):
    expected = [segmenter.segment(image, disc).probability for image in images]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda i: segmenter.segment(images[i % 4], disc).probability, range(16)))
    for i, one in enumerate(found):
        np.testing.assert_allclose(one, expected[i % 4], atol=1e-5)


def test_a_support_survives_pickling_and_a_file(segmenter, disc, images, tmp_path):
    expected = segmenter.segment(images[0], disc).probability
    for again in (pickle.loads(pickle.dumps(disc)), saved(segmenter, disc, tmp_path / "disc.cyctr")):
        assert again.name == "disc" and again.shots == 1 and again.digest == disc.digest
        assert np.array_equal(segmenter.segment(images[0], again).probability, expected)
    first = (tmp_path / "disc.cyctr").read_bytes()
    disc.save(tmp_path / "disc.cyctr")
    assert (tmp_path / "disc.cyctr").read_bytes() == first


def saved(segmenter, support, path):
    support.save(path)
    return segmenter.load_support(path)


def test_a_support_that_has_nothing_but_closer_looks_is_refused(segmenter, disc, tmp_path):
    replace(disc, closer=len(disc.images)).save(tmp_path / "disc.cyctr")
    with pytest.raises(DataError, match="closer looks among"):
        segmenter.load_support(tmp_path / "disc.cyctr")


@pytest.mark.parametrize("damage", ["cut", "other", "empty", "missing"])
def test_a_damaged_support_is_one_clear_line(segmenter, disc, tmp_path, damage):
    path = tmp_path / "disc.cyctr"
    if damage != "missing":
        disc.save(path)
        content = path.read_bytes()
        path.write_bytes({"cut": content[: len(content) // 2], "other": b"text", "empty": b""}[damage])
    with pytest.raises(DataError, match=r"disc\.cyctr: .*; (save it again|expected a support)"):
        segmenter.load_support(path)


def test_the_order_of_shots_does_not_matter_much_and_sizes_may_differ(segmenter, images):
    shots = [scene(size, seed) for seed, size in enumerate(SIZES[:3])]
    support = segmenter.encode_support([image for image, _ in shots], [mask for _, mask in shots])
    assert support.shots == 3
    assert segmenter.segment(images[3], support).mask.shape == SIZES[3]


def test_a_box_and_an_outline_say_as_much_as_their_mask(segmenter, images):
    mask = np.zeros((40, 50), bool)
    mask[10:30, 5:25] = True
    expected = segmenter.encode_support(images[0], mask).labels
    box = segmenter.encode_support(images[0], Box(5, 10, 25, 30))
    assert torch.equal(box.labels, expected)
    outline = segmenter.encode_support(images[0], Polygons((((5, 10), (24, 10), (24, 29), (5, 29)),)))
    assert (outline.labels == expected).float().mean() > 0.97


def test_kinds_of_images_give_the_same_answer(segmenter, disc, images, tmp_path):
    Image.fromarray(images[0]).save(tmp_path / "a.png")
    tensor = planes(images[0])
    kinds = (tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(images[0]), images[0], tensor, tensor / 255)
    answers = [segmenter.segment(kind, disc).probability for kind in kinds]
    assert all(np.array_equal(answers[0], one) for one in answers[1:])


def test_images_are_read_a_little_ahead_not_all_at_once(segmenter, disc, images):
    asked = count()

    def endless():
        while True:
            next(asked)
            yield images[0]

    results = segmenter.segment_many(endless(), disc, batch=2)
    for _ in range(3):
        next(results)
    results.close()
    assert next(asked) <= 12


def test_an_image_that_cannot_be_read_stops_all_or_is_complained_of(segmenter, disc, images, tmp_path):
    (tmp_path / "empty.jpg").touch()
    given = [images[0], tmp_path / "empty.jpg", images[1]]
    with pytest.raises(DataError, match="0 bytes"):
        list(segmenter.segment_many(given, disc))
    problems = []
    results = list(segmenter.segment_many(given, disc, complain=lambda place, error: problems.append((place, str(error)))))
    assert [result.place for result in results] == [0, 2]
    assert problems[0][0] == 1 and "0 bytes" in problems[0][1] and len(problems) == 1


def test_a_checkpoint_gives_the_same_network_each_time(disc, tmp_path):
    path = checkpoint(tmp_path / "tiny.safetensors")
    first, second = (Segmenter.from_pretrained(path, device="cpu") for _ in range(2))
    assert first.digest == second.digest == disc.model


def test_a_support_of_another_network_is_refused(segmenter, disc):
    other = Segmenter(tiny(replace(CONFIG, dim=64)), size=65, device="cpu")
    with pytest.raises(DataError, match="another network"):
        other.segment(np.zeros((40, 40, 3), np.uint8), disc)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threshold": 0}, "threshold is 0"),
        ({"tile": 10}, "tile is 10; expected at least 64"),
        ({"overlap": 1}, "overlap is 1"),
        ({"scales": ()}, "scales are"),
        ({"scales": (9,)}, "scales are"),
        ({"smallest": -1}, "smallest is -1"),
        ({"votes": 2}, "votes is 2"),
        ({"threshold": "x"}, "threshold is 'x'; expected a number"),
        ({"scales": 1.0}, "scales are 1.0; expected several"),
        ({"tile": 100.5}, "tile is 100.5; expected a whole number"),
        ({"smallest": True}, "smallest is True"),
        ({"smallest": 1.5}, "smallest is 1.5; expected a whole number of pixels"),
        ({"treshold": 0.4}, "option 'treshold' does not exist; expected threshold"),
    ],
)
def test_settings_that_make_no_sense_are_refused(segmenter, disc, images, settings, words):
    with pytest.raises(ConfigError, match=words):
        segmenter.segment(images[0], disc, **settings)


@pytest.mark.parametrize("batch", ["2", 0, 1.5, True])
def test_a_batch_that_is_no_number_of_images_is_refused(segmenter, disc, images, batch):
    with pytest.raises(ConfigError, match=f"batch is {batch!r}; expected a whole number of images, at least 1"):
        segmenter.segment_many(images, disc, batch=batch)


@pytest.mark.parametrize("given", [7, None])
def test_what_holds_no_images_is_refused(segmenter, disc, given):
    with pytest.raises(DataError, match=f"images are {given}; expected several images or paths"):
        segmenter.segment_many(given, disc)


def test_supports_that_make_no_sense_are_refused(segmenter, images):
    with pytest.raises(DataError, match="2 images and 1 masks"):
        segmenter.encode_support(images[:2], [np.ones(SIZES[0], bool)])
    with pytest.raises(DataError, match=r"masks\[0\].*marks nothing"):
        segmenter.encode_support(images[0], np.zeros(SIZES[0], bool))
    with pytest.raises(DataError, match="images are str; expected several"):
        segmenter.segment_many("table.jpg", {})
    with pytest.raises(ConfigError, match="no class"):
        segmenter.segment_many(images, {})
    with pytest.raises(CheckpointError, match="expected lite0 or resnet50"):
        Segmenter.from_pretrained("nonsense")


def test_small_regions_go_and_holes_are_filled_on_request(segmenter, disc, images):
    plain = segmenter.segment(images[2], disc)
    level = float(np.quantile(plain.probability, 0.6))
    tidy = segmenter.segment(images[2], disc, threshold=level, smallest=30, fill_holes=True)
    sizes = np.bincount(tidy.instances.ravel())[1:]
    assert (sizes >= 30).all() and list(sizes) == sorted(sizes, reverse=True)


def test_a_hole_is_filled_even_where_the_class_has_no_probability_at_all():
    probability = np.ones((5, 5), np.float32)
    probability[2, 2] = 0
    filled = Segmentation(probability, np.ones((5, 5), bool), 0.9, np.zeros((5, 5, 3), np.uint8))
    for classes in ({"one": filled}, {"one": filled, "other": replace(filled, mask=np.zeros((5, 5), bool))}):
        result = ImageResult(None, 0, classes)
        assert (result.labels == 1).all() and result.disjoint["one"].all()


def test_a_mask_is_saved_as_0_and_255_and_an_overlay_is_as_large_as_the_image(segmenter, disc, images, tmp_path):
    found = segmenter.segment(images[0], disc, threshold=0.3)
    found.save(tmp_path / "mask.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "mask.png")), found.mask * 255)
    assert found.overlay().size == (50, 40)
    with pytest.raises(DataError, match=r"end the name in \.png"):
        found.save(tmp_path / "mask.jpg")


@pytest.mark.filterwarnings("ignore:support 'disc' is of whole images")
@pytest.mark.parametrize("settings", [{}, {"edges": False}, {"flip": True}, {"tile": 64}, {"scales": (0.75, 1.0)}])
def test_a_large_image_is_worked_on_in_parts_and_the_answer_is_the_same(segmenter, disc, settings, monkeypatch):
    image = scene((150, 210), 3)[0]
    whole = segmenter.segment(image, disc, **settings)
    for module, large in ((tiles, 3000), (transforms, 3000)):
        monkeypatch.setattr(module, "_LARGE", large)
        monkeypatch.setattr(module, "_STRIP", 210 * 7)
    parts = segmenter.segment(image, disc, **settings)
    np.testing.assert_allclose(parts.probability, whole.probability, atol=2e-5)


def test_classes_are_told_apart_in_parts_as_they_are_in_whole(segmenter, disc, images, monkeypatch):
    def labels():
        (one,) = segmenter.segment_many(images[:1], {"a": disc, "b": disc}, threshold=0.1, smallest=2)
        return one.labels

    whole = labels()
    monkeypatch.setattr(result_module, "_STRIP", 100)
    assert np.array_equal(labels(), whole)
