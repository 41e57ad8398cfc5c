"""Families of Hugging Face models, each as a tiny one with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

N = 3  # layers
WORDS = ("<pad>", "<unk>", *(f"w{i}" for i in range(20)))
TOKENS = torch.tensor([[2, 9, 4, 17, 3, 8, 11], [5, 5, 12, 8, 20, 6, 7]])
RIGHT = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
LEFT = RIGHT.flip(1)

_SHAPE = {"hidden_size": 16, "num_hidden_layers": N, "num_attention_heads": 4, "intermediate_size": 24}
_ENDS = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
_DECODER = {**_SHAPE, **_ENDS, "max_position_embeddings": 32}
_GROUPED = {**_DECODER, "num_key_value_heads": 2}
_SLIDING = {**_GROUPED, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}
_ENCODER = {**_SHAPE, "max_position_embeddings": 32, "pad_token_id": 0}
_FROM_2 = {**_SHAPE, "max_position_embeddings": 34, "pad_token_id": 1}  # RoBERTa's positions begin behind its padding
_OPT = {**{k: v for k, v in _DECODER.items() if k != "intermediate_size"}, "ffn_dim": 24}
_PARTS = {"layers": N, "attention_heads": 4, "ffn_dim": 24}


@dataclass(frozen=True)
class Family:
    """One family as a tiny model.

    Attributes:
        name: in the page.
        model: class in transformers, the one that a checkpoint names.
        fields: of its configuration.
        examples: checkpoints of this kind, for the page.
        n_ctx: what the model's ``cfg`` says, ``None`` without limit.
        d_head: width of a head.
        config: class of the configuration, where the model's name does not say it.
    """

    name: str
    model: str
    fields: dict[str, Any]
    examples: str
    n_ctx: int | None = 32
    d_head: int = 4
    config: str | None = None

    def build(self) -> Any:
        """The model, with every weight random: norms that are not 1, biases that are not 0, all of a size to show."""
        import transformers

        body = self.model.partition("For")[0].removesuffix("LMHeadModel").removesuffix("Model")
        config = getattr(transformers, self.config or f"{body}Config")(vocab_size=len(WORDS), **self.fields)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(5)
            model = getattr(transformers, self.model)._from_config(config, attn_implementation="eager")
            for name, weight in model.named_parameters():
                centre = 1.0 if weight.ndim == 1 and "bias" not in name else 0.0
                weight.copy_(centre + 0.3 * torch.randn_like(weight))
        return model.eval()

    def write(self, folder: Path) -> Path:
        """A checkpoint with a tokenizer of words."""
        import transformers
        from tokenizers import Tokenizer, models, pre_tokenizers

        self.build().save_pretrained(folder)
        words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        named = {"unk_token": "<unk>", "pad_token": "<pad>", "model_input_names": ["input_ids"]}
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(folder)
        return folder

    def read(self, folder: Path) -> Any:
        """As plain Hugging Face does."""
        import transformers

        return getattr(transformers, self.model).from_pretrained(folder, attn_implementation="eager").eval()

    def tokens(self, mask: Tensor | None) -> Tensor:
        """With this family's padding token where the mask is 0."""
        return TOKENS if mask is None else TOKENS.masked_fill(mask == 0, self.fields.get("pad_token_id", 0))


