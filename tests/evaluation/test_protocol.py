from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from measuring import CPU, NAMES, SMALL, Album, album, constant, dataset, ellipse, measure, noise, oracle
from sklearn.metrics import confusion_matrix

from cyctr.config import PROTOCOLS, InputConfig
from cyctr.errors import ConfigError, DataError
from cyctr.evaluation import protocol as protocols
from cyctr.evaluation.metrics import Counts
from cyctr.evaluation.protocol import Evaluation, in_one_step, masks
from cyctr.evaluation.results import Results, RunKey, merge
from cyctr.images.geometry import restore
from cyctr.types import Prediction

ODD = ((375, 499), (333, 500), (281, 413), (199, 201), (61, 37))
EVERY = [RunKey(fold, shots, seed) for fold in (0, 1) for shots in (1, 2) for seed in (0, 1)]


@pytest.fixture(scope="module")
def evaluation():
    return Evaluation(dataset(album(rim=2)), SMALL)


@pytest.fixture(scope="module")
def single(evaluation):
    """All runs, by one process, one episode at a time."""
    return measure(noise, evaluation, EVERY, episodes=11, batch=1)


def rows(results):
    return [row for run in results.runs.values() for row in run.rows.values()]


def test_counts_do_not_depend_on_the_number_of_workers_or_the_size_of_batches(evaluation, single):
    assert len({row.counts for row in rows(single)}) > 20  # the method does not say the same of all
    for batch, workers in ((4, 1), (3, 4), (11, 2), (100, 3)):
        fresh = Evaluation(evaluation.dataset, SMALL)
        assert measure(noise, fresh, EVERY, 11, batch=batch, workers=workers) == single


def test_the_order_of_the_runs_does_not_matter(evaluation, single):
    assert measure(noise, evaluation, EVERY[::-1], 11) == single


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_the_parts_of_three_processes_make_the_results_of_one(order, evaluation, single):
    parts = [measure(noise, Evaluation(evaluation.dataset, SMALL), EVERY, 11, part=(place, 3)) for place in order]
    assert [sorted(part.runs[EVERY[0]].rows) for part in parts] == [list(range(place, 11, 3)) for place in order]
    whole = merge(parts)
    assert whole == single
    assert whole.summary() == single.summary()


def test_a_row_names_the_class_and_the_images_that_were_drawn(evaluation, single):
    for setting in EVERY:
        sampler = evaluation.sampler(setting)
        for number, row in single.runs[setting].rows.items():
            draw = sampler(number)
            assert row.category == draw.category
            assert row.query == f"image-{draw.query}"
            assert row.supports == tuple(f"image-{i}" for i in draw.supports)
            assert len(row.supports) == setting.shots
            assert row.category in evaluation.dataset.folds[setting.fold].test
    one, other = (single.runs[RunKey(0, 2, seed)].rows for seed in (0, 1))
    assert [row.query for row in one.values()] == [row.query for row in other.values()]  # queries come in list order
    assert [row.supports for row in one.values()] != [row.supports for row in other.values()]


def test_the_protocol_decides_which_episodes_are_drawn():
    both = np.zeros((20, 20), np.uint8)
    both[:5], both[15:] = 1, 4  # an ant, which fold 0 tests, beside a dog, which it learns from
    pool = Album([*album().values, both])

    def sampler(split="test", **changes):
        return Evaluation(dataset(pool), replace(SMALL, **changes), split).sampler(RunKey(0, 1, 0))

    balanced = [sampler(order="classes")(number).category for number in range(20)]
    assert all({*balanced[i : i + 2]} == {0, 1} for i in range(0, 20, 2))
    assert [sampler(order="pairs")(number).query for number in range(7)] == [0, 1, 4, 5, 8, 9, 12]
    assert 12 in sampler().images
    assert 12 not in sampler(smallest=101).images
    assert 12 in sampler("train").images
    assert 12 not in sampler("train", drop_novel=True).images


def test_a_slow_twin_scores_every_episode_the_same(evaluation, single):
    """Resized by hand, each pixel of the image's own size looked at by scikit-learn."""
    setting = EVERY[2]
    source = evaluation.source(setting)
    for number, row in single.runs[setting].rows.items():
        draw = source.sampler(number)
        values = evaluation.pool.values[draw.query]
        height, width = values.shape
        longest = max(height, width)
        content = (round(height * 33 / longest), round(width * 33 / longest))
        logits = noise(source.load([number]).episode).logits[:, :, : content[0], : content[1]]
        large = F.interpolate(logits, (height, width), mode="bilinear", align_corners=False)[0]
        kept = values != 255
        (tn, fp), (fn, tp) = confusion_matrix((values == draw.category + 1)[kept], large.argmax(0).bool().numpy()[kept])
        assert row.counts == Counts(tp, fp, fn, tn)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("score", ["original", "input"])
