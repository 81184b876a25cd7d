"""CyCTR: the paper's framework figure. `building.parts` makes what it consists of; the other files are those parts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from cyctr.backbones.backbone import Backbone
from cyctr.errors import ConfigError
from cyctr.methods.base import Explanation, Losses, Matching, Method, Size, Step, known_labels, query_size
from cyctr.methods.cyctr import config as configs
from cyctr.methods.cyctr.building import parts
from cyctr.methods.cyctr.encoder import TransformerMixer
from cyctr.methods.cyctr.extras.known_classes import Familiar
from cyctr.methods.cyctr.extras.votes import Votes
from cyctr.methods.cyctr.head import AuxiliaryHead, Classifier, Merge, Reduction, ResidualMixer
from cyctr.methods.cyctr.loss import episode_loss
from cyctr.methods.cyctr.released import nearest_pixels
from cyctr.methods.cyctr.sampling import Sample, TokenCount, TokenSampler
from cyctr.methods.cyctr.state import Evidence, Extras, Levels, Query, Support
from cyctr.methods.parts.pooling import Pooling
from cyctr.methods.parts.prior import prior_map, support_vectors
from cyctr.seeding import Stream
from cyctr.types import Episode, Features, Prediction

_LAYER_SEEDS = 1_000_003  # apart: each layer draws as an episode of its own would


class CyCTR(Method[Support]):
    """Few-shot segmentation by cycle-consistent attention."""

    name: ClassVar[str] = "cyctr"
    Config: ClassVar[type[configs.Config]] = configs.Config
    presets: ClassVar[Mapping[str, configs.Config]] = configs.PRESETS
    training_only: ClassVar[tuple[str, ...]] = ("auxiliary.",)
    config: configs.ModelConfig
    # the boxes of the figure
    reduce_query: Reduction
    reduce_support: Reduction
    pooling: Pooling  # masked average: the prototype
    sampler: TokenSampler
    merge_query: Merge  # query, prior maps and prototype
    merge_support: Merge  # support tokens and prototype
    mixer: TransformerMixer | ResidualMixer  # the encoders: self-alignment, cross-alignment
    refine: nn.Module  # the release's; nothing in the paper
    classifier: Classifier
    auxiliary: AuxiliaryHead | None  # in training only
    votes: Votes | None  # ours
    familiar: Familiar | None  # ours: known classes

    def __init__(self, config: configs.Config, backbone: Backbone, **built: Any) -> None:
        """Joins built parts; `building.parts` says which there are."""
        super().__init__()
        self.config, self.loss, self.backbone = config.model, config.loss, backbone
        for name, part in built.items():
            setattr(self, name, part)

    @classmethod
    def build(cls, config: configs.Config, backbone: Backbone) -> Self:
        """The untrained network of a config on a backbone."""
        return cls(config, backbone, **parts(config.model, backbone))

    def encode_support(
        self, features: Features, labels: Tensor, seeds: Tensor | None = None, tokens_per_shot: TokenCount | None = None
    ) -> Support:
        """The left of the figure; arguments as of `Method`, and N_s of this call, by default the configured one."""
        return self._encode(features, labels, seeds, tokens_per_shot)[0]

    def prepare(self, query: Features) -> Query:
        """The right of the figure up to where the support comes in."""
        levels = Levels.of(query)
        familiar = None if self.familiar is None or self.training else self.familiar.scores(levels)
        return Query(query.maps, levels, self.reduce_query(levels.mid), familiar)

    def predict(
        self, query: Features, support: Support, size: Size, padding: Tensor | None = None, explain: bool = False
    ) -> Prediction:
        """The rest of it; arguments as of `Method`."""
        prepared = query if isinstance(query, Query) else self.prepare(query)
        return self._decode(prepared, support.expand(len(prepared.reduced)), size, padding, explain)[0]

    def learn(self, episode: Episode, query: Features, support: Features, step: Step) -> Losses:
        """Its losses: Dice of the query's mask and, where the config says so, of the support's, predicted from the query."""
        encoded, reduced = self._encode(support, episode.support_labels, step.seeds, step.drawn)
        prepared = self.prepare(query)
        prediction, seen = self._decode(prepared, encoded, query_size(episode), episode.query_padding)
        auxiliary = None
        if self.auxiliary is not None:
            auxiliary = self._predict_support(self.auxiliary, prepared.reduced, seen, reduced, episode)
        return episode_loss(prediction.logits, auxiliary, episode, self.loss)

    def _encode(
        self, features: Features, labels: Tensor, seeds: Tensor | None, tokens_per_shot: TokenCount | None
    ) -> tuple[Support, Tensor]:
        """The support, and the (B, K, d, h, w) features it was made from."""
        levels, shots = Levels.of(features), labels.shape[1]
        reduced = self.reduce_support(levels.mid).unflatten(0, (-1, shots))  # (B, K, d, h, w)
        size = (reduced.shape[-2], reduced.shape[-1])
        cells = self._cells(labels, size)  # (B, K, h, w)
        averages = self.pooling.of_shots(reduced, cells == 1)  # (B, K, d)
        prototype = self.pooling.joined(averages, cells == 1)  # (B, d)
        joined = averages if self.config.own_prototype else prototype[:, None].expand_as(averages)  # (B, K, d)
        high, high_valid = support_vectors(levels.high.unflatten(0, (-1, shots)), cells == 1)
        maps = None
        if self.config.reads == "maps":
            every = self.merge_support(reduced.flatten(0, 1), joined.flatten(0, 1))
            maps = every.unflatten(0, (-1, shots)).float()  # (B, K, d, h, w)
        shown = None if self.familiar is None or self.training else self.familiar.shown(levels, cells == 1)

        def drawn(layer: int, count: int | None) -> Support:
            sample = self._sample(cells, labels, seeds, count, layer)
            tokens = self._tokens(sample, reduced, prototype, joined)  # (B, N, d)
            voters = () if self.votes is None else self.votes.voters(levels, sample, shots)
            chosen = (sample.index, sample.is_foreground, sample.valid, maps, size, voters, shown, sample.hidden)
            # float32, so that a support made under autocast serves outside it too
            return Support(prototype.float(), high, high_valid, tokens.float(), *chosen)

        supports = tuple(drawn(layer, count) for layer, count in enumerate(self._counts(tokens_per_shot)))
        return supports[0] if len(supports) == 1 else replace(supports[0], by_layer=supports), reduced

    def _tokens(self, sample: Sample, reduced: Tensor, prototype: Tensor, joined: Tensor) -> Tensor:
        """(B, N, d) the sampled cells, each merged with a prototype: that of all shots, or of its own."""
        tokens = sample.pick(reduced)  # (B, N, d)
        if self.config.reads != "tokens":
            return tokens
        shot = sample.index // (reduced.shape[-2] * reduced.shape[-1])  # (B, N)
        own = (joined, shot) if self.config.own_prototype else (prototype, None)
        return self.merge_support(tokens.transpose(1, 2)[..., None], *own)[..., 0].transpose(1, 2)

    def _decode(
        self, query: Query, support: Support, size: Size, padding: Tensor | None, explain: bool = False
    ) -> tuple[Prediction, Tensor]:
        """The answer, and the (B, d, h, w) map that the classifier made it from."""
        prior = prior_map(query.levels.high, support.high, support.high_valid, self.pooling.all_shots)  # (B, h, w)
        votes = [] if self.votes is None else self.votes(query.levels, support)
        priors = torch.stack([prior, *votes], 1)  # (B, 1 + votes, h, w)
        joined = torch.cat([query.reduced, priors.to(query.reduced.dtype)], 1)  # (B, d + 1 + votes, h, w)
        merged = self.merge_query(joined, support.prototype)  # (B, d, h, w)
        encoded, traces = self.mixer(merged, support, explain, self._padding(padding, merged))  # (B, d, h, w)
        seen = self.refine(encoded)  # (B, d, h, w)
        scores = self.classifier(seen).float()  # (B, 2, h, w)
        if self.familiar is not None and query.familiar is not None and support.familiar is not None:
            against = self.familiar.against(query.familiar, support.familiar)  # (B, h, w)
            scores = torch.stack([scores[:, 0] + against, scores[:, 1]], 1)
        logits = self.backbone.grid.upsample(scores, size)  # (B, 2, H, W)
        shown = None
        if explain:
            shown = Evidence(prior, support.index, support.is_foreground, support.attended, support.grid, traces)
        return Prediction(logits, Extras(priors[:, 1:] if votes else None, shown)), seen

    def _predict_support(
        self, head: AuxiliaryHead, reduced_query: Tensor, seen: Tensor, reduced_support: Tensor, episode: Episode
    ) -> Tensor:
        """(B, K, 2, H, W) logits of the support masks, predicted from the query's prototype."""
        size = (reduced_query.shape[-2], reduced_query.shape[-1])
        cells = self._cells(known_labels(episode)[:, None], size)  # (B, 1, h, w)
        prototype = self.pooling.of_shots(head.describe(reduced_query, seen)[:, None], cells == 1)[:, 0]  # (B, d)
        logits = head(reduced_support, prototype).float()  # (B, K, 2, h, w)
        size = (episode.support_images.shape[-2], episode.support_images.shape[-1])
        return self.backbone.grid.upsample(logits.flatten(0, 1), size).unflatten(0, logits.shape[:2])

    def _cells(self, labels: Tensor, size: Size) -> Tensor:
        """(B, K, h, w) labels of the cells, as averages and prior maps see them."""
        return self.backbone.grid.cells(labels.flatten(0, 1), size, self.pooling.keeps_small).unflatten(0, labels.shape[:2])

    def _padding(self, padding: Tensor | None, maps: Tensor) -> Tensor | None:
        """(B, h, w) bool: cells of the query that are padding, where the network asks."""
        if padding is None or not self.config.encoder.sees_padding:
            return None
        return nearest_pixels(padding, (maps.shape[-2], maps.shape[-1]))

    def _counts(self, tokens_per_shot: TokenCount | None) -> tuple[int | None, ...]:
        """How many tokens per shot are drawn, each time that they are."""
        layers = self.config.encoder.layers if self.training and self.config.draws_per_layer else 1
        if not isinstance(tokens_per_shot, tuple):
            return (tokens_per_shot,) * layers
        if len(tokens_per_shot) != layers:
            raise ConfigError(f"tokens_per_shot holds {len(tokens_per_shot)} numbers; expected {layers}, one for each draw")
        return tokens_per_shot

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

    def draw(self, seed: int, number: int, shots: int) -> TokenCount:
        """N_s per shot of a step; one for each layer where each draws its own."""
        if self.config.draws_per_layer:
            streams = [Stream("tokens", seed, number, layer) for layer in range(self.config.encoder.layers)]
            return tuple(self.config.sampling.training_tokens(stream.uniform(), shots) for stream in streams)
        return self.config.sampling.training_tokens(Stream("tokens", seed, number).uniform(), shots)

    @property
    def draws_alike(self) -> bool:
        """Whether each step has as many tokens."""
        return self.config.sampling.training_scale == self.config.sampling.training_scale_many == (1.0, 1.0)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The convolutions, the transformer, and what of the backbone is tuned."""
        groups: dict[str, list[nn.Parameter]] = {"convolutions": [], "transformer": []}
        transformer = self.config.mixer == "transformer"
        for name, value in self.named_parameters():
            inside = "transformer" if transformer and name.startswith("mixer.") else "convolutions"
            if value.requires_grad:
                groups.setdefault("backbone" if name.startswith("backbone.") else inside, []).append(value)
        return groups

    @classmethod
    def least_size(cls, config: configs.Config) -> int:
        """How many numbers the encoders of a config have at least."""
        model = config.model
        return (model.encoder.layers if model.mixer == "transformer" else 1) * model.dim**2

    def encode_within(self, features: Features, labels: Tensor, shots: int, negatives: int = 0) -> Support:
        """The support with as many tokens as so many shots have, and as many more of a negative as of a marked image."""
        sampled = self.config.sampling.tokens_per_shot * shots
        return self.encode_support(features, labels, None, max(2, sampled // (labels.shape[1] - negatives)))

    @property
    def known_classes(self) -> int:
        """How many training classes it may recognise."""
        return self.config.familiar

    def knowing(self, rows: Tensor) -> dict[str, Tensor]:
        """The weight of `Familiar`; rows of zeros recognise nothing."""
        assert self.familiar is not None
        weight = torch.zeros_like(self.familiar.weight)
        weight[: len(rows)] = rows
        return {"familiar.weight": weight}

    def matching(self, prediction: Prediction, support: Support) -> Matching | None:
        """What the tokens say by themselves."""
        votes = prediction.extras.votes
        shot = support.index // (support.grid[0] * support.grid[1])
        return None if votes is None else Matching(votes, support.is_foreground, support.valid, shot)

    def explanation(self, prediction: Prediction) -> Explanation | None:
        """Prior map, cycles and attention."""
        return prediction.extras.explanation


def build(config: configs.ModelConfig) -> CyCTR:
    """The network of a configuration, its backbone with random weights: `cyctr.backbones.weights` loads real ones."""
    return CyCTR.build(configs.Config(model=config), Backbone(config.backbone))