FAMILIES = {
    "llama": Family("Llama", "LlamaForCausalLM", _GROUPED, "Llama 2 and 3, SmolLM2, TinyLlama"),
    "qwen2": Family("Qwen2", "Qwen2ForCausalLM", _GROUPED, "Qwen2, Qwen2.5"),
    "qwen3": Family("Qwen3", "Qwen3ForCausalLM", {**_GROUPED, "head_dim": 8}, "Qwen3", d_head=8),
    "mistral": Family("Mistral", "MistralForCausalLM", {**_GROUPED, "sliding_window": 4}, "Mistral 7B"),
    "gemma2": Family("Gemma 2", "Gemma2ForCausalLM", _SLIDING, "Gemma 2 2B, 9B, 27B", d_head=8),
    "gemma3": Family(
        "Gemma 3",
        "Gemma3ForCausalLM",
        {**_SLIDING, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "Gemma 3 270M, 1B",
        d_head=8,
        config="Gemma3TextConfig",
    ),
    "gpt2": Family(
        "GPT-2", "GPT2LMHeadModel", {"n_embd": 16, "n_layer": N, "n_head": 4, "n_positions": 32, **_ENDS}, "GPT-2"
    ),
    "gpt_neox": Family("GPT-NeoX", "GPTNeoXForCausalLM", _DECODER, "Pythia"),
    "phi3": Family("Phi-3", "Phi3ForCausalLM", _GROUPED, "Phi-3, Phi-4"),
    "olmo2": Family("OLMo 2", "Olmo2ForCausalLM", _GROUPED, "OLMo 2"),
    "falcon": Family("Falcon", "FalconForCausalLM", {**_DECODER, "multi_query": True}, "Falcon 7B"),
    "falcon_alibi": Family(
        "Falcon, ALiBi",
        "FalconForCausalLM",
        {**_DECODER, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
        "Falcon RW 1B",
    ),
    "falcon_new": Family(
        "Falcon, newer",
        "FalconForCausalLM",
        {**_DECODER, "new_decoder_architecture": True, "num_kv_heads": 2},
        "Falcon 2 11B, 40B, 180B",
    ),
    "opt": Family("OPT", "OPTForCausalLM", {**_OPT, "word_embed_proj_dim": 16}, "OPT"),
    "opt_350m": Family(
        "OPT, projected",
        "OPTForCausalLM",
        {**_OPT, "word_embed_proj_dim": 8, "do_layer_norm_before": False},
        "OPT 350M",
    ),
    "bloom": Family(
        "Bloom", "BloomForCausalLM", {"hidden_size": 16, "n_layer": N, "n_head": 4, **_ENDS}, "Bloom", n_ctx=2048
    ),
    "biogpt": Family("BioGPT", "BioGptForCausalLM", _DECODER, "BioGPT, as one decoder that TransformerLens lacks"),
    "bert": Family("BERT", "BertForMaskedLM", _ENCODER, "BERT, MiniLM"),
    "roberta": Family("RoBERTa", "RobertaForMaskedLM", {**_FROM_2, "type_vocab_size": 1}, "RoBERTa"),
    "xlm_roberta": Family(
        "XLM-R", "XLMRobertaForMaskedLM", {**_FROM_2, "type_vocab_size": 1}, "XLM-R, multilingual E5"
    ),
    "distilbert": Family(
        "DistilBERT",
        "DistilBertForMaskedLM",
        {"dim": 16, "n_layers": N, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 32, "pad_token_id": 0},
        "DistilBERT",
    ),
    "albert": Family("ALBERT", "AlbertForMaskedLM", {**_ENCODER, "embedding_size": 8}, "ALBERT"),
    "electra": Family("ELECTRA", "ElectraForPreTraining", {**_ENCODER, "embedding_size": 8}, "ELECTRA"),
    "modernbert": Family(
        "ModernBERT",
        "ModernBertForMaskedLM",
        {**_ENCODER, **_ENDS, "local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 2},
        "ModernBERT",
    ),
    "deberta": Family(
        "DeBERTa-v2",
        "DebertaV2ForMaskedLM",
        {
            **{**_ENCODER, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm"},
            **{"share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False, "type_vocab_size": 0},
        },
        "DeBERTa-v3",
    ),
    "deberta_conv": Family(
        "DeBERTa-v2, convolution",
        "DebertaV2ForMaskedLM",
        {**_ENCODER, "relative_attention": True, "pos_att_type": "p2c|c2p", "conv_kernel_size": 3, "conv_act": "gelu"},
        "DeBERTa-v2 XLarge",
    ),
    "mpnet": Family("MPNet", "MPNetForMaskedLM", _FROM_2, "all-mpnet-base-v2"),
    "bart": Family(
        "BART, encoder",
        "BartForConditionalGeneration",
        {
            **{f"{side}_{k}": n for side in ("encoder", "decoder") for k, n in _PARTS.items()},
            **{"d_model": 16, "max_position_embeddings": 32, "scale_embedding": True, "decoder_start_token_id": 3},
            **_ENDS,
        },
        "BART",
    ),
    "t5": Family(
        "T5, encoder",
        "T5ForConditionalGeneration",
        {
            **{"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": N, "num_decoder_layers": 2, "num_heads": 4},
            **{"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0},
        },
        "T5, Flan-T5",
        n_ctx=None,
        d_head=8,
    ),
}
