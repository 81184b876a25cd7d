import torch
import torch.nn.functional as F

from cyctr.methods.cyctr.config import HeadConfig
from cyctr.methods.cyctr.head import AuxiliaryHead, Merge, ResidualBlock


def test_a_merge_equals_a_convolution_over_the_vector_spread_to_every_cell():
    merge = Merge(5 + 3, 7)
    maps, vector = torch.randn(2, 5, 4, 6), torch.randn(2, 3)
    joined = torch.cat([maps, vector[:, :, None, None].expand(2, 3, 4, 6)], 1)
    torch.testing.assert_close(merge(maps, vector), F.relu(merge.convolution(joined)))


def test_a_residual_block_that_adds_nothing_passes_positive_maps_through():
    block = ResidualBlock(4)
    torch.nn.init.zeros_(block.second.weight)
    torch.nn.init.zeros_(block.second.bias)
    maps = torch.rand(1, 4, 5, 5)
    assert torch.equal(block(maps), maps)


def test_the_auxiliary_head_answers_each_shot_by_itself():
    head = AuxiliaryHead(8, HeadConfig()).eval()
    support, prototype = torch.randn(2, 3, 8, 4, 4), torch.randn(2, 8)
    together = head(support, prototype)
    for k in range(3):
        torch.testing.assert_close(together[:, k : k + 1], head(support[:, k : k + 1], prototype))
