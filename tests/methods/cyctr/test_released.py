"""The release's parts, by properties and slow twins; `tests/release` compares the whole with the release's own numbers."""

import math
from dataclasses import replace

import pytest
import torch
from making import encoded, episode, features, losses, tiny

from cyctr.errors import ConfigError, DataError
from cyctr.methods.cyctr.config import RELEASED, EncoderConfig, ModelConfig, SamplingConfig
from cyctr.methods.cyctr.predicted_attention import PredictedAttention
from cyctr.methods.cyctr.released import (
    ReleasedPooling,
    ReleasedSampler,
    ResidualPair,
    UnpaddedCoordinates,
    misread_places,
    nearest_pixels,
    with_stand_ins,
)
from cyctr.methods.cyctr.sampling import sample_tokens
from cyctr.methods.parts.pooling import mean_of_shots, shot_averages
from cyctr.methods.parts.prior import prior_map
from cyctr.types import IGNORE, Episode

SEED = torch.tensor([0])
SMALL = replace(
    RELEASED.model,
    dim=32,
    sampling=replace(RELEASED.model.sampling, tokens_per_shot=24),
    encoder=replace(RELEASED.model.encoder, heads=4, points=3),
)


def test_a_label_is_read_where_nearest_neighbour_shrinking_reads_it():
    labels = torch.randint(0, 256, (2, 3, 473, 40), dtype=torch.uint8)
    small = nearest_pixels(labels, (60, 7))
    for row in range(60):
        for column in range(7):
            pixel = labels[..., math.floor(473 * row / 60), math.floor(40 * column / 7)]
            assert small[..., row, column].equal(pixel)


def test_a_lost_class_has_the_middle_or_the_corners():
    cells = torch.full((1, 3, 6, 8), IGNORE, dtype=torch.uint8)
    cells[0, 0], cells[0, 1] = 0, 1  # nothing marked; nothing else; all ignored
    found = with_stand_ins(cells)[0]
    corners = {(0, 0), (0, 7), (5, 0), (5, 7)}
    middle = {(row, column) for row in (2, 3) for column in (3, 4)}
    for shot, kind, places in ((0, 1, middle), (1, 0, corners), (2, 1, middle), (2, 0, corners)):
        assert {tuple(place) for place in (found[shot] == kind).nonzero().tolist()} == places
    whole = torch.tensor([0, 1], dtype=torch.uint8).repeat(24).view(1, 1, 6, 8)
    assert with_stand_ins(whole).equal(whole)


@pytest.mark.parametrize("foreground", [1, 5, 12, 40, 47])
def test_the_bug_reads_a_token_at_its_place_in_the_list_of_its_class(foreground):
    kinds = torch.zeros(1, 1, 6, 8, dtype=torch.uint8)
    kinds.view(-1)[torch.randperm(48)[:foreground]] = 1
    sample = sample_tokens(kinds, 24, SEED, beyond_half=True)
    places = misread_places(kinds, sample)[0]
    flat = kinds.flatten().tolist()
    lists = {kind: [cell for cell, own in enumerate(flat) if own == kind] for kind in (0, 1)}
    drawn = {kind: [i for i in range(24) if sample.valid[0, i] and sample.is_foreground[0, i] == bool(kind)] for kind in (0, 1)}
    for kind in (0, 1):
        for i in drawn[kind]:
            cell = int(sample.index[0, i])
            whole = len(drawn[kind]) == len(lists[kind])
            assert int(places[i]) == (cell if whole else lists[kind].index(cell))


def test_of_a_large_object_the_bug_reads_most_labels_wrongly_and_of_a_small_one_few():
    def share_wrong(foreground):
        cells = torch.zeros(1, 1, 60, 60, dtype=torch.uint8)
        side = round(foreground**0.5)
        cells[0, 0, 20 : 20 + side, 20 : 20 + side] = 1
        sampler = ReleasedSampler(SamplingConfig(release_labels=True))
        wrong, right = sampler(cells, cells, 600, SEED), sample_tokens(cells, 600, SEED)
        return float((wrong.is_foreground != right.is_foreground)[right.valid].float().mean())

    assert all(0.4 < share_wrong(count) < 0.66 for count in (400, 900, 1600))
    assert all(share_wrong(count) < 0.06 for count in (25, 100, 225))


