"""Checkpoints as their packages carry them, made into ordinary Hugging Face folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

SMILES = (  # rxnfp/tokenization.py
    r"(\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$"
    r"|\%[0-9]{2}|[0-9])"
)
RESIDUE = r"."


def regex_tokenizer(vocabulary: Path, pattern: str) -> Any:
    """A fast tokenizer for which each match of ``pattern`` is a token, between ``[CLS]`` and ``[SEP]``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {token: i for i, token in enumerate(vocabulary.read_text(encoding="utf-8").split())}
    fast = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    fast.decoder = decoders.Fuse()
    ends = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    fast.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ends)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, model_max_length=512, clean_up_tokenization_spaces=False, **special
    )


def bert(
    folder: Path,
    out: Path,
    *,
    kind: str,
    pattern: str,
    vocabulary: Path,
    left: Sequence[str] = (),
    tied: Sequence[str] = (),
) -> None:
    """An old checkpoint, ``pytorch_model.bin`` with ``vocab.txt``.

    Args:
        folder: of the weights and their ``config.json``.
        out: where the model and its tokenizer are saved.
        kind: the class of Hugging Face's whose weights they are, such as ``"BertForMaskedLM"``.
        pattern: what is one token.
        vocabulary: one token per line.
        left: starts of the names of weights that the class has no place for.
        tied: names of weights that are other names for weights that are there.
    """
    import transformers

    cls = getattr(transformers, kind)
    settings = json.loads((folder / "config.json").read_text())
    config = cls.config_class(**{k: v for k, v in settings.items() if k not in _OLD})
    if kind.endswith("SequenceClassification"):
        config.num_labels = settings["num_labels"]
    weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    model = cls(config)
    found = model.load_state_dict({k: v for k, v in weights.items() if not k.startswith(tuple(left))}, strict=False)
    if set(found.missing_keys) - set(tied) or found.unexpected_keys:
        raise SystemExit(f"{folder}: {found} for {kind}; expected the weights of the release that was tried")
    model.tie_weights()
    model.save_pretrained(out)
    tokenizer = regex_tokenizer(vocabulary, pattern)
    if len(tokenizer) != config.vocab_size:
        raise SystemExit(f"{vocabulary} has {len(tokenizer)} tokens; expected {config.vocab_size}, as config.json says")
    tokenizer.save_pretrained(out)


_OLD = (  # of the library of that time, or of the task that was tuned
    "_name_or_path", "architectures", "do_sample", "eos_token_ids", "finetuning_task", "id2label", "label2id",
    "length_penalty", "max_length", "num_beams", "num_labels", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_past", "pruned_heads", "repetition_penalty", "temperature", "top_k", "top_p",
    "torchscript", "use_bfloat16",
)  # fmt: skip


def gguf(file: Path, out: Path) -> None:
    """Quantised weights in one file, as they are when dequantised to float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    here: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **here)
    model.hf_quantizer = None  # it would refuse to save what it read
    del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, **here).save_pretrained(out)


def joined(parts: Sequence[Path], file: Path) -> Path:
    """Parts of a file, one behind the other."""
    if not file.exists():
        partial = file.with_suffix(".partial")
        with partial.open("wb") as out:
            for part in parts:
                with part.open("rb") as read:
                    shutil.copyfileobj(read, out)
        partial.rename(file)
    return file
