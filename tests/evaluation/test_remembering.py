from dataclasses import replace

import pytest
import torch
from making import tiny
from measuring import CPU, SMALL, album, constant, dataset, measure, noise

from cyctr.config import BackboneConfig
from cyctr.episodes.loading import Batch
from cyctr.episodes.sampler import Draw
from cyctr.evaluation.answering import NetworkMethod
from cyctr.evaluation.protocol import Evaluation
from cyctr.evaluation.remembering import FeatureMethod, Remembering
from cyctr.evaluation.results import RunKey
from cyctr.methods.references import reference
from cyctr.types import Episode, Features, Prediction

EVERY = [RunKey(fold, shots, seed) for fold in (0, 1) for shots in (1, 2) for seed in (0, 1)]
UNLIMITED = 2**40


class Counting:
    """A method of two steps that remembers which images it was asked to encode."""

    encodes = True

    def __init__(self, method):
        self._method = method if hasattr(method, "encodes") else NetworkMethod(method, CPU, half=False)
        self.encoded = []

    def __call__(self, episode):
        self.encoded += [*episode.query_images, *episode.support_images.flatten(0, 1)]
        return self._method(episode)

    def encode(self, images):
        self.encoded += list(images)
        return self._method.encode(images)

    def match(self, query, support, episode):
        return self._method.match(query, support, episode)


class Exact:
    """Noise in two steps, every pixel on its own: the same bits in any batch."""

    encodes = True

    def __call__(self, episode):
        return self.match(self.encode(episode.query_images), self.encode(episode.support_images.flatten(0, 1)), episode)

    def encode(self, images):
        return Features((images[:, :1] * 7.0, images[:, 1:2] * 13.0))

    def match(self, query, support, episode):
        given = (support.maps[0] + support.maps[1]).unflatten(0, episode.support_labels.shape[:2])[:, :, 0]
        value = (query.maps[0] + query.maps[1])[:, 0] + (given * episode.support_labels).sum(1)
        return Prediction(torch.stack([-(value % 17 - 9), value % 17 - 9], 1))


@pytest.fixture(scope="module")
def network():
    return tiny()


@pytest.fixture(scope="module")
def evaluation():
    return Evaluation(dataset(album(rim=2)), SMALL)


def batches(evaluation, setting=EVERY[2], count=16, size=3):
    return list(evaluation.source(setting).batches(range(count), size, 1))


def bytes_of_one(network):
    features = network.backbone(torch.zeros(1, 3, 33, 33))
    return features.nbytes


def limits(network):
    """None, one image's, several images', all."""
    one = bytes_of_one(network)
    return {"nothing": 0, "too little": one - 1, "one image": one, "five images": 5 * one, "everything": UNLIMITED}


def distinct(images):
    return {image.numpy().tobytes() for image in images}


@pytest.mark.parametrize("setting", [RunKey(0, 1, 0), RunKey(1, 2, 0)], ids=["one shot", "two shots"])
@pytest.mark.parametrize("limit", ["nothing", "too little", "one image", "five images", "everything"])
def test_answers_with_remembered_features_are_those_without(network, evaluation, setting, limit):
    reply = Remembering(Counting(network), limits(network)[limit])
    with torch.inference_mode():
        for batch in batches(evaluation, setting):
            torch.testing.assert_close(reply(batch).logits, network(batch.episode).logits, atol=1e-5, rtol=1e-5)


def test_an_image_is_encoded_once_while_there_is_room(network, evaluation):
    method = Counting(network)
    reply = Remembering(method, UNLIMITED)
    met = set()
    with torch.inference_mode():
        for setting in EVERY[:4]:  # query of one episode, support of another, whatever the shots and the seed
            for batch in batches(evaluation, setting):
                reply(batch)
                met |= distinct([*batch.episode.query_images, *batch.episode.support_images.flatten(0, 1)])
                assert distinct(method.encoded) == met
                assert len(method.encoded) == len(met)
    assert len(met) == 6  # the images of the fold's two classes


def test_an_image_that_a_batch_holds_twice_is_encoded_once_even_without_memory(network, evaluation):
    method = Counting(network)
    reply = Remembering(method, 0)
    (batch,) = batches(evaluation, count=12, size=12)
    given = [*batch.episode.query_images, *batch.episode.support_images.flatten(0, 1)]
    assert len(distinct(given)) < len(given)
    with torch.inference_mode():
        for times in (1, 2):
            reply(batch)
            assert len(method.encoded) == times * len(distinct(given))


@pytest.mark.parametrize("room", [1, 2, 5])
def test_the_images_of_the_latest_batches_are_kept(network, evaluation, room):
    """A slow twin: a list of names, the latest at its end."""
    method = Counting(network)
    reply = Remembering(method, room * bytes_of_one(network))
    kept: list[int] = []
    with torch.inference_mode():
        for batch in batches(evaluation, EVERY[0], count=20, size=1):
            (draw,) = batch.draws
            wanted = {draw.query, *draw.supports}
            known = wanted & set(kept)
            before = len(method.encoded)
            reply(batch)
            assert len(method.encoded) - before == len(wanted - known)
            latest = [image for image in kept if image not in wanted]
            asked = [*known, *(image for image in (*draw.supports, draw.query) if image not in known)]
            kept = (latest + asked)[-room:]
    assert len(kept) == room


def own(query, supports, size=9):
    """A batch of one episode whose images are all of the shade of their number."""
    shade = torch.tensor([*supports, query], dtype=torch.uint8).view(1, -1, 1, 1, 1).expand(1, -1, 3, size, size)
    labels = torch.ones(1, len(supports), size, size, dtype=torch.uint8)
    return Batch((Draw(0, 0, query, supports),), Episode(shade[:, :-1], labels, shade[:, -1], labels[:, 0], trusted=True), ())


