"""The parts of CyCTR that a config asks for: the paper's, the release's variants, and ours."""

from typing import Any

from torch import nn

from cyctr.backbones.backbone import Backbone
from cyctr.config.fields import require
from cyctr.methods.cyctr.config import EncoderConfig, ModelConfig
from cyctr.methods.cyctr.cycle_attention import CycleAttention
from cyctr.methods.cyctr.encoder import Encoder, Mix, PredictedCrossAttention, TransformerMixer
from cyctr.methods.cyctr.extras.cosine_matching import CosineCycleAttention
from cyctr.methods.cyctr.extras.known_classes import Familiar
from cyctr.methods.cyctr.extras.votes import Votes
from cyctr.methods.cyctr.head import AuxiliaryHead, Classifier, Merge, Reduction, ResidualMixer
from cyctr.methods.cyctr.predicted_attention import PredictedAttention
from cyctr.methods.cyctr.released import (
    DeepAuxiliaryHead,
    Refinement,
    ReleasedPooling,
    ReleasedSampler,
    ResidualPair,
    UnpaddedCoordinates,
)
from cyctr.methods.cyctr.sampling import TokenSampler
from cyctr.methods.parts.pooling import Pooling


def parts(config: ModelConfig, backbone: Backbone) -> dict[str, Any]:
    """The parts by their names in the network, made in a fixed order: their first weights are a function of it."""
    dim, biased = config.dim, not config.unbiased
    apart = backbone.config.own_strides
    require(not apart, "model.backbone.own_strides", apart, "false, because CyCTR joins maps of one grid")
    third, fourth, fifth = backbone.channels
    mid, dropout = third + fourth, config.reduction_dropout
    return {
        "reduce_query": Reduction(mid, dim, dropout, biased),
        "reduce_support": Reduction(mid, dim, dropout, biased),
        "pooling": ReleasedPooling() if config.plain_averages else Pooling(),
        "sampler": ReleasedSampler(config.sampling) if config.sampling.released else TokenSampler(),
        "votes": Votes(config.prior) if config.prior.votes else None,
        "merge_query": Merge(2 * dim + 1 + len(config.prior.votes), dim, biased),  # query, prior maps, support prototype
        "merge_support": None if config.reads == "nothing" else Merge(2 * dim, dim, biased),  # support, support prototype
        "mixer": _transformer(config) if config.mixer == "transformer" else ResidualMixer(dim),
        "refine": Refinement(dim, biased) if config.head.refine else nn.Identity(),
        "classifier": Classifier(dim, config.head, biased),
        "auxiliary": _auxiliary(config) if config.auxiliary else None,
        "familiar": Familiar(config.familiar, mid + fifth) if config.familiar else None,
    }


def _transformer(config: ModelConfig) -> TransformerMixer:
    dim, encoder, biased = config.dim, config.encoder, not config.unbiased
    encoders = [_encoder(dim, encoder, biased) for _ in range(encoder.layers)]
    return TransformerMixer(encoders, encoder, UnpaddedCoordinates(dim) if encoder.unpadded_coordinates else None)


def _encoder(dim: int, config: EncoderConfig, biased: bool) -> Encoder:
    own = PredictedAttention(dim, config, biased), Mix(dim, config, biased)
    if config.cross == "none":
        return Encoder(*own, None, None)
    cross: type[PredictedCrossAttention | CycleAttention]
    if config.cross == "predicted":
        cross = PredictedCrossAttention
    else:
        cross = CosineCycleAttention if config.matching == "cosine" else CycleAttention
    return Encoder(*own, cross(dim, config, biased), Mix(dim, config, biased))


def _auxiliary(config: ModelConfig) -> AuxiliaryHead:
    biased = not config.unbiased
    kind = DeepAuxiliaryHead if config.deep_auxiliary else AuxiliaryHead
    return kind(config.dim, config.head, biased, ResidualPair(config.dim, biased) if config.head.refine else None)
