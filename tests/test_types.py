import pytest
import torch
from making import episode

from cyctr.errors import DataError
from cyctr.types import Episode

IMAGES, LABELS = torch.rand(2, 3, 3, 65, 65), torch.ones(2, 3, 65, 65, dtype=torch.uint8)
QUERIES = torch.rand(2, 3, 65, 65)


def with_value(tensor, value):
    changed = tensor.clone()
    changed.view(-1)[7] = value
    return changed


BAD = {
    "no shots": (
        IMAGES[:, :0],
        LABELS[:, :0],
        QUERIES,
        None,
        "support_images hold 0 shots; expected at least 1: add a labelled",
    ),
    "no episodes": (IMAGES[:0], LABELS[:0], QUERIES[:0], None, "support_images hold 0 episodes; expected at least 1"),
    "no shot axis": (IMAGES[:, 0], LABELS, QUERIES, None, r"have shape \(2, 3, 65, 65\); expected \(B, K, 3, H, W\)"),
    "grey images": (IMAGES[:, :, :1], LABELS, QUERIES, None, "with 3 RGB channels"),
    "integer images": (
        IMAGES.long(),
        LABELS,
        QUERIES,
        None,
        "support_images are torch.int64; expected torch.uint8, or a float",
    ),
    "bytes as floats": (
        IMAGES * 255,
        LABELS,
        QUERIES,
        None,
        r"support_images span \[.*\]; expected \[0, 1\]: divide bytes by 255",
    ),
    "normalised": (IMAGES, LABELS, QUERIES - 0.5, None, r"query_images span \[-0.*leave normalisation to the network"),
    "NaN pixels": (IMAGES, LABELS, with_value(QUERIES, float("nan")), None, "query_images hold NaN or infinite pixels"),
    "infinite pixels": (with_value(IMAGES, float("inf")), LABELS, QUERIES, None, "support_images hold NaN or infinite"),
    "tiny images": (IMAGES[..., :7], LABELS[..., :7], QUERIES, None, "are 65 x 7 pixels; expected at least 8 on each side"),
    "float labels": (
        IMAGES,
        LABELS.float(),
        QUERIES,
        None,
        r"support_labels are torch.float32; expected torch.uint8 .* use .to",
    ),
    "bool labels": (IMAGES, LABELS.bool(), QUERIES, None, "support_labels are torch.bool; expected torch.uint8"),
    "other size": (
        IMAGES,
        LABELS[..., :60, :60],
        QUERIES,
        None,
        r"support_labels are \(60, 60\), support_images \(65, 65\); resize one",
    ),
    "missing label": (
        IMAGES,
        LABELS[:, :2],
        QUERIES,
        None,
        r"have shape \(2, 2, 65, 65\); expected \(2, 3, 65, 65\), one label map per",
    ),
    "empty label": (
        IMAGES,
        LABELS * torch.tensor([1, 0, 1]).byte().view(1, 3, 1, 1),
        QUERIES,
        None,
        r"support_labels\[0, 1\] marks no",
    ),
    "class numbers": (
        IMAGES,
        with_value(LABELS, 15),
        QUERIES,
        None,
        "hold the value 15; expected 0 .* make one episode per class",
    ),
    "other batch": (IMAGES, LABELS, QUERIES[:1], None, "query_images hold 1 episodes, support_images 2"),
    "query label size": (IMAGES, LABELS, QUERIES, LABELS[:, 0, :5], r"query_labels are \(5, 65\), query_images \(65, 65\)"),
    "query label class": (IMAGES, LABELS, QUERIES, with_value(LABELS[:, 0], 2), "query_labels hold the value 2"),
    "an array": (IMAGES.numpy(), LABELS, QUERIES, None, "support_images are ndarray; expected a torch.Tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_episode_gets_one_line_that_names_value_expectation_and_remedy(case):
    *values, message = BAD[case]
    with pytest.raises(DataError, match=message) as caught:
        Episode(*values)
    assert "\n" not in str(caught.value)


def test_a_trusted_episode_is_not_searched_but_still_has_its_shapes_checked():
    marked = Episode(IMAGES, LABELS * 0, QUERIES, trusted=True)
    assert marked.shots == 3
    with pytest.raises(DataError, match="resize one"):
        Episode(IMAGES, LABELS[..., :60, :60], QUERIES, trusted=True)


def test_an_episode_cannot_be_changed():
    with pytest.raises(AttributeError):
        episode().query_images = QUERIES