class Shades:
    """Features are the image's shade; the answer is every shade it was given."""

    encodes = True

    def __call__(self, episode):
        return self.match(self.encode(episode.query_images), self.encode(episode.support_images.flatten(0, 1)), episode)

    def encode(self, images):
        shade = images[:, :1, :1, :1].float()
        return Features((shade, -shade))

    def match(self, query, support, episode):
        shots = episode.support_images.shape[1]
        assert torch.equal(query.maps[1], -query.maps[0]) and torch.equal(support.maps[1], -support.maps[0])
        return Prediction(torch.cat([query.maps[0].unflatten(0, (-1, 1)), support.maps[0].unflatten(0, (-1, shots))], 1))


@pytest.mark.parametrize("limit", [0, 8, 24, UNLIMITED])
def test_query_and_supports_get_their_own_features_in_their_own_order(limit):
    reply = Remembering(Shades(), limit)
    for query, supports in ((1, (2, 3)), (3, (1, 2)), (2, (4, 1)), (5, (6, 7)), (7, (2, 5)), (1, (7, 3))):
        assert reply(own(query, supports)).logits.flatten().tolist() == [query, *supports]


def test_what_the_method_does_with_its_features_later_does_not_reach_those_that_are_kept(network, evaluation):
    class Careless(Counting):
        def match(self, query, support, episode):
            prediction = super().match(query, support, episode)
            for features in (query, support):
                for maps in features.maps:
                    maps.zero_()
            return prediction

    reply = Remembering(Careless(network), UNLIMITED)
    with torch.inference_mode():
        for batch in batches(evaluation):
            torch.testing.assert_close(reply(batch).logits, network(batch.episode).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("limit", [1, 20_000, UNLIMITED])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_run_that_remembers_counts_the_same_pixels(evaluation, limit, batch):
    """Two features of 33 x 33 pixels in float32 take 8,712 bytes."""
    forgetful, mindful = Counting(Exact()), Counting(Exact())
    expected = measure(forgetful, evaluation, EVERY, 11)
    assert len({row.counts for run in expected.runs.values() for row in run.rows.values()}) > 20
    assert measure(mindful, evaluation, EVERY, 11, batch=batch, remember=limit) == expected
    if limit == 1:
        assert len(mindful.encoded) > 2 * len(evaluation.pool.keys)
    if limit == UNLIMITED:
        assert len(mindful.encoded) == len(evaluation.pool.keys)  # over all folds, shots and seeds


def assert_same_but_for_rounding(one, other):
    assert one.runs.keys() == other.runs.keys()
    for setting, run in one.runs.items():
        for number, row in run.rows.items():
            counterpart = other.runs[setting].rows[number]
            assert replace(counterpart, counts=row.counts) == row
            assert abs(row.counts.true_positive - counterpart.counts.true_positive) <= 1
            assert abs(row.counts.false_positive - counterpart.counts.false_positive) <= 1


def test_a_run_of_a_network_that_remembers_counts_the_same_but_for_rounding(network, evaluation):
    forgetful, mindful = (measure(Counting(network), evaluation, EVERY, 11, remember=limit) for limit in (0, UNLIMITED))
    assert_same_but_for_rounding(forgetful, mindful)


def test_a_run_that_may_remember_nothing_asks_for_whole_episodes(network, evaluation):
    method = Counting(network)
    measure(method, evaluation, EVERY[:1], 6)
    assert len(method.encoded) == 6 * 2


@pytest.mark.parametrize("name", ["prior", "prototype:mid", "prototype:high"])
def test_references_on_a_backbone_may_be_remembered_too(name, evaluation):
    method = NetworkMethod(reference(name, BackboneConfig("tiny")), CPU, half=False)
    assert isinstance(method, FeatureMethod) and method.encodes
    assert_same_but_for_rounding(*(measure(method, evaluation, EVERY, 5, remember=limit) for limit in (0, UNLIMITED)))


@pytest.mark.parametrize("method", [noise, NetworkMethod(reference("foreground", BackboneConfig("tiny")), CPU, half=False)])
def test_a_method_without_features_answers_whole_episodes(method, evaluation):
    assert not getattr(method, "encodes", False)
    expected = noise if method is noise else constant(True)
    assert measure(method, evaluation, EVERY, 5, remember=UNLIMITED) == measure(expected, evaluation, EVERY, 5)


@pytest.mark.parametrize("precision", [False, True], ids=["float32", "bfloat16"])
def test_a_precision_holds_for_both_steps(network, evaluation, precision):
    method = NetworkMethod(network, CPU, half=precision)
    (batch,) = batches(evaluation, count=4, size=4)
    with torch.inference_mode():
        torch.testing.assert_close(
            Remembering(method, UNLIMITED)(batch).logits, method(batch.episode).logits, atol=1e-5, rtol=1e-5
        )
        support = method.encode(batch.episode.support_images.flatten(0, 1))
    assert support.maps[0].dtype == (torch.bfloat16 if precision else torch.float32)


def test_an_interrupted_run_that_remembers_goes_on(evaluation):
    method = Counting(Exact())
    few = measure(method, evaluation, EVERY[:1], 5, remember=UNLIMITED)
    whole = measure(method, evaluation, EVERY[:1], 11)
    assert measure(method, evaluation, EVERY[:1], 11, replace(few), remember=UNLIMITED) == whole
