"""PANet: one prototype of the foreground and one of the background, and features that learn to be told apart by them."""

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from cyctr.backbones.backbone import Backbone
from cyctr.methods.base import Losses, Method, Size, Step, cross_entropy, known_labels, query_size
from cyctr.methods.panet import config as configs
from cyctr.methods.panet.prototypes import query_prototypes, scores, support_prototypes
from cyctr.types import Episode, Features, Prediction


class PANet(Method[Tensor]):
    """Few-shot segmentation by the nearest prototype. An encoded support is (B, 2, C): background and foreground."""

    name: ClassVar[str] = "panet"
    Config: ClassVar[type[configs.Config]] = configs.Config
    presets: ClassVar[Mapping[str, configs.Config]] = configs.PRESETS

    def __init__(self, config: configs.Config, backbone: Backbone) -> None:
        super().__init__()
        self.config, self.loss, self.backbone = config.model, config.loss, backbone

    @classmethod
    def build(cls, config: configs.Config, backbone: Backbone) -> Self:
        """The method on a backbone, which holds everything that learns."""
        return cls(config, backbone)

    def encode_support(self, features: Features, labels: Tensor, seeds: Tensor | None = None) -> Tensor:
        """(B, 2, C) prototypes; arguments as of `Method`, and nothing is drawn by chance."""
        return support_prototypes(_deepest(features).unflatten(0, labels.shape[:2]), labels, self.backbone.grids[-1])

    def predict(
        self, query: Features, support: Tensor, size: Size, padding: Tensor | None = None, explain: bool = False
    ) -> Prediction:
        """Each place goes to the prototype that its features are nearer to; arguments as of `Method`."""
        return Prediction(self._upsampled(self._scores(query, support), size))

    def learn(self, episode: Episode, query: Features, support: Features, step: Step) -> Losses:
        """Cross-entropy of the query's mask, and of the support's masks as the query's prediction finds them (section 3.4)."""
        found = self._scores(query, self.encode_support(support, episode.support_labels))  # (B, 2, h, w)
        main = cross_entropy(self._upsampled(found, query_size(episode)), known_labels(episode))
        aligned = self._alignment(_deepest(query), found, _deepest(support), episode.support_labels)
        each = main + self.loss.alignment * aligned
        return Losses(each, {"query": main.mean(), "alignment": aligned.mean()})

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """What of the backbone learns: there is nothing else."""
        return {"backbone": [value for value in self.backbone.parameters() if value.requires_grad]}

    def _alignment(self, query: Tensor, found: Tensor, support: Tensor, labels: Tensor) -> Tensor:
        """(B,) the mean over shots of the loss of the support's masks; 0 where nothing is found in the query.

        Args:
            query: (B, C, h, w) features.
            found: (B, 2, h, w) the scores of the query, whose larger one decides; it passes no gradient.
            support: (B * K, C, h, w) features.
            labels: (B, K, H, W).
        """
        mask = found[:, 1] > found[:, 0]  # (B, h, w)
        shots = labels.shape[1]
        prototypes = query_prototypes(query, mask).repeat_interleave(shots, 0)  # (B * K, 2, C)
        back = self._upsampled(scores(support, prototypes, self.config.temperature), (labels.shape[-2], labels.shape[-1]))
        lost = cross_entropy(back, labels.flatten(0, 1)).unflatten(0, (-1, shots)).mean(1)  # (B,)
        return torch.where(mask.flatten(1).any(1), lost, torch.zeros_like(lost))

    def _scores(self, query: Features, prototypes: Tensor) -> Tensor:
        """(B, 2, h, w) of B queries, to the prototypes of as many supports or of one."""
        maps = _deepest(query)
        return scores(maps, prototypes.expand(len(maps), -1, -1), self.config.temperature)

    def _upsampled(self, maps: Tensor, size: Size) -> Tensor:
        return self.backbone.grids[-1].upsample(maps, size)


def _deepest(features: Features) -> Tensor:
    """(B, C, h, w)."""
    return features.maps[-1]
