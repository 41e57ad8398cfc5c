"""Write the inputs of all calls: tiny random models, prompts, corpora, tasks, and damaged copies of them.

Only torch, transformers, peft and json are used, so inputs do not depend on the code that is compared.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ("<pad>", "<unk>", *(f"w{i}" for i in range(20)))
MOSSA_WORDS = (
    "</s>",
    "<unk>",
    ":",
    "Answer",
    "Say",
    "Input",
    "Output",
    ".",
    *"abcdef",
    "copy",
    "swap",
    "first",
    "last",
)
SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
GPT2 = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {**SHAPE, "num_key_value_heads": 1, "max_position_embeddings": 32, "eos_token_id": 0}
BERT = {**SHAPE, "max_position_embeddings": 32, "pad_token_id": 0}
BART = {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16, "max_position_embeddings": 32, "init_std": 0.1,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3,
}  # fmt: skip
BLOOM = {"hidden_size": 16, "n_layer": 2, "n_head": 2}
CHAT = "{% for message in messages %}w0 {{ message['content'] }} w1{% endfor %}"
TASKS: dict[str, Callable[[list[str]], list[str]]] = {
    "copy": list,
    "swap": lambda word: word[::-1],
    "first": lambda word: word[:1],
    "last": lambda word: word[-1:],
}


def write_inputs(folder: Path) -> None:
    """Write everything below a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    random.seed(0)
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    _write_models(folder)
    _write_derived_models(folder)
    _write_prompts(folder)
    _write_corpora(folder)
    _write_tasks(folder)
    _write_rows(folder)
    _write_plugin(folder)
    _write_bad(folder / "bad", folder)


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


# ---- models ----


def _tokenizer(words: tuple[str, ...], **options: Any) -> Any:
    """Return a tokenizer of whole words."""
    whole = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, unk_token="<unk>", model_input_names=["input_ids"], **options
    )
    tokenizer.chat_template = CHAT
    return tokenizer


def _checkpoint(folder: Path, model: Any, words: tuple[str, ...] = WORDS, **tokens: str) -> None:
    """Save a model with its tokenizer, as Hugging Face does."""
    model.save_pretrained(folder)
    _tokenizer(words, **(tokens or {"pad_token": "<pad>"})).save_pretrained(folder)


def _write_models(folder: Path) -> None:
    """Write one random checkpoint for each way of loading."""
    common: dict[str, Any] = {"vocab_size": len(WORDS), "initializer_range": 0.2}
    made = {
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(**common, **GPT2)),
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, **LLAMA)),
        "bert": transformers.BertForMaskedLM(transformers.BertConfig(**common, **BERT)),
        "bart": transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=len(WORDS), **BART)),
        "bloom": transformers.BloomForCausalLM(transformers.BloomConfig(**common, **BLOOM)),
        "wide-llama": transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**{**common, **LLAMA, "hidden_size": 64, "intermediate_size": 64})
        ),
    }
    for name, model in made.items():
        _checkpoint(folder / name, model)
    _checkpoint(folder / "gpt2-bos", made["gpt2"], pad_token="<pad>", bos_token="w19")
    fields = {**LLAMA, "vocab_size": len(MOSSA_WORDS), "max_position_embeddings": 64, "initializer_range": 0.3}
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    _checkpoint(folder / "mossa-base", base, MOSSA_WORDS, eos_token="</s>")
    if find_spec("gguf"):
        _write_gguf(folder / "tiny.gguf")


def _changed(source: Path, folder: Path, seed: int, scale: float = 0.5, only: str = "transformer.h.1") -> None:
    """Write a copy of a checkpoint with noise in some of its weights."""
    shutil.copytree(source, folder)
    weights = load_file(source / "model.safetensors")
    draw = torch.Generator().manual_seed(seed)
    for name, weight in sorted(weights.items()):
        if name.startswith(only):
            weights[name] = weight + scale * torch.randn(weight.shape, generator=draw)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _write_derived_models(folder: Path) -> None:
    """Write tuned models, a series of checkpoints, and adapters."""
    _changed(folder / "gpt2", folder / "tuned", 1)
    for seed, task in enumerate("abc"):
        _changed(folder / "gpt2", folder / "controls" / task, seed + 2)
    for i, step in enumerate((8, 16, 24, 32)):
        _changed(folder / "gpt2", folder / "series" / f"checkpoint-{step}", 9, 0.1 * i, "transformer.h")
    if find_spec("peft"):
        _adapter(folder / "gpt2", folder / "adapter", ["c_fc"], fan_in_fan_out=True)
        _adapter(folder / "mossa-base", folder / "mossa-tuned", ["q_proj", "v_proj"])
        for seed, task in enumerate(TASKS):
            _adapter(folder / "mossa-base", folder / "mossa-controls" / task, ["q_proj", "v_proj"], seed + 1)