@pytest.mark.parametrize("background", [0, 3, 11, 12, 40])
def test_foreground_takes_what_too_little_background_leaves(background):
    cells = torch.ones(1, 1, 6, 8, dtype=torch.uint8)
    cells.view(-1)[:background] = 0
    sample = sample_tokens(cells, 24, SEED, beyond_half=True)
    expected = min(48 - background, max(12, 24 - background))
    assert int((sample.is_foreground & sample.valid).sum()) == expected
    assert int(sample.valid.sum()) == 24 if background + expected >= 24 else background + expected


def test_ignored_cells_are_drawn_as_background_and_hidden():
    cells = torch.zeros(1, 2, 6, 8, dtype=torch.uint8)
    cells[:, :, :3], cells[:, :, 4:] = IGNORE, 1
    sample = ReleasedSampler(SamplingConfig(draw_ignored=True))(cells, cells, 96, SEED)
    read = cells.flatten(1).gather(1, sample.index)
    assert sample.valid.all() and sample.hidden.equal(read == IGNORE) and sample.hidden.any()
    assert sample.is_foreground.equal(read == 1)


def test_a_stand_in_on_a_void_cell_stays_hidden_and_void_cells_are_background_enough():
    sampler = ReleasedSampler(SamplingConfig(draw_ignored=True, nearest_pixel=True))
    labels = torch.full((1, 2, 6, 8), IGNORE, dtype=torch.uint8)
    labels[0, 1, :, 4:] = 1  # the first shot is void; the second has foreground, and no background but void
    sample = sampler(labels, labels, 96, SEED)
    hidden, marked = (
        torch.zeros(96, dtype=torch.bool).scatter_(0, sample.index[0], of) for of in (sample.hidden[0], sample.is_foreground[0])
    )
    assert sample.valid.all() and hidden.equal((labels == IGNORE).flatten())
    assert int(marked[:48].sum()) == 4 and marked[48:].equal((labels[0, 1] == 1).flatten())


def test_coordinates_count_the_cells_that_are_not_padding():
    coord = UnpaddedCoordinates(8)
    torch.nn.init.normal_(coord.level)
    padding = torch.zeros(1, 4, 5, dtype=torch.bool)
    padding[:, 3:], padding[:, :, 4:] = True, True
    found = coord(padding)[0].view(4, 5, 8)
    for row in range(3):
        for column in range(4):
            expected = []
            for place, total in ((row + 1, 3), (column + 1, 4)):
                for i in range(2):
                    angle = 2 * math.pi * place / (total + 1e-6) / 10_000 ** (2 * i / 4)
                    expected += [math.sin(angle), math.cos(angle)]
            torch.testing.assert_close(found[row, column], torch.tensor(expected) + coord.level[0])
    content = coord(torch.zeros(1, 3, 4, dtype=torch.bool))[0].view(3, 4, 8)
    torch.testing.assert_close(found[:3, :4], content)  # padding changes nothing


def test_a_silent_cell_reads_as_zero():
    layer = PredictedAttention(8, EncoderConfig(heads=2, points=1)).eval()
    torch.nn.init.zeros_(layer.offsets.weight)
    torch.nn.init.zeros_(layer.offsets.bias)
    query, silent = torch.randn(1, 6, 8), torch.tensor([[True, False, False, False, True, False]])
    found = layer(query, torch.zeros(6, 8), (2, 3), silent=silent)
    torch.testing.assert_close(found, layer.out(layer.v(query) * ~silent[..., None]))


def test_the_second_relu_of_a_pair_is_before_the_sum():
    pair, maps = ResidualPair(3), -torch.rand(1, 3, 4, 4)
    torch.nn.init.constant_(pair.second.bias, -100.0)  # the branch is silent
    assert pair(maps).equal(maps)  # also where it is negative


