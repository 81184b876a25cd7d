"""The network. Its forward reads like the paper's framework figure."""

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.tuning import SPECTRUM
from cyctr.config import ModelConfig
from cyctr.errors import ConfigError
from cyctr.methods.cyctr.encoder import TransformerMixer
from cyctr.methods.cyctr.extras.known_classes import Familiar
from cyctr.methods.cyctr.head import AuxiliaryHead, Classifier, Merge, ResidualMixer
from cyctr.methods.cyctr.pooling import mean_of_shots, released_averages, released_mean, shot_averages
from cyctr.methods.cyctr.prior import likeness_map, prior_map, support_vectors, vote_map
from cyctr.methods.cyctr.released import DeepAuxiliaryHead, Refinement, ReleasedSampler, ResidualPair, nearest_pixels
from cyctr.methods.cyctr.sampling import Sample, TokenSampler
from cyctr.speed.fusion import use_winograd
from cyctr.types import Episode, Explanation, Features, Prediction, Query, Support, check_padding, check_query, check_support

TokenCount = int | tuple[int, ...]
"""N_s per shot: one number, or one for each layer."""
_LAYER_SEEDS = 1_000_003  # apart: each layer draws as an episode of its own would


@dataclass(frozen=True)
class ParameterCount:
    """Trained parameters: all, and those without the auxiliary head, which only training uses."""

    trained: int
    used_at_test: int


