"""Peak memory of measuring a task with every model that it concerns."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.memory import forget_peak, held, peak, printed

_SHAPE = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 344, "num_attention_heads": 4}
_GROWTH = "from tests.benchmarks.mossa import grown; print(grown({}))"


def _setting(n_prompts: int) -> tuple[Any, Any, Any]:
    """A Llama with random weights, a job of one of three tasks, with adapters that nobody trained, and its batches."""
    import transformers
    from peft import LoraConfig, get_peft_model

    from mechclust.commands.mossa import MossaConfig
    from mechclust.commands.mossa.inputs import read_inputs, test_batches
    from mechclust.commands.mossa.jobs import task_jobs
    from mechclust.commands.mossa.models import ResidentBase
    from tests.mechclust.commands.mossa import tiny

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="mechclust-bench-"))
    base = tiny.write_base(folder / "base", max_position_embeddings=256, **_SHAPE)
    draw = torch.Generator().manual_seed(0)
    (folder / "tasks").mkdir()
    for task in ("one", "two", "three"):
        for split, n in (("train", 4), ("test", n_prompts)):
            lines = []
            for i in range(n):
                length = int(torch.randint(20, 100, (), generator=draw))
                words = ["abcdef"[k] for k in torch.randint(6, (length,), generator=draw).tolist()]
                lines.append({"inputs": f"{' '.join(words)} {i}", "targets": "a", "task": task})
            (folder / "tasks" / f"{task}_{split}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    plain = transformers.LlamaForCausalLM.from_pretrained(base)
    for name in ("tuned", "control-one", "control-two", "control-three"):
        lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        wrapped = get_peft_model(plain, lora)
        wrapped.save_pretrained(folder / "adapters" / name)
        plain = wrapped.unload()
    given = tuple(f"{task}={folder / 'adapters' / f'control-{task}'}" for task in ("one", "two", "three"))
    config = MossaConfig(
        tasks=folder / "tasks", experimental=str(folder / "adapters" / "tuned"), controls=given, nulls=0, n_answers=0,
        rbf=False, without_top=False, n_prompts=n_prompts, cutoff=256,
    )  # fmt: skip
    inputs = read_inputs(str(base), config)
    job = replace(task_jobs(inputs, [], 0)[0])
    resident = ResidentBase(str(base), config, folder / "out")
    tasks = [resident.collection[job.task]]
    batches = test_batches(tasks, n_prompts, resident.format, config.tokens_per_batch, job.numbers)
    return resident, job, batches


def grown(n_prompts: int) -> float:
    """By how many MiB the process grows at most while it measures a task of so many prompts, models loaded."""
    from mechclust.commands.mossa.measure import measure_task

    resident, job, batches = _setting(n_prompts)
    with torch.inference_mode():
        resident.plain.model(input_ids=batches[0].tokens, attention_mask=batches[0].attention_mask)
    before = held()
    forget_peak()
    measure_task(resident, job)
    return peak() - before


def memory() -> float:
    """Growth with 4,000 prompts over growth with 1,000, each in processes of its own."""
    return printed(_GROWTH.format(4000), rounds=3)[0] / printed(_GROWTH.format(1000), rounds=3)[0]