def test_the_truth_itself_scores_nearly_everything_on_images_of_odd_sizes(name, score):
    protocol = replace(PROTOCOLS[name], score=score)
    results = measure(oracle, Evaluation(dataset(album(2, ODD)), protocol), [RunKey(0, 1, 0), RunKey(1, 1, 0)], 4)
    found = [run.result() for run in results.runs.values()]
    lowest = 1.0 if score == "input" else 0.97
    assert all(result.miou >= lowest and result.fb_iou >= lowest for result in found)
    if score == "original" and protocol.input.register:  # no other loss than that of pixels
        assert all(row.counts.iou > 0.99 for row in rows(results))


def test_scores_are_of_the_image_s_own_pixels_and_only_on_request_of_the_input_s():
    pool = album(2, ODD)
    sizes = dict(zip(pool.keys, (values.size for values in pool.values), strict=True))
    for score in ("original", "input"):
        evaluation = Evaluation(dataset(pool), replace(SMALL, score=score, input=InputConfig(33, fit="squash")))
        for row in rows(measure(oracle, evaluation, EVERY[:1], 8)):
            assert sum(vars(row.counts).values()) == (sizes[row.query] if score == "original" else 33 * 33)


def test_answers_lie_in_the_top_left_of_a_tensor_as_large_as_the_largest_image(evaluation):
    batch = evaluation.source(EVERY[0]).load([0, 1, 2])
    found = masks(in_one_step(noise), batch, SMALL)
    sizes = [tuple(truth.shape) for truth in batch.truths]
    assert len(set(sizes)) == 3
    assert found.shape == (3, *map(max, zip(*sizes, strict=True))) and found.dtype == torch.bool
    for mask, logits, (height, width) in zip(found, noise(batch.episode).logits, sizes, strict=True):
        background, foreground = restore(logits, (height, width), SMALL.input)
        sure = (foreground - background).abs() > 1e-4
        assert sure.float().mean() > 0.99
        assert torch.equal(mask[:height, :width][sure], (foreground > background)[sure])


def test_answers_that_are_scored_as_the_input_are_those_of_the_method(evaluation):
    batch = evaluation.source(EVERY[0]).load([0, 1, 2])
    found = masks(in_one_step(noise), batch, replace(SMALL, score="input"))
    assert found.shape == (3, 33, 33)
    assert torch.equal(found, noise(batch.episode).mask)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("where", ["original", "input"])
def test_the_scores_of_a_batch_are_those_of_its_episodes_alone(name, where):
    """On images so different that each lies on a canvas of its own when it is alone."""
    protocol = replace(PROTOCOLS[name], score=where, input=replace(PROTOCOLS[name].input, size=129))
    source = Evaluation(dataset(album(2, ODD, rim=2)), protocol).source(EVERY[0])
    reply, numbers = in_one_step(noise), range(4)
    together = protocols.score(reply, source.load(numbers), protocol)
    assert together.shape == (4, 4) and len(together.unique(dim=0)) == 4
    for number, counts in zip(numbers, together, strict=True):
        alone = source.load([number])
        (own,) = protocols.score(reply, alone, protocol)
        assert torch.equal(own, counts)
        (truth,) = alone.truths if where == "original" else alone.episode.query_labels
        assert int(counts.sum()) == int((truth != 255).sum())


@pytest.mark.parametrize("where", ["original", "input"])
def test_a_reply_is_asked_once_for_a_batch_and_scored_by_its_masks(where, evaluation):
    batch, protocol, asked = evaluation.source(EVERY[0]).load([2, 5]), replace(SMALL, score=where), []

    def reply(given):
        asked.append(given)
        return noise(given.episode)

    found = protocols.score(reply, batch, protocol)
    assert asked == [batch]
    truths = batch.truths if where == "original" else batch.episode.query_labels
    for counts, mask, truth in zip(found, masks(reply, batch, protocol), truths, strict=True):
        mask = mask[: truth.shape[0], : truth.shape[1]]
        assert Counts(*counts.tolist()).true_positive == int((mask & (truth == 1)).sum())
        assert int(counts.sum()) == int((truth != 255).sum())


