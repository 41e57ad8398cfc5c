"""No pickle is read."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Callable
from functools import partial

from tests.faults.bench import Bench, Outcome, Trial
from tests.faults.process import Failed, command, run, sentence
from tests.faults.subjects import COMPARE

PICKLES = "pickles"


def pickles(size: str, draw: random.Random) -> list[Trial]:
    """Every place where a file of weights or states is read."""
    return [Trial(PICKLES, place, partial(_pickle, place), needs) for place, needs in _PICKLED.items()]


class _Payload:
    """Unpickled, it writes a file."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return os.mkdir, ("unpickled",)


_PICKLED: dict[str, list[str]] = {
    "a checkpoint as pytorch_model.bin": [],
    "a model of ours": ["artefacts"],
    "a result": ["artefacts"],
    "the state of a probe": ["artefacts"],
    "the state of a training": ["train"],
    "a shard of rows": ["save_rows"],
    "a snapshot": ["train_ensemble"],
}
_FILES = {
    "a model of ours": "model.safetensors",
    "a result": "result.safetensors",
    "the state of a probe": "state.safetensors",
    "the state of a training": "state.safetensors",
    "a shard of rows": "shard-*/index.safetensors",
    "a snapshot": "snapshots-*.safetensors",
}


def _pickle(place: str, bench: Bench, draw: random.Random) -> Outcome:
    needs = _PICKLED[place]
    with bench.place(draw) as folder:
        if needs:
            shutil.copytree(bench.undisturbed(needs[0]).out, folder / "out")
            path = sorted((folder / "out").glob(_FILES[place]))[0]
            call = bench.call(needs[0])
        else:
            shutil.copytree(bench.inputs / "tuned", folder / "tuned")
            (folder / "tuned" / "model.safetensors").unlink()
            path = folder / "tuned" / "pytorch_model.bin"
            prompts = str(bench.inputs / "prompts.jsonl")
            models = (str(bench.inputs / "base"), "tuned")
            call = command("compare", *models, "--prompts", prompts, *COMPARE, "--out", "out")
        path.write_bytes(pickle.dumps(_Payload()))
        ended = run(call, folder)
        if (folder / "unpickled").exists():
            raise Failed("the pickle was executed")
        if ended.code == 0 and needs:
            bench.check_same(needs[0], folder, ended)
            return "same bits"
        sentence(ended)
    return "refused"
