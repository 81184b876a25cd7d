"""The network. Its forward reads like the paper's framework figure."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.config import ModelConfig
from cyctr.errors import ConfigError
from cyctr.model.backbone import Backbone
from cyctr.model.encoder import TransformerMixer
from cyctr.model.familiar import Familiar
from cyctr.model.fusion import use_winograd
from cyctr.model.head import AuxiliaryHead, Classifier, Merge, ResidualMixer
from cyctr.model.pooling import masked_average
from cyctr.model.prior import likeness_map, prior_map, support_vectors, vote_map
from cyctr.model.sampling import Sample, sample_tokens
from cyctr.model.tuning import SPECTRUM
from cyctr.types import Episode, Explanation, Features, Prediction, Query, Support, check_query, check_support


@dataclass(frozen=True)
class ParameterCount:
    """Trained parameters: all, and those without the auxiliary head, which only training uses."""

    trained: int
    used_at_test: int


class Reduction(nn.Module):
    """1x1 convolution of the middle features to d channels."""

    def __init__(self, channels: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, dim, 1)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, mid: Tensor) -> Tensor:
        return self.dropout(self.convolution(mid).relu_())


class CyCTR(nn.Module):
    """Few-shot segmentation by cycle-consistent attention.

    Either call it on an `Episode`, or `encode_support` once and `segment` any number of queries; or `encode_query` too, and
    `answer` for any number of supports: the answers are equal.
    """

    def __init__(self, config: ModelConfig, backbone: Backbone) -> None:
        super().__init__()
        dim = config.dim
        self.config = config
        self.accelerated = False
        self.backbone = backbone
        self.reduce_query = Reduction(backbone.mid_channels, dim, config.reduction_dropout)
        self.reduce_support = Reduction(backbone.mid_channels, dim, config.reduction_dropout)
        priors = 1 + len(config.prior.votes)
        self.merge_query = Merge(2 * dim + priors, dim)  # query, prior maps, support prototype
        if config.reads != "nothing":
            self.merge_support = Merge(2 * dim, dim)  # support, support prototype
        self.mixer = TransformerMixer(dim, config.encoder) if config.mixer == "transformer" else ResidualMixer(dim)
        self.classifier = Classifier(dim, config.head)
        self.auxiliary = AuxiliaryHead(dim, config.head) if config.auxiliary else None
        self.familiar = Familiar(config.familiar, backbone.mid_channels + backbone.high_channels) if config.familiar else None

    def forward(
        self, episode: Episode, seeds: Tensor | None = None, tokens_per_shot: int | None = None, explain: bool = False
    ) -> Prediction:
        """Segments the queries of B episodes.

        Args:
            episode: images and labels; with `query_labels`, in training, the auxiliary logits are made too.
            seeds: (B,) int64, which support tokens are sampled; by default `sampling.seed` for every episode.
            tokens_per_shot: N_s of this call; by default the configured one.
            explain: also return what pictures need.
        """
        query = self.backbone(episode.query_images)
        support = self.backbone(episode.support_images.flatten(0, 1))  # (B * K, C, h, w)
        return self.match(query, support, episode, seeds, tokens_per_shot, explain)

    def match(
        self,
        query: Features,
        support: Features,
        episode: Episode,
        seeds: Tensor | None = None,
        tokens_per_shot: int | None = None,
        explain: bool = False,
    ) -> Prediction:
        """As `forward`, with backbone features that were made before; those of the support are (B * K, C, h, w)."""
        reduced = self.reduce_support(support.mid).unflatten(0, (-1, episode.shots))  # (B, K, d, h, w)
        encoded = self._encode(support, reduced, episode.support_labels, seeds, tokens_per_shot)
        size = (episode.query_images.shape[-2], episode.query_images.shape[-1])
        reduced_query = self.reduce_query(query.mid)  # (B, d, h, w)
        whole = Query(query, reduced_query, size, self._familiar(query))
        logits, votes, explanation = self._decode(whole, encoded, explain)
        auxiliary = None
        if self.training and self.auxiliary is not None and episode.query_labels is not None:
            auxiliary = self._predict_support(reduced_query, reduced, episode)
        similarity = self._similarity(query, encoded, size) if explain else None
        return Prediction(logits, auxiliary, explanation, votes, similarity)

    def encode_support(self, images: Tensor, labels: Tensor, seeds: Tensor | None = None) -> Support:
        """Encodes K labelled images per episode, to be used with any number of queries.

        Args:
            images: (B, K, 3, H, W) as in `Episode`.
            labels: (B, K, H, W) uint8.
            seeds: as in `forward`.
        """
        check_support(images, labels, values=not torch.compiler.is_compiling())
        return self._labelled(self.backbone(images.flatten(0, 1)), labels, seeds)

    def label(self, query: Query, labels: Tensor, seeds: Tensor | None = None, tokens_per_shot: int | None = None) -> Support:
        """The support that B * K encoded images make with (B, K, H, W) labels: that of `encode_support`, for half the work."""
        return self._labelled(query.features, labels, seeds, tokens_per_shot)

    def segment(self, images: Tensor, support: Support, explain: bool = False) -> Prediction:
        """Segments (B, 3, H, W) query images with a support of the same B, or of one episode for all."""
        return self.answer(self.encode_query(images), support, explain)

    def encode_query(self, images: Tensor) -> Query:
        """Encodes (B, 3, H, W) images, to be segmented with any number of supports."""
        check_query(images, values=not torch.compiler.is_compiling())
        features = self.backbone(images)
        size = (images.shape[-2], images.shape[-1])
        return Query(features, self.reduce_query(features.mid), size, self._familiar(features))

    def answer(self, query: Query, support: Support, explain: bool = False) -> Prediction:
        """Segments encoded queries, as `segment` does."""
        support = support.expand(len(query.reduced))
        logits, votes, explanation = self._decode(query, support, explain)
        return Prediction(logits, None, explanation, votes, self._similarity(query.features, support, query.size))

    def accelerate(self) -> Self:
        """Rewrites the network for inference, its output unchanged to 1e-3. It cannot be trained any more."""
        self.backbone.accelerate()
        use_winograd(self.classifier)
        self.requires_grad_(False).eval()
        self.accelerated = True
        return self

    def train(self, mode: bool = True) -> Self:
        """As for any module, but refused once the network was accelerated."""
        if mode and self.accelerated:
            raise ConfigError("this network was accelerated for inference and cannot train; build it anew")
        return super().train(mode)

    def parameter_count(self) -> "ParameterCount":
        """How many numbers training moves."""
        frozen = sum(value.numel() for name, value in self.backbone.named_parameters() if not name.endswith(SPECTRUM))
        every = _size(self)
        return ParameterCount(every - frozen, every - frozen - (_size(self.auxiliary) if self.auxiliary else 0))

    def _labelled(
        self, features: Features, labels: Tensor, seeds: Tensor | None, tokens_per_shot: int | None = None
    ) -> Support:
        reduced = self.reduce_support(features.mid).unflatten(0, (-1, labels.shape[1]))  # (B, K, d, h, w)
        return self._encode(features, reduced, labels, seeds, tokens_per_shot)

    def _encode(
        self, features: Features, reduced: Tensor, labels: Tensor, seeds: Tensor | None, tokens_per_shot: int | None
    ) -> Support:
        batch, shots, _, height, width = reduced.shape
        cells = self.backbone.grid.cells(labels.flatten(0, 1), (height, width)).unflatten(0, (batch, shots))  # (B, K, h, w)
        prototype = masked_average(reduced, cells == 1)  # (B, d)
        high, high_valid = support_vectors(features.high.unflatten(0, (batch, shots)), cells == 1)

        sample = self._sample(cells, seeds, tokens_per_shot)
        tokens = sample.pick(reduced)  # (B, N, d)
        maps = None
        if self.config.reads == "tokens":
            tokens = self.merge_support(tokens.transpose(1, 2)[..., None], prototype)[..., 0].transpose(1, 2)
        elif self.config.reads == "maps":
            every = self.merge_support(reduced.flatten(0, 1), prototype.repeat_interleave(shots, 0))
            maps = every.unflatten(0, (batch, shots))  # (B, K, d, h, w)
        voting = (getattr(features, level).unflatten(0, (batch, shots)) for level in self.config.prior.votes)
        voters = tuple(F.normalize(sample.pick(features_there), dim=-1) for features_there in voting)  # (B, N, C) each
        # float32, so that a support made under autocast serves outside it too
        tokens, prototype, maps = tokens.float(), prototype.float(), None if maps is None else maps.float()
        shown = None if self.familiar is None or self.training else self.familiar.shown(features, cells == 1)
        own = (sample.index, sample.is_foreground, sample.valid)
        return Support(prototype, high, high_valid, tokens, *own, maps, (height, width), voters, shown)

    def _familiar(self, features: Features) -> Tensor | None:
        """Scores of the classes that training knew, for the test: in training they would give the answer away."""
        return None if self.familiar is None or self.training else self.familiar.scores(features)

    def _sample(self, cells: Tensor, seeds: Tensor | None, tokens_per_shot: int | None) -> Sample:
        batch, shots, height, width = cells.shape
        if seeds is None:
            seeds = torch.full((batch,), self.config.sampling.seed, device=cells.device)
        per_shot = self.config.sampling.tokens_per_shot if tokens_per_shot is None else tokens_per_shot
        if per_shot < 2:
            raise ConfigError(f"tokens_per_shot is {per_shot}; expected at least 2, one for each class")
        count = max(2, min(per_shot, height * width) * shots)
        return sample_tokens(cells, count if self.config.samples else 0, seeds)

    def _decode(self, query: Query, support: Support, explain: bool) -> tuple[Tensor, Tensor | None, Explanation | None]:
        prior = prior_map(query.features.high, support.high, support.high_valid)  # (B, h, w)
        priors = torch.stack([prior, *self._votes(query.features, support)], 1)  # (B, 1 + votes, h, w)
        joined = torch.cat([query.reduced, priors.to(query.reduced.dtype)], 1)  # (B, d + 1 + votes, h, w)
        merged = self.merge_query(joined, support.prototype)  # (B, d, h, w)
        encoded, traces = self.mixer(merged, support, explain)  # (B, d, h, w)
        scores = self.classifier(encoded).float()  # (B, 2, h, w)
        if query.familiar is not None and support.familiar is not None and self.familiar is not None:
            against = self.familiar.against(query.familiar, support.familiar)  # (B, h, w)
            scores = torch.stack([scores[:, 0] + against, scores[:, 1]], 1)
        logits = self.backbone.grid.upsample(scores, query.size)  # (B, 2, H, W)
        votes = priors[:, 1:] if self.config.prior.votes else None
        if not explain:
            return logits, votes, None
        cells = self.backbone.grid
        where = (cells.stride, cells.alignment, cells.offset)
        return logits, votes, Explanation(prior, support.index, support.valid, support.grid, *where, traces)

    def _similarity(self, query: Features, support: Support, size: tuple[int, int]) -> Tensor:
        likeness = likeness_map(query.high, support.high, support.high_valid)  # (B, h, w)
        return self.backbone.grid.upsample(likeness[:, None], size)[:, 0]  # (B, H, W)

    def _votes(self, query: Features, support: Support) -> list[Tensor]:
        prior = self.config.prior
        return [
            vote_map(getattr(query, level), voters, support.is_foreground, support.valid, prior.temperature)
            for level, voters in zip(prior.votes, support.voters, strict=True)
        ]

    def _predict_support(self, reduced_query: Tensor, reduced_support: Tensor, episode: Episode) -> Tensor:
        assert self.auxiliary is not None
        assert episode.query_labels is not None
        cells = self.backbone.grid.cells(episode.query_labels, (reduced_query.shape[-2], reduced_query.shape[-1]))
        prototype = masked_average(reduced_query[:, None], cells[:, None] == 1)  # (B, d)
        logits = self.auxiliary(reduced_support, prototype).float()  # (B, K, 2, h, w)
        size = (episode.support_images.shape[-2], episode.support_images.shape[-1])
        return self.backbone.grid.upsample(logits.flatten(0, 1), size).unflatten(0, logits.shape[:2])


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def build(config: ModelConfig) -> CyCTR:
    """The network of a configuration, its backbone with random weights: `cyctr.weights` loads real ones."""
    return CyCTR(config, Backbone(config.backbone))
