"""What the peers' training and generation share: the model of a Tarn config in terms of the library of
Katharopoulos et al. (pytorch-fast-transformers)."""

import math

import torch

# Mixer of a config -> attention type of the library's causal and recurrent builders.
PARALLEL = {"linear_attention": "causal-linear", "softmax_attention": "full"}
RECURRENT = {"linear_attention": "linear", "softmax_attention": "full"}


def sinusoids(tokens, dim):
    rate = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    angle = torch.arange(tokens).unsqueeze(1) * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(tokens, dim)


def encoder(builder, model, attention):
    """The encoder that `builder` makes of the config's layers (all alike), without dropout."""
    layers = model["layers"]
    mixer, mlp = layers[0]["mixer"], layers[0]["mlp"]
    return builder.from_kwargs(
        attention_type=attention[mixer["name"]],
        n_layers=sum(layer.get("repeat", 1) for layer in layers),
        n_heads=mixer["num_heads"],
        query_dimensions=mixer["key_dim"],
        value_dimensions=mixer.get("value_dim", mixer["key_dim"]),
        feed_forward_dimensions=mlp["hidden_dim"],
        activation=mlp["activation"],
        dropout=0.0,
        attention_dropout=0.0,
        final_normalization=True,
    ).get()


def parallel_encoder(model):
    from fast_transformers.builders import TransformerEncoderBuilder

    return encoder(TransformerEncoderBuilder, model, PARALLEL)


def recurrent_encoder(model):
    from fast_transformers.builders import RecurrentEncoderBuilder

    return encoder(RecurrentEncoderBuilder, model, RECURRENT)


def causal_masks(batch, tokens):
    """Keyword arguments that make a parallel encoder causal over whole sequences."""
    from fast_transformers.masking import LengthMask, TriangularCausalMask

    lengths = torch.full((batch,), tokens, dtype=torch.int64)
    return {"attn_mask": TriangularCausalMask(tokens), "length_mask": LengthMask(lengths)}