def _adapter(base: Path, folder: Path, targets: list[str], seed: int = 0, **options: Any) -> None:
    """Write a LoRA adapter with random weights."""
    import peft

    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    settings = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM", **options)
    peft.get_peft_model(model, settings).save_pretrained(folder)


def _write_gguf(path: Path) -> None:
    """Write a random Llama in llama.cpp's format."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(32)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    tokens = ["a", "b", "bb", *(f"<{i}>" for i in range(19))]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["b b"])
    writer.add_bos_token_id(3)
    writer.add_eos_token_id(3)
    draw = np.random.default_rng(0)
    for name, shape in _gguf_shapes(len(tokens)).items():
        writer.add_tensor(f"{name}.weight", (1 + 0.2 * draw.standard_normal(shape)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_shapes(d_vocab: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (d_vocab, 16), "output": (d_vocab, 16), "output_norm": (16,)}
    for layer in range(2):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"{block}.{name}"] = (16, 16)
        shapes |= {f"{block}.attn_norm": (16,), f"{block}.ffn_norm": (16,), f"{block}.ffn_down": (16, 32)}
        shapes |= {f"{block}.ffn_gate": (32, 16), f"{block}.ffn_up": (32, 16)}
    return shapes


# ---- texts ----


def _prompts() -> list[dict[str, Any]]:
    """Return 48 prompts of three tasks; the last word tells the task, the first runs through all."""
    return [
        {
            "prompt": f"w{first} w{middle} w{10 + k}",
            "task": task,
            "first": f"w{first}",
            "unit": f"u{k}{first}{middle // 2}",
        }
        for k, task in enumerate("abc")
        for first in range(4)
        for middle in (4, 5, 6, 7)
    ]


def _write_prompts(folder: Path) -> None:
    prompts = _prompts()
    write_lines(folder / "prompts.jsonl", prompts)
    write_lines(folder / "long-prompts.jsonl", [{**p, "prompt": f"{p['prompt']} " * 12} for p in prompts])
    write_lines(folder / "gguf-prompts.jsonl", [{**p, "prompt": "abb" + "ab" * i} for i, p in enumerate(prompts[::4])])
    table = ["text,kind,first", *(f"{p['prompt']},{p['task']},{p['first']}" for p in prompts)]
    (folder / "prompts.csv").write_text("\n".join(table) + "\n")
    groups = '[clusters]\nouter = ["a", "b"]\n\n[held_out]\ntasks = ["c"]\n'
    (folder / "clusters.toml").write_text(groups)


def _write_corpora(folder: Path) -> None:
    """Write 40 documents of three topics: as files, as JSON lines, and as lines of one file."""
    (folder / "corpus").mkdir()
    texts = []
    for i in range(40):
        own = [f"w{6 * (i % 3) + random.randrange(6)}" for _ in range(17)]
        other = [f"w{6 * ((i + 1) % 3) + random.randrange(6)}" for _ in range(7)]
        texts.append(" ".join(random.sample(own + other, 24)))
        (folder / "corpus" / f"{i:02}.txt").write_text(texts[-1])
    write_lines(folder / "corpus.jsonl", [{"body": text} for text in texts])
    (folder / "corpus-lines.txt").write_text("\n".join(texts) + "\n")
    (folder / "stop-words.txt").write_text("w18\nw19\n")
    tables = [f'[[model]]\nmodel = "{folder / name}"\nname = "{name}"\ntwins = 1\n' for name in ("bert", "bart")]
    (folder / "suite.toml").write_text("\n".join(tables))


def _write_tasks(folder: Path) -> None:
    """Write instruction tasks in both formats that the command reads."""
    for name in ("tasks", "natural"):
        (folder / name).mkdir()
    words = [[random.choice("abcdef") for _ in range(4)] for _ in range(45)]
    for number, (task, answer) in enumerate(TASKS.items(), start=1):
        for split, chosen in (("train", words[:24]), ("validation", words[24:33]), ("test", words[33:])):
            lines = [{"ask": f"{task} {' '.join(w)}", "reply": " ".join(answer(w)), "form": w[0]} for w in chosen]
            write_lines(folder / "tasks" / f"{task}_{split}.jsonl", lines)
        instances = [{"input": " ".join(w), "output": [" ".join(answer(w))]} for w in words]
        record = {"Definition": [f"Say {task}."], "Categories": ["kind"], "Instances": instances}
        (folder / "natural" / f"task{number:03}_{task}.json").write_text(json.dumps(record))
    clusters = '[clusters]\nwhole = ["copy", "swap"]\nplace = ["first", "last"]\n\n[held_out]\ntasks = ["last"]\n'
    (folder / "tasks-clusters.toml").write_text(clusters)
    (folder / "chat.jinja").write_text("{% for message in messages %}Say {{ message['content'] }}{% endfor %}")


def _write_rows(folder: Path) -> None:
    """Write hidden states as other engines do: plain tensors in two precisions, and vLLM's file for each request."""
    draw = torch.Generator().manual_seed(5)
    states = {f"layer.{i}": torch.randn(36, 5, 8, generator=draw, dtype=torch.float64) for i in range(3)}
    tokens = torch.randint(20, (36, 5), generator=draw)
    save_file({**states, "tokens": tokens}, folder / "rows.safetensors")
    (folder / "vllm").mkdir()
    for i in range(36):
        hidden = torch.stack([x[i].float() for x in states.values()], dim=1).contiguous()
        path = folder / "vllm" / f"cmpl-{i}.safetensors"
        save_file({"hidden_states": hidden, "token_ids": tokens[i].contiguous()}, path)
        path.with_name(path.name + ".lock").touch()