class Reduction(nn.Module):
    """1x1 convolution of the middle features to d channels."""

    def __init__(self, channels: int, dim: int, dropout: float, biased: bool = True) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, dim, 1, bias=biased)
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
        dim, biased = config.dim, not config.unbiased
        self.config = config
        self.accelerated = False
        self.backbone = backbone
        self.reduce_query = Reduction(backbone.mid_channels, dim, config.reduction_dropout, biased)
        self.reduce_support = Reduction(backbone.mid_channels, dim, config.reduction_dropout, biased)
        self.sampler = ReleasedSampler(config.sampling) if config.sampling.released else TokenSampler()
        self.average = released_averages if config.plain_averages else shot_averages
        self.join_shots = released_mean if config.plain_averages else mean_of_shots
        priors = 1 + len(config.prior.votes)
        self.merge_query = Merge(2 * dim + priors, dim, biased)  # query, prior maps, support prototype
        if config.reads != "nothing":
            self.merge_support = Merge(2 * dim, dim, biased)  # support, support prototype
        transformer = config.mixer == "transformer"
        self.mixer = TransformerMixer(dim, config.encoder, biased) if transformer else ResidualMixer(dim)
        self.refine: nn.Module = Refinement(dim, biased) if config.head.refine else nn.Identity()
        self.classifier = Classifier(dim, config.head, biased)
        self.auxiliary = _auxiliary(config) if config.auxiliary else None
        self.familiar = Familiar(config.familiar, backbone.mid_channels + backbone.high_channels) if config.familiar else None

    def forward(
        self, episode: Episode, seeds: Tensor | None = None, tokens_per_shot: TokenCount | None = None, explain: bool = False
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
        tokens_per_shot: TokenCount | None = None,
        explain: bool = False,
    ) -> Prediction:
        """As `forward`, with backbone features that were made before; those of the support are (B * K, C, h, w)."""
        reduced = self.reduce_support(support.mid).unflatten(0, (-1, episode.shots))  # (B, K, d, h, w)
        encoded = self._encode(support, reduced, episode.support_labels, seeds, tokens_per_shot)
        size = (episode.query_images.shape[-2], episode.query_images.shape[-1])
        reduced_query = self.reduce_query(query.mid)  # (B, d, h, w)
        padding = self._padding(episode.query_padding, reduced_query)
        whole = Query(query, reduced_query, size, self._familiar(query), padding)
        prediction, seen = self._decode(whole, encoded, explain)
        auxiliary = None
        if self.training and self.auxiliary is not None and episode.query_labels is not None:
            auxiliary = self._predict_support(self.auxiliary, reduced_query, seen, reduced, episode)
        similarity = self._similarity(query, encoded, size) if explain else None
        return replace(prediction, auxiliary=auxiliary, similarity=similarity)

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

    def encode_query(self, images: Tensor, padding: Tensor | None = None) -> Query:
        """Encodes images, to be segmented with any number of supports.

        Args:
            images: (B, 3, H, W).
            padding: (B, H, W) bool, as in `Episode.query_padding`.
        """
        check_query(images, values=not torch.compiler.is_compiling())
        if padding is not None:
            check_padding(padding, images)
        features = self.backbone(images)
        size = (images.shape[-2], images.shape[-1])
        reduced = self.reduce_query(features.mid)
        return Query(features, reduced, size, self._familiar(features), self._padding(padding, reduced))

    def answer(self, query: Query, support: Support, explain: bool = False) -> Prediction:
        """Segments encoded queries, as `segment` does."""
        support = support.expand(len(query.reduced))
        prediction, _ = self._decode(query, support, explain)
        return replace(prediction, similarity=self._similarity(query.features, support, query.size))

    def accelerate(self) -> Self:
        """Rewrites the network for inference, its output unchanged to 1e-3. It cannot be trained any more."""
        self.backbone.accelerate()
        use_winograd(self.refine)
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
        self, features: Features, reduced: Tensor, labels: Tensor, seeds: Tensor | None, tokens_per_shot: TokenCount | None
    ) -> Support:
        batch, shots, _, height, width = reduced.shape
        cells = self._cells(labels, (height, width))  # (B, K, h, w)
        averages = self.average(reduced, cells == 1)  # (B, K, d)
        prototype = self.join_shots(averages, cells == 1)  # (B, d)
        joined = averages if self.config.own_prototype else prototype[:, None].expand_as(averages)
        high, high_valid = support_vectors(features.high.unflatten(0, (batch, shots)), cells == 1)
        maps = None
        if self.config.reads == "maps":
            every = self.merge_support(reduced.flatten(0, 1), joined.flatten(0, 1))
            maps = every.unflatten(0, (batch, shots)).float()  # (B, K, d, h, w)
        shown = None if self.familiar is None or self.training else self.familiar.shown(features, cells == 1)

        def drawn(layer: int, count: int | None) -> Support:
            sample = self._sample(cells, labels, seeds, count, layer)
            tokens = sample.pick(reduced)  # (B, N, d)
            if self.config.reads == "tokens":
                shot = sample.index // (height * width)  # (B, N)
                own = (joined, shot) if self.config.own_prototype else (prototype, None)
                tokens = self.merge_support(tokens.transpose(1, 2)[..., None], *own)[..., 0].transpose(1, 2)
            voting = (getattr(features, level).unflatten(0, (batch, shots)) for level in self.config.prior.votes)
            voters = tuple(F.normalize(sample.pick(features_there), dim=-1) for features_there in voting)  # (B, N, C) each
            # float32, so that a support made under autocast serves outside it too
            return Support(
                prototype.float(),
                high,
                high_valid,
                tokens.float(),
                sample.index,
                sample.is_foreground,
                sample.valid,
                maps,
                (height, width),
                voters,
                shown,
                sample.hidden,
            )

        layers, counts = self._draws(tokens_per_shot)
        supports = tuple(drawn(layer, count) for layer, count in zip(range(layers), counts, strict=True))
        return supports[0] if len(supports) == 1 else replace(supports[0], by_layer=supports)

    def _draws(self, tokens_per_shot: TokenCount | None) -> tuple[int, tuple[int | None, ...]]:
        """How often tokens are drawn, and how many per shot each time."""
        layers = self.config.encoder.layers if self.training and self.config.draws_per_layer else 1
        if isinstance(tokens_per_shot, tuple):
            if len(tokens_per_shot) != layers:
                raise ConfigError(f"tokens_per_shot holds {len(tokens_per_shot)} numbers; expected {layers}, one for each draw")
            return layers, tokens_per_shot
        return layers, (tokens_per_shot,) * layers

    def _cells(self, labels: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, K, h, w) labels of the cells, as averages and prior maps see them."""
        keep_small = not self.config.plain_averages
        return self.backbone.grid.cells(labels.flatten(0, 1), size, keep_small).unflatten(0, labels.shape[:2])

    def _padding(self, padding: Tensor | None, maps: Tensor) -> Tensor | None:
        """(B, h, w) bool: cells of the query that are padding, where the network asks."""
        if padding is None or not self.config.encoder.sees_padding:
            return None
        return nearest_pixels(padding, (maps.shape[-2], maps.shape[-1]))

    def _familiar(self, features: Features) -> Tensor | None:
        """Scores of the classes that training knew, for the test: in training they would give the answer away."""
        return None if self.familiar is None or self.training else self.familiar.scores(features)

    def _sample(
        self, cells: Tensor, labels: Tensor, seeds: Tensor | None, tokens_per_shot: int | None, layer: int = 0
    ) -> Sample:
        batch, shots, height, width = cells.shape
        if seeds is None:
            seeds = torch.full((batch,), self.config.sampling.seed, device=cells.device)
        per_shot = self.config.sampling.tokens_per_shot if tokens_per_shot is None else tokens_per_shot
        if per_shot < 2:
            raise ConfigError(f"tokens_per_shot is {per_shot}; expected at least 2, one for each class")
        count = max(2, min(per_shot, height * width) * shots)
        return self.sampler(cells, labels, count if self.config.samples else 0, seeds + _LAYER_SEEDS * layer)

    def _decode(self, query: Query, support: Support, explain: bool) -> tuple[Prediction, Tensor]:
        """The answer, and the (B, d, h, w) map that the classifier made it from."""
        prior = prior_map(query.features.high, support.high, support.high_valid, self.config.plain_averages)  # (B, h, w)
        priors = torch.stack([prior, *self._votes(query.features, support)], 1)  # (B, 1 + votes, h, w)
        joined = torch.cat([query.reduced, priors.to(query.reduced.dtype)], 1)  # (B, d + 1 + votes, h, w)
        merged = self.merge_query(joined, support.prototype)  # (B, d, h, w)
        encoded, traces = self.mixer(merged, support, explain, query.padding)  # (B, d, h, w)
        seen = self.refine(encoded)  # (B, d, h, w)
        scores = self.classifier(seen).float()  # (B, 2, h, w)
        if query.familiar is not None and support.familiar is not None and self.familiar is not None:
            against = self.familiar.against(query.familiar, support.familiar)  # (B, h, w)
            scores = torch.stack([scores[:, 0] + against, scores[:, 1]], 1)
        logits = self.backbone.grid.upsample(scores, query.size)  # (B, 2, H, W)
        votes = priors[:, 1:] if self.config.prior.votes else None
        if not explain:
            return Prediction(logits, votes=votes), seen
        cells = self.backbone.grid
        where = (cells.stride, cells.alignment, cells.offset)
        explanation = Explanation(prior, support.index, support.attended, support.grid, *where, traces)
        return Prediction(logits, explanation=explanation, votes=votes), seen

    def _similarity(self, query: Features, support: Support, size: tuple[int, int]) -> Tensor:
        likeness = likeness_map(query.high, support.high, support.high_valid)  # (B, h, w)
        return self.backbone.grid.upsample(likeness[:, None], size)[:, 0]  # (B, H, W)

    def _votes(self, query: Features, support: Support) -> list[Tensor]:
        prior = self.config.prior
        return [
            vote_map(getattr(query, level), voters, support.is_foreground, support.valid, prior.temperature)
            for level, voters in zip(prior.votes, support.voters, strict=True)
        ]

    def _predict_support(
        self, head: AuxiliaryHead, reduced_query: Tensor, seen: Tensor, reduced_support: Tensor, episode: Episode
    ) -> Tensor:
        """(B, K, 2, H, W) logits of the support masks, predicted from the query's prototype."""
        assert episode.query_labels is not None
        cells = self._cells(episode.query_labels[:, None], (reduced_query.shape[-2], reduced_query.shape[-1]))  # (B, 1, h, w)
        prototype = self.average(head.describe(reduced_query, seen)[:, None], cells == 1)[:, 0]  # (B, d)
        logits = head(reduced_support, prototype).float()  # (B, K, 2, h, w)
        size = (episode.support_images.shape[-2], episode.support_images.shape[-1])
        return self.backbone.grid.upsample(logits.flatten(0, 1), size).unflatten(0, logits.shape[:2])


def _auxiliary(config: ModelConfig) -> AuxiliaryHead:
    biased = not config.unbiased
    kind = DeepAuxiliaryHead if config.deep_auxiliary else AuxiliaryHead
    return kind(config.dim, config.head, biased, ResidualPair(config.dim, biased) if config.head.refine else None)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def build(config: ModelConfig) -> CyCTR:
    """The network of a configuration, its backbone with random weights: `cyctr.backbones.weights` loads real ones."""
    return CyCTR(config, Backbone(config.backbone))