def test_an_empty_answer_scores_nothing_but_the_background_s_share(evaluation):
    results = measure(constant(False), evaluation, EVERY[:1])
    result = results.runs[EVERY[0]].result()
    background = sum(int((label == 0).sum()) for label in labels(evaluation, results))
    everything = sum(int((label != 255).sum()) for label in labels(evaluation, results))
    assert result.miou == 0
    assert result.fb_iou == pytest.approx(background / everything / 2)


def test_a_full_answer_scores_the_share_of_each_class_in_its_images(evaluation):
    results = measure(constant(True), evaluation, EVERY[:1])
    result = results.runs[EVERY[0]].result()
    for category in (0, 1):
        own = labels(evaluation, results, category)
        share = sum(int((label == 1).sum()) for label in own) / sum(int((label != 255).sum()) for label in own)
        assert result.classes[category] == pytest.approx(share)
    assert result.miou == pytest.approx(np.mean(list(result.classes.values())))
    own = labels(evaluation, results)
    share = sum(int((label == 1).sum()) for label in own) / sum(int((label != 255).sum()) for label in own)
    assert result.fb_iou == pytest.approx(share / 2)


def labels(evaluation, results, category=None):
    """The label of each episode's query, once for each episode."""
    found = [row for row in rows(results) if category in (None, row.category)]
    return [evaluation.pool.label(int(row.query.removeprefix("image-")), row.category) for row in found]


