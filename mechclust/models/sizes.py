"""How large a model is, before its weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mechclust.models.hugging_face_checkpoint import config_value
from mechclust.models.plain_model import plain_model
from tasks import InputError

# Families that number positions from behind their padding token, so that fewer tokens fit than they have positions.
_OFFSET_FAMILIES = (
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "mpnet",
    "longformer",
    "data2vec-text",
    "ibert",
    "luke",
    "markuplm",
    "xmod",
    "layoutlmv3",
    "lilt",
    "prophetnet",
)
_EMBEDDING_WIDTHS = ("embedding_size", "input_embedding_size", "word_embed_proj_dim")  # ELECTRA, RemBERT, OPT
# Width of the MLP in BERT and most others, GPT-2, OPT, BART, T5, DistilBERT, CTRL and Falcon.
_MLP_WIDTHS = (
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "encoder_ffn_dim",
    "d_ff",
    "hidden_dim",
    "dff",
    "ffn_hidden_size",
)
# Families with bottlenecks, one attention for several blocks, or blocks without attention.
_OTHER_BLOCKS = ("mobilebert", "zamba", "zamba2", "nemotron_h", "recurrent_gemma")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model that is not loaded, as far as its configuration has them.

    Attributes:
        n_layers: blocks.
        d_model: width of the residual stream.
        d_vocab: token embeddings.
        n_ctx: its longest input, in tokens.
        block_weights: weights of a block, at least: its attention and two matrices of its MLP.
        family: the configuration's ``model_type``, such as ``"gpt2"``.
        n_heads: attention heads of a block.
        n_stored_blocks: blocks with weights of their own, if others share them (ALBERT).
        d_embed: width of the token embeddings, if they are projected to the stream's (ELECTRA).
    """

    n_layers: int | None
    d_model: int | None
    d_vocab: int | None
    n_ctx: int | None
    block_weights: int | None = None
    family: str | None = None
    n_heads: int | None = None
    n_stored_blocks: int | None = None
    d_embed: int | None = None

    @property
    def embedding_weights(self) -> int:
        """Number of weights of the token embeddings."""
        return (self.d_vocab or 0) * (self.d_embed or self.d_model or 0)

    @property
    def least_weights(self) -> int:
        """Number of weights of the blocks and the token embeddings, which is the least that the model has."""
        return (self.n_stored_blocks or self.n_layers or 0) * (self.block_weights or 0) + self.embedding_weights

    @classmethod
    def from_config(cls, config: Any) -> Sizes:
        """Read the sizes in a configuration of Hugging Face's, of text and pictures too."""
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        names = ("num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")
        n_layers, d_model, d_vocab, n_ctx = (config_value(config, name) for name in names)
        if n_ctx is not None and (config.model_type in _OFFSET_FAMILIES or _is_esm_with_positions(config)):
            n_ctx -= config.pad_token_id + 1
        n_ctx = None if n_ctx is None or n_ctx < 1 else n_ctx
        family = getattr(config, "model_type", None)
        n_heads = config_value(config, "num_attention_heads")
        n_stored_blocks = config_value(config, "num_hidden_groups")
        widths = (config_value(config, name) for name in _EMBEDDING_WIDTHS)
        d_embed = next((width for width in widths if width), None)
        block_weights = _block_weights(config)
        return cls(n_layers, d_model, d_vocab, n_ctx, block_weights, family, n_heads, n_stored_blocks, d_embed)

    @classmethod
    def from_model(cls, model: Any) -> Sizes:
        """Read the sizes of a model in memory: Hugging Face's, or one that ``load_pretrained`` or ``build_model`` gave.

        Raises:
            InputError: for something that is not a model.
        """
        plain = plain_model(model) or model
        if hasattr(getattr(plain, "config", None), "model_type"):
            return cls.from_config(plain.config)
        cfg = getattr(plain, "cfg", None)
        if cfg is None:
            raise InputError(
                f"a {type(plain).__name__} is not a model; give a hub name, a directory, or a model in memory: Hugging "
                "Face's, or one from load_pretrained"
            )
        return cls(cfg.n_layers, cfg.d_model, cfg.d_vocab, cfg.n_ctx, n_heads=cfg.n_heads)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model, under the names that they have in TransformerLens's ``cfg``.

    Attributes:
        n_layers: number of blocks. ALBERT's count as often as they are applied.
        n_heads: attention heads in each block.
        d_model: width of the residual stream.
        d_head: width of a head.
        d_vocab: number of tokens.
        n_ctx: longest input, ``None`` if there is no limit. RoBERTa numbers positions from behind
            its padding index, so this is smaller than its ``max_position_embeddings``.
    """

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_vocab: int
    n_ctx: int | None


def _is_esm_with_positions(config: Any) -> bool:
    is_absolute = getattr(config, "position_embedding_type", None) == "absolute"
    return config.model_type == "esm" and is_absolute and config.pad_token_id is not None


def _block_weights(config: Any) -> int | None:
    """Count the weights of the attention, and of the MLP without gates, or return ``None`` if sizes are missing."""
    width, heads, *inner = (config_value(config, n) for n in ("hidden_size", "num_attention_heads", *_MLP_WIDTHS))
    if not isinstance(width, int) or not isinstance(heads, int) or not heads:
        return None
    if getattr(config, "model_type", None) in _OTHER_BLOCKS:
        return None
    d_head = config_value(config, "head_dim") or config_value(config, "d_kv") or width // heads
    groups = config_value(config, "num_key_value_heads") or (1 if config_value(config, "multi_query") else heads)
    hidden = next((size for size in inner if isinstance(size, int)), 4 * width)
    return 2 * width * d_head * (heads + groups) + 2 * width * hidden