def test_averages_of_the_release_are_those_of_the_paper_but_for_its_divisor_and_lost_shots():
    features, mask = torch.randn(2, 3, 5, 4, 4), torch.rand(2, 3, 4, 4) > 0.5
    mask[0, 1] = False
    torch.testing.assert_close(ReleasedPooling().of_shots(features, mask), shot_averages(features, mask), atol=1e-3, rtol=1e-3)
    averages = shot_averages(features, mask)
    torch.testing.assert_close(ReleasedPooling().joined(averages, mask)[0] * 3, mean_of_shots(averages, mask)[0] * 2)
    torch.testing.assert_close(ReleasedPooling().joined(averages, mask)[1], mean_of_shots(averages, mask)[1])
    vectors, valid = torch.nn.functional.normalize(torch.rand(1, 2, 6, 5), dim=-1), torch.ones(1, 2, 6, dtype=torch.bool)
    valid[:, 1] = False
    query = torch.rand(1, 5, 3, 3)
    torch.testing.assert_close(prior_map(query, vectors, valid, all_shots=True) * 2, prior_map(query, vectors, valid))


def test_padding_of_the_query_matters_to_the_release_alone():
    given = episode(batch=1)
    padding = torch.zeros(1, 65, 65, dtype=torch.bool)
    padding[:, 40:] = True
    padded = replace(given, query_padding=padding)
    paper, released = tiny(), tiny(SMALL)
    with torch.no_grad():
        assert paper(padded).logits.equal(paper(given).logits)
        assert not released(padded).logits.allclose(released(given).logits)
        support = encoded(released, padded.support_images, padded.support_labels)
        query = released.prepare(features(released, padded.query_images))
        assert released.predict(query, support, (65, 65), padding).logits.equal(released(padded).logits)


@pytest.mark.parametrize("padding", [torch.zeros(1, 65, 64, dtype=torch.bool), torch.zeros(1, 65, 65), "none"])
def test_padding_of_another_form_is_refused(padding):
    given = episode(batch=1)
    with pytest.raises(DataError, match="query_padding"):
        Episode(given.support_images, given.support_labels, given.query_images, query_padding=padding)


def test_each_layer_draws_its_own_tokens_in_training_alone():
    model, given = tiny(SMALL), episode(batch=2, shots=2)
    seen = []
    for encoder in model.mixer.encoders:
        encoder.cross_attention.register_forward_hook(lambda _, inputs, __: seen.append(inputs[3].index))
    model(given)
    assert seen[0].equal(seen[1])
    losses(model.train(), given, drawn=(16, 40))
    assert [index.shape[1] for index in seen[2:]] == [32, 80]
    model(given)
    assert seen[4].shape == seen[5].shape and not seen[4].equal(seen[5])
    with pytest.raises(ConfigError, match="tokens_per_shot holds 3 numbers; expected 2"):
        losses(model, given, drawn=(16, 16, 16))


def test_an_average_of_its_own_shot_joins_each_token():
    own, given = tiny(replace(SMALL, plain_averages=False)), episode(batch=1, shots=2)
    shared = tiny(replace(SMALL, plain_averages=False, own_prototype=False))
    shared.load_state_dict(own.state_dict())
    one = Episode(given.support_images[:, :1], given.support_labels[:, :1], given.query_images)
    with torch.no_grad():
        assert own(one).logits.allclose(shared(one).logits, atol=1e-5)  # of one shot there is one average
        assert not own(given).logits.allclose(shared(given).logits)


def test_the_release_has_no_biases_but_those_of_places_norms_and_the_last_layers():
    named = [name for name, _ in tiny(SMALL).named_parameters() if name.endswith(".bias") and not name.startswith("backbone.")]
    assert all(any(part in name for part in ("offsets", "weights", "norm_", "logits")) for name in named)
    assert len([name for name in named if "logits" in name]) == 2
    assert any(name.endswith("classifier.hidden.bias") for name, _ in tiny(ModelConfig(dim=32)).named_parameters())
