import numpy as np
import pytest
import torch
from making import tiny
from segmenting import MODEL, scene

from cyctr.errors import ConfigError
from cyctr.inference import Segmenter
from cyctr.inference.feature_cache import FeatureCache
from cyctr.types import Features


def images(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 16, 16), generator=generator, dtype=torch.uint8)


class Extract:
    """A backbone that counts what it is given."""

    def __init__(self):
        self.seen = 0

    def __call__(self, given):
        self.seen += len(given)
        pixels = given.float() / 7
        return Features((pixels[:, :, ::4, ::4], pixels.mean(1, keepdim=True)[:, :, ::8, ::8] * 1e-3))


def equal(one, other):
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one.maps, other.maps, strict=True))


def test_features_are_made_once_and_are_the_same_when_they_are_read_again(tmp_path):
    extract, given = Extract(), images(4)
    first = FeatureCache(tmp_path).features(given, "a", extract)
    again = FeatureCache(tmp_path).features(given, "a", extract)
    assert extract.seen == 4 and equal(first, again)
    for maps, exact in zip(first.maps, Extract()(given).maps, strict=True):
        torch.testing.assert_close(maps, exact, rtol=1e-3, atol=1e-6)


def test_of_a_batch_only_what_is_not_known_is_made(tmp_path):
    cache, extract, given = FeatureCache(tmp_path), Extract(), images(5)
    known = cache.features(given[[1, 3]], "a", extract)
    every = cache.features(given, "a", extract)
    assert extract.seen == 5 and (cache.hits, cache.misses) == (2, 5)
    assert equal(every.one(1), known.one(0)) and equal(every.one(3), known.one(1))
    apart = Features.join([FeatureCache(tmp_path / "other").features(one[None], "a", Extract()) for one in given])
    assert equal(every, apart)


def test_another_network_another_size_and_another_pixel_are_other_features(tmp_path):
    cache, extract, given = FeatureCache(tmp_path), Extract(), images(1)
    changed = given.clone()
    changed[0, 2, 15, 15] ^= 1
    for made_by, one in (("a", given), ("b", given), ("a", changed), ("a", given[:, :, :8, :])):
        cache.features(one, made_by, extract)
    assert extract.seen == 4


def test_the_oldest_go_when_there_are_too_many_bytes_and_what_is_asked_for_stays(tmp_path):
    extract = Extract()
    cache = FeatureCache(tmp_path, most=3 * FeatureCacheSize.of(tmp_path / "one"))
    cache.features(images(3), "a", extract)
    cache.features(images(3)[:1], "a", extract)  # is the newest now
    cache.features(images(1, seed=9), "a", extract)
    assert cache.nbytes <= cache.most and len(list(tmp_path.glob("*.features"))) == 3
    made = extract.seen
    cache.features(images(3)[:1], "a", extract)
    assert extract.seen == made
    cache.features(images(3)[1:2], "a", extract)
    assert extract.seen == made + 1
    assert FeatureCache(tmp_path, cache.most).nbytes == cache.nbytes


class FeatureCacheSize:
    @staticmethod
    def of(folder):
        cache = FeatureCache(folder)
        cache.features(images(1), "a", Extract())
        return cache.nbytes


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-7], lambda c: c[:40] + bytes([c[40] ^ 1]) + c[41:], lambda c: b"", lambda c: c + b"x"]
)
def test_a_damaged_file_is_made_again(tmp_path, damage):
    cache, extract = FeatureCache(tmp_path), Extract()
    first = cache.features(images(1), "a", extract)
    (path,) = tmp_path.glob("*.features")
    path.write_bytes(damage(path.read_bytes()))
    assert equal(cache.features(images(1), "a", extract), first) and extract.seen == 2
    assert equal(FeatureCache(tmp_path).features(images(1), "a", extract), first) and extract.seen == 2


def test_files_that_are_removed_meanwhile_are_made_again(tmp_path):
    cache, extract = FeatureCache(tmp_path), Extract()
    first = cache.features(images(2), "a", extract)
    for path in tmp_path.glob("*.features"):
        path.unlink()
    assert equal(cache.features(images(2), "a", extract), first) and extract.seen == 4
    cache.clear()
    assert not list(tmp_path.iterdir()) and cache.nbytes == 0


def test_a_folder_that_cannot_be_written_keeps_nothing_and_answers(tmp_path):
    (tmp_path / "file").write_text("")
    cache, extract = FeatureCache(tmp_path / "file" / "below"), Extract()
    assert equal(cache.features(images(2), "a", extract), cache.features(images(2), "a", extract))
    assert extract.seen == 4


def test_what_does_not_fit_16_bits_is_given_as_it_is(tmp_path):
    cache = FeatureCache(tmp_path)
    large = cache.features(images(1), "a", lambda given: Features((given.float() * 1e6,)))
    assert torch.equal(large.maps[0], images(1).float() * 1e6) and not list(tmp_path.glob("*.features"))


def test_a_segmenter_that_remembers_answers_alike_and_asks_the_backbone_once(tmp_path, monkeypatch):
    segmenter, plain = (Segmenter(tiny(MODEL), size=65, device="cpu") for _ in range(2))
    segmenter.remember_features(tmp_path)
    seen, backbone = [], segmenter.network.model.backbone.forward
    monkeypatch.setattr(segmenter.network.model.backbone, "forward", lambda given: seen.append(len(given)) or backbone(given))
    photos = [scene((60, 80), seed)[0] for seed in range(4)]
    one, two = (segmenter.encode_support(*scene((60, 80), seed), name="disc") for seed in (10, 11))
    first = [result.classes["disc"] for result in segmenter.segment_many(photos, one, zoom=False)]
    made = sum(seen)
    for _ in range(2):
        again = [result.classes["disc"] for result in segmenter.segment_many(photos, one, zoom=False)]
        assert all(np.array_equal(a.probability, b.probability) for a, b in zip(first, again, strict=True))
    list(segmenter.segment_many(photos, two, zoom=False))
    assert sum(seen) == made
    support = plain.encode_support(*scene((60, 80), 10), name="disc")
    for found, photo in zip(first, photos, strict=True):
        exact = plain.segment(photo, support, zoom=False)
        np.testing.assert_allclose(found.probability, exact.probability, atol=0.02)
        assert abs(found.confidence - exact.confidence) < 0.01


def test_a_bound_that_is_no_number_of_bytes_is_refused():
    segmenter = Segmenter(tiny(MODEL), size=65, device="cpu")
    with pytest.raises(ConfigError, match="expected a number of bytes"):
        segmenter.remember_features("x", most=-1)
