import pytest
import torch

from cyctr.methods.cyctr.sampling import Sample, sample_tokens
from cyctr.seeding import random_bits


def cells_with(foreground: int, grid: int = 60, ignored: int = 0, shots: int = 1) -> torch.Tensor:
    """(1, K, grid, grid) labels with that many foreground and ignored cells at random places."""
    flat = torch.zeros(shots * grid * grid, dtype=torch.uint8)
    order = torch.randperm(len(flat))
    flat[order[:foreground]] = 1
    flat[order[foreground : foreground + ignored]] = 255
    return flat.view(1, shots, grid, grid)


def draw(cells: torch.Tensor, count: int = 600, seed: int = 0) -> Sample:
    return sample_tokens(cells, count, torch.full((len(cells),), seed))


@pytest.mark.parametrize("foreground", [1, 2, 13, 100, 299, 300, 301, 324, 600, 900, 1800, 3300, 3599, 3600])
def test_the_label_of_a_sampled_token_is_the_mask_at_its_own_position(foreground):
    cells = cells_with(foreground)
    sample = draw(cells)
    at_index = cells.flatten(1).gather(1, sample.index)
    assert torch.equal(sample.is_foreground[sample.valid], at_index[sample.valid] == 1)


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("foreground", [1, 7, 299, 301, 2000, 3500])
def test_counts_follow_the_rule_at_most_half_foreground_and_the_rest_background(foreground, shots):
    cells = cells_with(foreground, ignored=50, shots=shots)
    count = 600 * shots
    sample = draw(cells, count)
    background = int((cells == 0).sum())
    from_foreground = min(foreground, count // 2)
    from_background = min(background, count - from_foreground)
    drawn_foreground = int((sample.valid & sample.is_foreground).sum())
    drawn_background = int((sample.valid & ~sample.is_foreground).sum())
    # equal luck at the limit costs at most one cell per further shot
    assert from_foreground - (shots - 1) <= drawn_foreground <= from_foreground
    assert from_background - (shots - 1) <= drawn_background <= from_background


def test_no_cell_is_drawn_twice_and_none_that_is_ignored():
    cells = cells_with(500, ignored=2500)
    sample = draw(cells)
    drawn = sample.index[sample.valid]
    assert len(drawn.unique()) == len(drawn)
    assert (cells.flatten()[drawn] != 255).all()


def test_a_mask_that_covers_everything_leaves_the_background_slots_empty():
    sample = draw(cells_with(3600))
    assert int(sample.valid.sum()) == 300
    assert sample.is_foreground[sample.valid].all()


def test_every_cell_of_a_class_is_drawn_equally_often():
    cells = cells_with(40, grid=10)
    hits = torch.zeros(100)
    draws = 2000
    for seed in range(draws):
        sample = draw(cells, 20, seed)
        hits[sample.index[sample.valid]] += 1
    foreground = cells.flatten() == 1
    for group, share in ((foreground, 10 / 40), (~foreground, 10 / 60)):
        expected = draws * share
        spread = (expected * (1 - share)) ** 0.5
        assert (hits[group] - expected).abs().max() < 5 * spread


def test_permuting_the_shots_draws_the_same_cells():
    cells = cells_with(4000, shots=5)
    order = torch.tensor([3, 0, 4, 1, 2])
    straight, permuted = draw(cells, 3000), draw(cells[:, order], 3000)

    def places(sample, shot_of):
        return {(int(shot_of[i // 3600]), i % 3600) for i in sample.index[sample.valid].tolist()}

    assert places(straight, torch.arange(5)) == places(permuted, order)


def test_an_episode_draws_the_same_cells_alone_and_in_a_batch():
    cells = torch.cat([cells_with(n) for n in (10, 700, 3000)])
    seeds = torch.tensor([5, 6, 7])
    together = sample_tokens(cells, 600, seeds)
    for i in range(3):
        alone = sample_tokens(cells[i : i + 1], 600, seeds[i : i + 1])
        assert torch.equal(alone.index[0], together.index[i])


def test_another_seed_draws_other_cells():
    cells = cells_with(1000)
    assert not torch.equal(draw(cells, seed=1).index, draw(cells, seed=2).index)


def test_gather_brings_the_rows_at_the_drawn_cells():
    cells = cells_with(1000)
    sample = draw(cells)
    values = torch.arange(3600.0)[None, :, None].repeat(1, 1, 2)
    assert torch.equal(sample.gather(values)[..., 1], sample.index.float())


@pytest.mark.parametrize("shots", [1, 3])
def test_pick_brings_the_chosen_cells_of_each_shot_s_map(shots):
    cells = torch.cat([cells_with(100, grid=20, shots=shots) for _ in range(2)])
    maps = torch.randn(2, shots, 5, 20, 20)
    sample = draw(cells, 60)
    picked = sample.pick(maps)
    assert picked.shape == (2, 60, 5)
    for b in range(2):
        for slot, place in enumerate(sample.index[b].tolist()):
            shot, cell = divmod(place, 400)
            assert torch.equal(picked[b, slot], maps[b, shot, :, cell // 20, cell % 20])


def test_pick_brings_its_own_label_to_every_token():
    cells = cells_with(700, grid=30, ignored=40, shots=2)
    sample = draw(cells, 500)
    labels = sample.pick(cells[:, :, None])[..., 0]
    assert torch.equal(labels[sample.valid] == 1, sample.is_foreground[sample.valid])


def slow_sample(cells, count, seed):
    """The rule for one episode with lists: which (place) each class gives."""
    shots, area = cells.shape[0], cells[0].numel()
    luck = random_bits(torch.tensor([seed]), area)[0].tolist()
    chosen = {}
    quota = count // 2
    for label in (1, 0):
        places = [p for p in range(shots * area) if int(cells.flatten()[p]) == label]
        places.sort(key=lambda p: luck[p % area])
        taken = places[:quota]
        if len(places) > len(taken):  # cells of equal luck on both sides of the limit go together
            limit = luck[places[len(taken)] % area]
            taken_clean = [p for p in taken if luck[p % area] != limit]
        else:
            taken_clean = taken
        chosen[label] = set(taken_clean)
        quota = count - len(taken)
    return chosen


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("foreground", [1, 9, 25, 60, 99])
def test_sampling_equals_a_walk_through_sorted_lists(foreground, shots):
    cells = cells_with(foreground, grid=10, ignored=1, shots=shots)
    for seed in range(5):
        sample = draw(cells, 30 * shots, seed)
        slow = slow_sample(cells[0], 30 * shots, seed)
        for label in (1, 0):
            mine = sample.index[sample.valid & (sample.is_foreground == bool(label))]
            assert set(mine.tolist()) == slow[label]