def test_every_class_gets_its_own_value_under_its_own_name():
    """Each class fills another share of its images; the released code printed the values rotated by one class."""
    shares = {"ant": 10, "bee": 30, "cat": 50, "dog": 70}
    values = []
    for value, share in enumerate(shares.values(), 1):
        image = np.zeros((20, 20), np.uint8)
        image[: 20 * share // 100] = value
        values += [image, image]
    evaluation = Evaluation(dataset(Album(values), folds=((3, 1), (0, 2))), SMALL)
    results = measure(constant(True), evaluation, [RunKey(0, 1, 0), RunKey(1, 1, 0)], 8)
    (summary,) = results.summary()
    assert summary["classes"] == shares
    assert {fold: value["mean"] for fold, value in summary["folds"].items()} == {"0": 50, "1": 30}


@pytest.mark.parametrize("score", ["original", "input"])
def test_what_is_answered_on_the_padding_does_not_count(score):
    evaluation = Evaluation(dataset(), replace(SMALL, score=score))

    def careless(episode):
        """As `noise`, but everything beyond the image is foreground."""
        logits = noise(episode).logits
        beyond = beyond_image(episode)
        assert beyond.any()
        return Prediction(torch.where(beyond[:, None], torch.tensor([-9.0, 9.0])[:, None, None], logits))

    assert measure(careless, evaluation, EVERY) == measure(noise, evaluation, EVERY)


def beyond_image(episode):
    """(B, H, W) where the query is padding: the album has no other ignored pixels."""
    return episode.query_labels == 255


@pytest.mark.parametrize("score", ["original", "input"])
def test_what_is_answered_on_ignored_pixels_does_not_count(score):
    values = [ellipse((33, 33), 1 + i % 4, seed=i, rim=3) for i in range(12)]
    evaluation = Evaluation(dataset(Album(values)), replace(SMALL, score=score))

    def contrary(episode):
        logits = noise(episode).logits
        return Prediction(torch.where((episode.query_labels == 255)[:, None], -logits, logits))

    results = measure(noise, evaluation, EVERY)
    assert measure(contrary, evaluation, EVERY) == results
    decided = {f"image-{i}": int((value != 255).sum()) for i, value in enumerate(values)}
    assert all(sum(vars(row.counts).values()) == decided[row.query] < 33 * 33 for row in rows(results))


@pytest.mark.parametrize("stop", [1, 3, 7])
def test_an_interrupted_run_goes_on_where_it_stopped(stop, evaluation, single, tmp_path):
    done = []

    def interrupt(setting, run, added):
        done.append(added)
        if len(done) == stop:
            raise KeyboardInterrupt

    results = Results(single.conditions)
    with pytest.raises(KeyboardInterrupt):
        measure(noise, evaluation, EVERY, 11, results, batch=4, on_batch=interrupt)
    results.save(tmp_path / "results.json")
    found = Results.load(tmp_path / "results.json")
    assert sum(len(run.rows) for run in found.runs.values()) == sum(done) > 0
    assert not all(run.finished for run in found.runs.values())

    asked = []

    def counted(episode):
        asked.append(len(episode.query_images))
        return noise(episode)

    assert measure(counted, evaluation, EVERY, 11, found, batch=4) == single
    assert sum(asked) == 11 * len(EVERY) - sum(done)  # nothing twice


def test_a_method_that_fails_leaves_the_episodes_before_it(evaluation, single):
    calls = []

    def failing(episode):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return noise(episode)

    results = Results(single.conditions)
    with pytest.raises(KeyboardInterrupt):
        measure(failing, evaluation, EVERY, 11, results, batch=2)
    kept = results.runs[EVERY[0]].rows
    assert 2 <= len(kept) <= 6
    assert all(row == single.runs[EVERY[0]].rows[number] for number, row in kept.items())


def test_more_episodes_keep_those_that_are_there(evaluation, single):
    few = measure(noise, evaluation, EVERY[:1], 5)
    more = measure(noise, evaluation, EVERY[:1], 11, few)
    assert more.runs[EVERY[0]] == single.runs[EVERY[0]]
    fewer = measure(noise, evaluation, EVERY[:1], 3, more)
    assert fewer.runs[EVERY[0]] == single.runs[EVERY[0]]


def test_what_was_asked_for_before_is_finished_even_if_less_is_asked_for_now(evaluation, single):
    few = measure(noise, evaluation, EVERY[:1], 5)
    few.runs[EVERY[0]].wanted = 11  # interrupted after five of eleven
    assert measure(noise, evaluation, EVERY[:1], 7, few).runs[EVERY[0]] == single.runs[EVERY[0]]


def test_a_batch_is_reported_with_its_run_and_size(evaluation):
    told = []
    measure(noise, evaluation, EVERY[:2], 11, batch=4, on_batch=lambda *about: told.append((about[0], about[2])))
    assert told == [(setting, added) for setting in EVERY[:2] for added in (4, 4, 3)]


def test_what_cannot_be_measured_is_refused_before_anything_is(evaluation):
    def never(episode):
        raise AssertionError("asked")

    results = Results(evaluation.conditions())
    with pytest.raises(DataError, match="a 3-shot episode needs 4"):
        measure(never, evaluation, [RunKey(0, 1, 0), RunKey(0, 3, 0)], results=results)
    assert results.runs == {}


@pytest.mark.parametrize("part", [(3, 3), (-1, 2)])
def test_a_part_beyond_the_last_is_refused(part, evaluation):
    with pytest.raises(ConfigError, match=f"part is {part[0] + 1}/{part[1]}"):
        measure(noise, evaluation, EVERY, part=part)


def test_an_image_is_read_once_for_all_runs():
    read = []

    class Watched(Album):
        def image(self, i):
            read.append(i)
            return super().image(i)

    evaluation = Evaluation(dataset(Watched(album().values)), SMALL)
    measure(noise, evaluation, EVERY, 11)
    assert len(read) == len(set(read)) == len(evaluation.pool.keys)


def test_a_damaged_image_stops_the_run_with_its_own_message(evaluation):
    class Damaged(Album):
        def image(self, i):
            if i == 4:
                raise DataError("image-4: damaged")
            return super().image(i)

    damaged = Evaluation(dataset(Damaged(album(rim=2).values)), SMALL)
    with pytest.raises(DataError, match="image-4: damaged"):
        measure(noise, damaged, EVERY[:1], 11)


def test_settings_hold_what_decides_the_numbers_and_not_how_many(evaluation):
    usual = evaluation.conditions()
    assert usual["dataset"]["classes"] == list(NAMES)
    assert usual["dataset"]["folds"] == [[0, 1], [2, 3]]

    def settings(pool=evaluation.pool, split="test", **changes):
        return Evaluation(dataset(pool), replace(SMALL, **changes), split).conditions()

    assert settings(seeds=(1, 2), episodes=3) == usual
    values = [value.copy() for value in evaluation.pool.values]
    values[3][0, 0] = 4 - values[3][0, 0]
    for other in (settings(order="pairs"), settings(score="input"), settings(split="train"), settings(Album(values))):
        assert other != usual


def test_the_episodes_are_where_the_method_computes(evaluation):
    devices = set()

    def watching(episode):
        devices.update({episode.query_images.device, episode.support_labels.device})
        return noise(episode)

    measure(watching, evaluation, EVERY[:1])
    assert devices == {CPU}