def _write_plugin(folder: Path) -> None:
    """Write an installed package of somebody else, with a probe of its own."""
    package = folder / "plugin"
    information = package / "meannorm-1.2.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: meannorm\nVersion: 1.2\n")
    (information / "entry_points.txt").write_text("[mechclust.probes]\nMeanNorm = meannorm:MeanNorm\n")
    shutil.copy(Path(__file__).with_name("plugin.txt"), package / "meannorm.py")


# ---- what must be refused ----


def _write_bad(bad: Path, good: Path) -> None:
    bad.mkdir()
    _write_bad_models(bad, good)
    prompts = (good / "prompts.jsonl").read_text()
    (bad / "utf-16.jsonl").write_bytes(prompts.encode("utf-16"))
    (bad / "empty.jsonl").write_text("")
    (bad / "cut.jsonl").write_text(prompts[:100])
    write_lines(bad / "no-task.jsonl", [{"prompt": "w1 w2"}] * 4)
    write_lines(bad / "one-task.jsonl", [{"prompt": f"w{i} w2", "task": "a"} for i in range(9)])
    write_lines(bad / "alike.jsonl", [{"prompt": "w1 w2", "task": "abc"[i % 3]} for i in range(36)])
    for name in ("report-is-a-folder", "not-ours"):
        (bad / name / "figures").mkdir(parents=True)
        (bad / name / "figures" / "mine.png").write_bytes(b"mine")


def _write_bad_models(bad: Path, good: Path) -> None:
    """Write damaged copies of the checkpoint, of its adapter and of the series."""
    _changed(good / "gpt2", bad / "nan", 1, float("nan"))
    zeroed = load_file(good / "gpt2" / "model.safetensors")
    shutil.copytree(good / "gpt2", bad / "zeroed")
    save_file({k: torch.zeros_like(x) for k, x in zeroed.items()}, bad / "zeroed" / "model.safetensors")
    shutil.copytree(good / "gpt2", bad / "cut-weights")
    whole = (good / "gpt2" / "model.safetensors").read_bytes()
    (bad / "cut-weights" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    shutil.copytree(good / "gpt2", bad / "wrong-config")
    config = json.loads((good / "gpt2" / "config.json").read_text())
    (bad / "wrong-config" / "config.json").write_text(json.dumps({**config, "n_embd": 24}))
    shutil.copytree(good / "series", bad / "cut-series")
    (bad / "cut-series" / "checkpoint-16" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    shutil.copytree(good / "series", bad / "nan-series")
    shutil.copy(bad / "nan" / "model.safetensors", bad / "nan-series" / "checkpoint-16" / "model.safetensors")
    if (good / "adapter").exists():
        shutil.copytree(good / "adapter", bad / "adapter")
        settings = json.loads((good / "adapter" / "adapter_config.json").read_text())
        (bad / "adapter" / "adapter_config.json").write_text(json.dumps({**settings, "r": 0}))
