"""Hugging Face checkpoints with hooks: what the hooks see is what Hugging Face computes."""

from __future__ import annotations

import io
import json
import logging
import random
import re
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mechclust.cli import main
from mechclust.models import load_pretrained, load_tokenizer
from mechclust.models.chat_templates import templated_tokenizer
from mechclust.models.pretrained import load_pretrained_unhooked
from mechclust.models.tokenizers import tokenization_of
from probes import ClusteringHead, causal_checks, head_attribution, interchange, interchange_together, run
from tasks import InputError
from tests.mechclust.models.hooked import NAMES, TOKENS, activations, check_untrained


@pytest.fixture(scope="module")
def checkpoint(write_checkpoint, tmp_path_factory):
    """Writes each checkpoint once; read only."""
    written = {}

    def get(family, base=False):
        if (family, base) not in written:
            written[family, base] = write_checkpoint(tmp_path_factory.mktemp(family), family, base=base)
        return written[family, base]

    return get


@pytest.fixture(scope="module")
def loaded(checkpoint):
    """Loads each checkpoint once; read only."""
    models = {}

    def get(family, base=False, **options):
        key = (family, base, *options.items())
        if key not in models:
            models[key] = load_pretrained(checkpoint(family, base), **options)
        return models[key]

    return get


class TestAgainstHuggingFace:
    """Every family with its head is in ``test_families.py``."""

    @pytest.mark.parametrize(("family", "base"), [("llama", False), ("gpt2", True)])
    def test_hidden_states_and_attentions(self, loaded, checkpoint, family, base):
        """The input of the unembedding is the last hidden state, which comes after the final norm."""
        _, kept = activations(loaded(family, base), [*NAMES, "unembed.hook_in"])
        theirs = transformers.AutoModel.from_pretrained(checkpoint(family, base), attn_implementation="eager").eval()
        with torch.no_grad():
            found = theirs(TOKENS, output_hidden_states=True, output_attentions=True)
        torch.testing.assert_close(kept["unembed.hook_in"], found.hidden_states[-1], atol=1e-6, rtol=0)
        torch.testing.assert_close(kept["blocks.0.hook_resid_post"], found.hidden_states[1], atol=1e-6, rtol=0)
        for i in range(2):
            torch.testing.assert_close(kept[f"blocks.{i}.hook_resid_pre"], found.hidden_states[i], atol=1e-6, rtol=0)
            torch.testing.assert_close(kept[f"blocks.{i}.attn.hook_pattern"], found.attentions[i], atol=1e-6, rtol=0)


class TestWhatComesBack:
    def test_has_its_tokenizer_and_context(self, loaded):
        for family in ("gpt2", "llama", "bert"):
            model = loaded(family)
            assert model.tokenizer("w0 w3 nonsense")["input_ids"] == [2, 5, 1]
            assert model.cfg.n_ctx == 16

    def test_types(self, checkpoint):
        model = load_pretrained(checkpoint("gpt2"), dtype=torch.bfloat16)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        untrained = load_pretrained(checkpoint("gpt2"), dtype=torch.bfloat16, untrained=True)
        assert {p.dtype for p in untrained.parameters()} == {torch.bfloat16}

    def test_speaks_on_neither_stream(self, checkpoint, capfd):
        load_pretrained(checkpoint("bert"))
        assert capfd.readouterr() == ("", "")


class TestHeads:
    def test_that_a_checkpoint_lacks_is_named(self, checkpoint, tmp_path):
        """Its weights are drawn at random, and logits with them. A tied one has those of the embedding."""
        folder = shutil.copytree(checkpoint("llama"), tmp_path / "body")
        weights = load_file(folder / "model.safetensors")
        del weights["lm_head.weight"]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        with pytest.warns(UserWarning, match=r"has no head \(lm_head\.weight\), so its logits are those of random"):
            load_pretrained(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            for family, base in [("llama", False), ("gpt2", True), ("bert", True)]:
                load_pretrained(checkpoint(family, base))


class TestRandomWeights:
    def test_are_seeded_and_not_the_trained_ones(self, checkpoint):
        check_untrained(checkpoint("gpt2"))

    def test_need_no_weights_on_disk(self, checkpoint, tmp_path):
        shutil.copytree(checkpoint("gpt2"), tmp_path / "m")
        (tmp_path / "m" / "model.safetensors").unlink()
        assert load_pretrained(tmp_path / "m", untrained=True).cfg.n_layers == 2

    @pytest.mark.parametrize("untrained", [False, True])
    def test_global_random_state_is_left_alone(self, loaded, checkpoint, untrained):
        loaded("gpt2")  # imports done
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        load_pretrained(checkpoint("gpt2"), untrained=untrained, seed=3)
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def set_field(path, name, value):
    """Changes a field of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


def add_weights(path, *names):
    """Add weights to a checkpoint's file."""
    file = path / "model.safetensors"
    save_file({**load_file(file), **{name: torch.ones(2) for name in names}}, file, {"format": "pt"})


class TestRefusals:
    @pytest.fixture
    def copy(self, checkpoint, tmp_path):
        return shutil.copytree(checkpoint("gpt2"), tmp_path / "m")

    def refused(self, path):
        with pytest.raises(InputError) as error:
            load_pretrained(path)
        assert "\n" not in str(error.value)
        return str(error.value)

    def test_no_such_directory(self, tmp_path):
        path = tmp_path / "none"
        assert self.refused(path) == (
            f"no model directory {str(path)!r}; give a local directory or a hub name such as 'gpt2'"
        )
        assert self.refused("./none").startswith("no model directory 'none';")

    def test_a_model_that_transformer_lens_took_apart(self, checkpoint):
        from transformer_lens.model_bridge import TransformerBridge

        plain, tokenizer = load_pretrained_unhooked(checkpoint("gpt2"))
        bridge = TransformerBridge.boot_transformers("m", hf_model=plain, tokenizer=tokenizer, device="cpu")
        assert self.refused(plain) == (
            "TransformerLens made a bridge of this model and replaced its modules; give the bridge, or make the bridge "
            "of copy.deepcopy(model)"
        )
        assert load_pretrained(bridge) is bridge

    def test_no_configuration(self, copy):
        (copy / "config.json").unlink()
        assert self.refused(copy) == (
            f"{str(copy)!r} has no config.json; give a directory written by save_pretrained, with model and tokenizer"
        )

    def test_no_weights(self, copy):
        (copy / "model.safetensors").unlink()
        assert self.refused(copy) == (
            f"{str(copy)!r} has a config.json but no weights (model.safetensors); "
            "save the model there with save_pretrained"
        )

    def test_no_tokenizer(self, copy):
        for file in copy.glob("tokenizer*"):
            file.unlink()
        assert self.refused(copy) == (
            f"{str(copy)!r} has no tokenizer (tokenizer.json); save it there with tokenizer.save_pretrained"
        )

    def test_a_tokenizer_that_is_a_list_of_words(self, tmp_path):
        transformers.BertConfig(vocab_size=9).save_pretrained(tmp_path)
        (tmp_path / "model.safetensors").write_text("")  # is not read
        (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\ntwo\n")
        assert load_tokenizer(tmp_path)[0]("two one")["input_ids"] == [2, 6, 5, 3]

    @pytest.mark.parametrize("family", ["GPT2", "Bert", "T5", "GPTNeoX", "XLNet", "Gemma3Text", "Albert"])
    def test_a_tokenizer_without_words(self, tmp_path, family):
        """Transformers makes one for files of another family, whose tokens are all unknown or left out."""
        getattr(transformers, f"{family}Config")().save_pretrained(tmp_path)
        for file in ("model.safetensors", "tokenizer_config.json"):
            (tmp_path / file).write_text("{}")
        with pytest.raises(InputError, match="its tokenizer has no vocabulary; save it there with tok"):
            load_tokenizer(tmp_path)

    @pytest.mark.parametrize("share", [0.0, 0.99])
    def test_truncated_weights(self, copy, share):
        data = (copy / "model.safetensors").read_bytes()
        (copy / "model.safetensors").write_bytes(data[: int(share * len(data))])
        message = self.refused(copy)
        assert message.startswith(
            f"cannot load a model from the directory {str(copy)!r}: its weights are damaged or cut off ("
        )
        assert message.endswith("); download them, or save the model, again")

    def test_truncated_weights_of_pytorch(self, copy):
        (copy / "model.safetensors").unlink()
        (copy / "pytorch_model.bin").write_bytes(b"PK" + bytes(100))
        assert "its weights are damaged or cut off (" in self.refused(copy)

    def test_weights_without_their_index(self, copy):
        (copy / "model.safetensors").rename(copy / "model-00001-of-00002.safetensors")
        message = self.refused(copy)
        assert f"the directory {str(copy)!r}: it has no weights that can be read here (Error no file named" in message
        assert message.endswith("; save it with save_pretrained")

    @pytest.mark.parametrize("error", [PermissionError("no permission"), OSError(28, "No space left on device")])
    def test_weights_that_cannot_be_downloaded(self, copy, error, monkeypatch):
        def fails(*args, **options):
            raise error

        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fails)
        message = self.refused(copy)
        assert f"a file of it could not be read or downloaded ({error}); check the network and the free" in message

    def test_configuration_that_is_not_json(self, copy):
        (copy / "config.json").write_text("{")
        assert "is not a valid JSON file" in self.refused(copy)

    def test_unknown_architecture(self, copy):
        (copy / "config.json").write_text('{"model_type": "zork"}')
        assert re.search("zork.*; give a checkpoint of a family that transformers knows", self.refused(copy))

    @pytest.mark.parametrize("size", ["n_embd", "vocab_size"])
    def test_weights_of_other_shapes(self, copy, size):
        set_field(copy / "config.json", size, 48)
        assert re.search(
            r"has the weights '.*' of shape \[.*\], not \[.*\], for its config.json; give the two that were saved",
            self.refused(copy),
        )

    @pytest.mark.parametrize(
        ("file", "field", "value", "said"),
        [
            ("config.json", "n_embd", "16", "its config.json cannot be used (.*n_embd"),
            ("config.json", "activation_function", "nope", "its config.json cannot be used (KeyError: 'nope')"),
            ("config.json", "architectures", 5, "its config.json cannot be used (TypeError"),
            ("config.json", "n_head", 3, "its config.json cannot be used (ValueError: `embed_dim`"),
            ("config.json", "n_head", -2, "its config.json has n_head -2; expected at least 1"),
            ("config.json", "vocab_size", 0, "its config.json has vocab_size 0; expected at least 1"),
            ("tokenizer.json", "added_tokens", None, "its tokenizer (tokenizer.json, tokenizer_config.json) cannot"),
            ("tokenizer.json", "model", {"type": "WordLevel", "vocab": {}, "unk_token": "<unk>"}, "its tokenizer ("),
            ("tokenizer_config.json", "pad_token", 5, "its tokenizer ("),
            ("tokenizer_config.json", "model_max_length", "x", "its tokenizer ("),
        ],
    )
    def test_a_damaged_part_is_named(self, copy, file, field, value, said):
        set_field(copy / file, field, value)
        message = self.refused(copy)
        start, _, rest = said.partition(".*")
        assert message.startswith(f"cannot load a model from the directory {str(copy)!r}: {start}")
        assert rest in message
        assert "family" not in message

    @pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
    @pytest.mark.parametrize("data", [b"", b"[1]", "{}".encode("utf-16")])
    def test_a_part_that_is_no_object(self, copy, file, data):
        (copy / file).write_bytes(data)
        part = "config.json" if file == "config.json" else "tokenizer ("
        message = self.refused(copy)
        assert message.startswith(f"cannot load a model from the directory {str(copy)!r}: its {part}")
        assert message.endswith("; download it, or save it, again")

    @pytest.mark.parametrize(
        "option",
        [
            {"dtype": torch.int64},
            {"dtype": "float8"},
            {"dtype": "nn"},
            {"device": "nope"},
            {"device": []},
            {"device_map": []},
            {"quantization": 5},
            {"quantization": {}},
        ],
    )
    def test_an_option_that_no_model_has(self, copy, option):
        with pytest.raises(InputError, match=r"^(no )?(dtype|device|device_map|quantization) .*; expected "):
            load_pretrained(copy, **option)

    def test_a_dtype_by_name(self, copy):
        by_name = load_pretrained(copy, dtype="bfloat16")
        assert {weight.dtype for weight in by_name.parameters()} == {torch.bfloat16}

    def test_quantised_weights_that_do_not_run_on_a_cpu(self, copy):
        pytest.importorskip("bitsandbytes")
        quantised = {"quant_method": "bitsandbytes", "load_in_4bit": True}
        set_field(copy / "config.json", "quantization_config", quantised)
        assert re.search(
            r"^the quantised weights of this GPT2Model do not run on the CPU \(.*\); give weights", self.refused(copy)
        )

    @pytest.mark.parametrize("layers", [1, 3])
    def test_weights_of_another_depth(self, copy, layers):
        """Hugging Face fills a layer that the file lacks with random numbers, and drops one too many."""
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "n_layer": layers}))
        assert self.refused(copy).startswith(f"cannot load a model from the directory {str(copy)!r}: ")

    def test_a_head_of_several_layers_is_left_over(self, copy):
        """As of a reward model, which was trained of this one."""
        add_weights(copy, "score.0.weight", "score.0.bias", "score.2.weight")
        assert load_pretrained(copy).cfg.n_layers == load_pretrained(copy, untrained=True).cfg.n_layers

    def test_a_weight_that_blocks_do_not_have(self, copy):
        add_weights(copy, "transformer.h.0.attn.q_norm.weight")
        assert self.refused(copy).endswith(
            "has weights 'transformer.h.0.attn.q_norm.weight' too many for its config.json; give the two that were "
            "saved together"
        )

    def test_file_that_is_no_model(self, tmp_path):
        pytest.importorskip("gguf")
        (tmp_path / "weights.gguf").write_bytes(b"no")
        assert self.refused(tmp_path / "weights.gguf").startswith(
            f"cannot load a model from the file {str(tmp_path / 'weights.gguf')!r}: "
        )

    def test_hub_name_without_a_network(self):
        message = self.refused("nobody/no-such-model")
        assert message.startswith(
            "no directory 'nobody/no-such-model' here, and the Hugging Face hub cannot be reached "
            "(OfflineModeIsEnabled: "
        )
        assert message.endswith("); check the path, or the network")

    @pytest.mark.parametrize(
        ("lacks", "files"),
        [
            ("no weights that can be read here", ("config.json", "tokenizer.json", "tokenizer_config.json")),
            ("no tokenizer was downloaded with it", ("config.json", "model.safetensors")),
        ],
        ids=["weights", "tokenizer"],
    )
    def test_hub_name_of_which_a_part_was_downloaded(self, copy, tmp_path, monkeypatch, lacks, files):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        repository = tmp_path / "models--me--model"
        for folder in ("snapshots/abc", "refs"):
            (repository / folder).mkdir(parents=True)
        (repository / "refs" / "main").write_text("abc")
        for file in files:
            shutil.copy(copy / file, repository / "snapshots" / "abc" / file)
        message = self.refused("me/model")
        assert lacks in message
        assert "run 'hf download me/model' with a network" in message

    def test_mistyped_directory(self):
        """No name of a model, so that nothing is asked of the hub; it cost 50 seconds."""
        message = self.refused("runs/tuned model/checkpoint")
        assert message == (
            "no directory 'runs/tuned model/checkpoint' here, and 'runs/tuned model/checkpoint' is not the name of "
            "a model on the Hugging Face hub (they look like 'gpt2' or 'meta-llama/Llama-3.2-1B'); give the path of a "
            "directory written by save_pretrained"
        )

    def test_mistyped_directory_beside_the_one_that_is_meant(self, tmp_path, monkeypatch):
        (tmp_path / "my-model").mkdir()
        monkeypatch.chdir(tmp_path)
        assert self.refused("my-modle").startswith("no directory 'my-modle' here (did you mean 'my-model'?), and ")

    def test_the_hub_is_asked_once(self, monkeypatch):
        asked = []

        def no_network(self, name, timeout):
            asked.append((name, timeout))
            raise ConnectionError("no route to host")

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", no_network)
        assert "cannot be reached (ConnectionError: no route to host)" in self.refused("gpt3")
        assert asked == [("gpt3", 5)]

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            ("RepositoryNotFoundError", "and no model 'some/model' on the Hugging Face hub (or a private one)"),
            ("GatedRepoError", "but access to it is restricted; request it on the model's page and log in"),
        ],
    )
    def test_what_the_hub_does_not_give(self, monkeypatch, error, text):
        import httpx
        from huggingface_hub import errors

        def refuse(self, name, timeout):
            raise getattr(errors, error)("no", response=httpx.Response(404, request=httpx.Request("GET", "http://h")))

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
        assert text in self.refused("some/model")

    def test_a_revision_is_asked_for_after_an_at(self, monkeypatch):
        from types import SimpleNamespace

        import httpx
        from huggingface_hub import errors

        from mechclust.models.hugging_face_checkpoint import find_checkpoint

        def known(self, name, timeout, revision=None):
            if revision == "step7":
                response = httpx.Response(404, request=httpx.Request("GET", "http://h"))
                raise errors.RevisionNotFoundError("no", response=response)
            return SimpleNamespace(siblings=[])

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", known)
        source = find_checkpoint("some/model@step1000")
        assert (source.name, source.revision) == ("some/model", "step1000")
        assert source.options == {"local_files_only": False, "trust_remote_code": False, "revision": "step1000"}
        assert str(source) == "'some/model' at the revision 'step1000' from the Hugging Face hub"
        assert "revision" not in find_checkpoint("some/model").options
        assert "'some/model' on the Hugging Face hub has no revision 'step7'; its page" in self.refused(
            "some/model@step7"
        )


class TestForeignCode:
    """A checkpoint's own code runs only where the user says so."""

    @pytest.fixture
    def foreign(self, checkpoint, tmp_path):
        folder, proof = shutil.copytree(checkpoint("llama"), tmp_path / "m"), tmp_path / "proof"
        config = json.loads((folder / "config.json").read_text())
        brings = {"model_type": "foreign", "auto_map": {k: f"code.{v}" for k, v in _FOREIGN.items()}}
        (folder / "config.json").write_text(json.dumps({**config, **brings}))
        (folder / "code.py").write_text(_CODE.format(proof=str(proof)))
        return folder, proof

    def test_is_refused_in_one_sentence(self, foreign):
        folder, proof = foreign
        with pytest.raises(InputError) as error:
            load_pretrained(folder)
        assert str(error.value) == (
            f"cannot load a model from the directory {str(folder)!r}: it comes with its own code (auto_map in its "
            "config), which is not run; read that code, and if you trust it give --trust-remote-code "
            "(trust_remote_code=True)"
        )
        assert not proof.exists()

    def test_nobody_is_asked(self, foreign, monkeypatch, capfd):
        """Hugging Face asks on standard input where nothing is said, and `yes y |` would answer."""
        folder, proof = foreign
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
        assert main(["check", str(folder)]) == 2
        said = capfd.readouterr().err
        assert "it comes with its own code" in said
        assert said.count("\n") == 1
        assert not proof.exists()
        assert len(sys.stdin.read()) == 40

    def test_is_run_where_it_is_trusted_and_says_so(self, foreign, capfd):
        folder, proof = foreign
        model = load_pretrained(folder, trust_remote_code=True)
        assert proof.exists()
        assert f"code that comes with {str(folder)!r} may be run" in capfd.readouterr().err
        assert model.cfg.n_layers == 2


_FOREIGN = {"AutoConfig": "ForeignConfig", "AutoModelForCausalLM": "ForeignForCausalLM"}
_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
open({proof!r}, "w").write("was here")

class ForeignConfig(LlamaConfig):
    model_type = "foreign"

class ForeignForCausalLM(LlamaForCausalLM):
    config_class = ForeignConfig
"""


class TestTokenization:
    """Hugging Face's own is the rule; TransformerLens would put a beginning of sequence before every text."""

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_no_beginning_is_added(self, gpt2_with_bos, model_with_bos, attention):
        from transformers import AutoTokenizer

        theirs = AutoTokenizer.from_pretrained(gpt2_with_bos)
        model = model_with_bos if attention == "eager" else load_pretrained(gpt2_with_bos, attention=attention)
        assert theirs("w0 w3")["input_ids"] == model.tokenizer("w0 w3")["input_ids"] == [2, 5]
        assert model.tokenizer.pad_token is None
        assert len(model.tokenizer) == len(theirs)
        assert load_tokenizer(gpt2_with_bos)[0]("w0 w3")["input_ids"] == [2, 5]

    def test_the_options(self, model_with_bos):
        tokenizer = model_with_bos.tokenizer
        assert [templated_tokenizer(tokenizer, bos=bos)(["w0 w3"]) for bos in ("model", "yes", "no")] == [
            [[2, 5]], [[0, 2, 5]], [[2, 5]]
        ]  # fmt: skip
        assert templated_tokenizer(tokenizer, bos="yes")(["<pad> w0", "w0"]) == [[0, 2], [0, 2]]  # never twice
        assert templated_tokenizer(tokenizer)([]) == []
        assert tokenization_of(tokenizer)["adds"] == "none"
        assert tokenization_of(tokenizer, bos="yes")["adds"] == "<pad> before"

    def test_interventions_read_texts_as_the_probe_did(self, model_with_bos):
        model = model_with_bos
        texts = [f"w{i} w{i + 3}" for i in range(6)]
        probe = ClusteringHead(())
        run(model, texts, probe, bos="yes")
        found = [
            head_attribution(model, texts, probe, bos="yes"),
            causal_checks(model, texts, probe, lambda logits, batch: batch.index >= 0, bos="yes"),
            interchange(model, texts, probe, heads=1, recipients=2, bos="yes"),
            interchange_together(model, texts, probe, heads=[(probe.outputs[0], 0)], recipients=2, bos="yes"),
        ]
        assert {result.metadata["tokenization"]["adds"] for result in found} == {"<pad> before"}
        assert found[1]["influence"].shape[-1] == 3

    def test_of_a_tokenizer_that_adds_them(self, checkpoint):
        tokenizer = bert_like(load_tokenizer(checkpoint("bert"))[0])
        found = [templated_tokenizer(tokenizer, bos=bos)(["w0", "w1"])[0] for bos in ("model", "yes", "no")]
        assert found == [[0, 2, 1], [0, 2, 1], [2, 1]]
        assert tokenization_of(tokenizer) == {
            "tokenizer": type(tokenizer).__name__,
            "bos": "model",
            "chat": False,
            "adds": "<pad> before, <unk> after",
        }

    def test_without_such_a_token(self, checkpoint):
        tokenizer = load_tokenizer(checkpoint("llama"))[0]
        with pytest.raises(InputError, match="no beginning-of-sequence token, so --bos yes has none to add; leave out"):
            templated_tokenizer(tokenizer, bos="yes")


def bert_like(tokenizer):
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<pad> $A <unk>", special_tokens=[("<pad>", 0), ("<unk>", 1)]
    )
    tokenizer.cls_token, tokenizer.sep_token = "<pad>", "<unk>"
    return tokenizer


@pytest.fixture(scope="module")
def gpt2_with_bos(checkpoint, tmp_path_factory):
    """As GPT-2's: a beginning of sequence that its tokenizer does not put, and no padding token."""
    from transformers import PreTrainedTokenizerFast

    folder = shutil.copytree(checkpoint("gpt2"), tmp_path_factory.mktemp("bos") / "m")
    backend = PreTrainedTokenizerFast.from_pretrained(folder).backend_tokenizer
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<pad>", eos_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model_with_bos(gpt2_with_bos):
    """Read only."""
    return load_pretrained(gpt2_with_bos)


class TestPlacement:
    def test_part_of_the_model_on_disk(self, loaded, checkpoint):
        """Placed by accelerate, whose parts on disk come to the CPU only while they run."""
        pytest.importorskip("accelerate")
        path = checkpoint("llama")
        places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
        places |= {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
        names = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
        for attention in ("eager", "sdpa"):
            spread = load_pretrained(path, device_map=places, attention=attention)
            assert {weight.device.type for weight in spread.parameters()} == {"cpu", "meta"}
            _, kept = activations(spread, names)
            _, expected = activations(loaded("llama"), names)
            for name in names:
                torch.testing.assert_close(kept[name], expected[name], atol=1e-6, rtol=0)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_part_of_the_model_on_a_gpu(self, loaded, checkpoint, attention):
        places = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu"}
        places |= {"model.norm": "cpu", "model.rotary_emb": 0, "lm_head": "cpu"}
        names = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
        spread = load_pretrained(checkpoint("llama"), device_map=places, attention=attention)
        _, kept = activations(spread, names)
        _, expected = activations(loaded("llama"), names)
        for name in names:
            torch.testing.assert_close(kept[name].cpu(), expected[name], atol=1e-4, rtol=0)

    @pytest.fixture(scope="class")
    @classmethod
    def untrained_states(cls, loaded):
        """Those that an untrained model has on the CPU, by its attention; before a GPU is simulated."""
        site = "blocks.1.hook_resid_post"
        models = {kind: loaded("llama", untrained=True, seed=3, attention=kind) for kind in ("eager", "sdpa")}
        return {kind: activations(model, [site])[1][site] for kind, model in models.items()}

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_untrained_models_are_placed_alike(self, loaded, checkpoint, attention):
        options = {"untrained": True, "seed": 3, "attention": attention}
        whole = loaded("llama", **options)
        spread = load_pretrained(checkpoint("llama"), device_map="auto", **options)
        site = "blocks.1.hook_resid_post"
        states = activations(spread, [site])[1][site]
        torch.testing.assert_close(states.cpu(), activations(whole, [site])[1][site], atol=1e-4, rtol=0)

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_untrained_models_on_one_device(self, untrained_states, checkpoint, attention, device):
        """As a map gives it where there is one GPU; tokens are given on the CPU."""
        site = "blocks.1.hook_resid_post"
        options = {"untrained": True, "seed": 3, "attention": attention, "device_map": device}
        _, moved = activations(load_pretrained(checkpoint("llama"), **options), [site])
        assert moved[site].device.type == device
        torch.testing.assert_close(moved[site].cpu(), untrained_states[attention], atol=1e-4, rtol=0)

    @pytest.mark.parametrize("untrained", [False, True])
    @pytest.mark.parametrize(("option", "value"), [("device_map", "auto"), ("quantization", "8bit")])
    def test_a_model_in_memory_is_neither_spread_nor_quantised(self, checkpoint, option, value, untrained):
        plain, tokenizer = load_pretrained_unhooked(checkpoint("gpt2"))
        with pytest.raises(InputError, match=f"{option} is '{value}', but the model is in memory"):
            load_pretrained(plain, tokenizer=tokenizer, untrained=untrained, **{option: value})

    def test_an_untrained_copy_of_a_model_in_memory_takes_a_device_and_a_dtype(self, checkpoint):
        plain, tokenizer = load_pretrained_unhooked(checkpoint("gpt2"))
        copy = load_pretrained(plain, tokenizer=tokenizer, untrained=True, device="cpu", dtype=torch.bfloat16)
        assert {p.dtype for p in copy.parameters()} == {torch.bfloat16}

    def test_a_device_map_that_is_none(self, checkpoint):
        with pytest.raises(InputError, match="device_map is 'autoo'; expected 'auto', 'balanced', 'sequential', a dev"):
            load_pretrained(checkpoint("gpt2"), device_map="autoo")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")
    @pytest.mark.parametrize(
        ("places", "missing"),
        [
            ("cuda:1", "cuda:1"),
            ({"": "cpu", "lm_head": "cuda:1"}, "cuda:1"),
            ({"": "disk", "lm_head": "nope"}, "nope"),
            ({"": 0}, "0"),
        ],
    )
    def test_devices_of_a_map_that_are_not_there(self, checkpoint, places, missing):
        with pytest.raises(InputError, match=f"^device_map names '{missing}', which this machine does not have; "):
            load_pretrained(checkpoint("gpt2"), device_map=places)

    def test_options_that_exclude_each_other(self, checkpoint):
        with pytest.raises(InputError, match="device is 'cpu' and device_map 'auto'; give one of them"):
            load_pretrained(checkpoint("gpt2"), device="cpu", device_map="auto")
        with pytest.raises(InputError, match="max_memory limits what device_map places; give device_map='auto' too"):
            load_pretrained(checkpoint("gpt2"), max_memory={"cpu": "1GiB"})
        with pytest.raises(InputError, match="quantization is '3bit'; expected '8bit' or '4bit'"):
            load_pretrained(checkpoint("gpt2"), quantization="3bit")

    def test_without_the_library(self, checkpoint, monkeypatch):
        monkeypatch.setattr("mechclust.models.installed.find_spec", lambda name: None)
        with pytest.raises(
            InputError, match="quantising to 8bit needs bitsandbytes; install it with: pip install 'mech"
        ):
            load_pretrained(checkpoint("gpt2"), quantization="8bit")

    def test_gguf_without_the_library(self, tmp_path, monkeypatch):
        monkeypatch.setattr("mechclust.models.installed.find_spec", lambda name: None)
        (tmp_path / "m.gguf").write_bytes(b"GGUF")
        with pytest.raises(InputError) as error:
            load_pretrained(tmp_path / "m.gguf")
        assert str(error.value) == (
            f"reading {str(tmp_path / 'm.gguf')!r} needs gguf; install it with: pip install 'mechclust[gguf]'"
        )


class TestQuantised:
    @pytest.mark.parametrize("kind", ["8bit", "4bit"])
    def test_what_hooks_see_is_what_hugging_face_computes(self, write_checkpoint, tmp_path, kind, monkeypatch):
        pytest.importorskip("bitsandbytes")
        path = write_checkpoint(tmp_path, "llama", hidden_size=64, intermediate_size=64)
        model = load_pretrained(path, quantization=kind)
        theirs, _ = load_pretrained_unhooked(path, quantization=kind)
        logged = []
        monkeypatch.setattr(logging.Logger, "handle", lambda self, record: logged.append(record))
        _, kept = activations(model, ["blocks.0.hook_resid_post", "blocks.1.attn.hook_pattern"])
        with torch.no_grad():
            expected = theirs(TOKENS, output_hidden_states=True, output_attentions=True)
        torch.testing.assert_close(kept["blocks.0.hook_resid_post"], expected.hidden_states[1], atol=1e-6, rtol=0)
        torch.testing.assert_close(kept["blocks.1.attn.hook_pattern"], expected.attentions[1], atol=1e-6, rtol=0)
        _, exact = activations(load_pretrained(path, attention="sdpa"), ["blocks.1.hook_resid_post"])
        _, rounded = activations(model, ["blocks.1.hook_resid_post"])
        assert not torch.allclose(exact["blocks.1.hook_resid_post"], rounded["blocks.1.hook_resid_post"], atol=1e-4)
        assert not logged  # bitsandbytes warns at every multiplication

    def test_takes_no_adapter(self, checkpoint, tmp_path):
        pytest.importorskip("bitsandbytes")
        peft = pytest.importorskip("peft")
        base = transformers.LlamaForCausalLM.from_pretrained(checkpoint("llama"))
        peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path)
        with pytest.raises(InputError, match="an adapter cannot be added exactly to rounded weights; load the base in"):
            load_pretrained(checkpoint("llama"), adapter=tmp_path, quantization="8bit")

    def test_gguf_file(self, tmp_path, capfd):
        """Quantised files are read as ordinary numbers."""
        write_gguf(tmp_path / "tiny.gguf")
        model = load_pretrained(tmp_path / "tiny.gguf")
        assert capfd.readouterr() == ("", "")
        theirs, _ = load_pretrained_unhooked(tmp_path / "tiny.gguf")
        with torch.no_grad():
            expected = theirs(TOKENS).logits
        torch.testing.assert_close(activations(model, [])[0], expected, atol=1e-5, rtol=0)
        assert type(model).__name__ == "TransformerBridge"
        assert model.tokenizer("bb")["input_ids"] == [2]
        assert load_tokenizer(tmp_path / "tiny.gguf")[1].num_hidden_layers == 2


def write_gguf(path):
    gguf = pytest.importorskip("gguf")
    d, draw = 16, np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(16)
    writer.add_embedding_length(d)
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
    shapes = {"token_embd": (len(tokens), d), "output": (len(tokens), d), "output_norm": (d,)}
    for layer in range(2):
        inside = {f"attn_{k}": (d, d) for k in ("q", "k", "v", "output")} | {"attn_norm": (d,), "ffn_norm": (d,)}
        inside |= {"ffn_gate": (32, d), "ffn_up": (32, d), "ffn_down": (d, 32)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in inside.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (1 + 0.2 * draw.standard_normal(shape)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class TestAttention:
    @pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
    def test_sdpa_reads_the_same_residual_stream(self, loaded, checkpoint, family):
        names = ["hook_embed", *(f"blocks.{i}.{k}" for i in range(2) for k in ("hook_resid_pre", "hook_resid_post"))]
        _, eager = activations(loaded(family), names)
        model = load_pretrained(checkpoint(family), attention="sdpa")
        _, sdpa = activations(model, names)
        for name in names:
            torch.testing.assert_close(sdpa[name], eager[name], atol=2e-6, rtol=0)
        assert type(model).__name__ == "ReadOnlyModel"
        assert model.body.config._attn_implementation == "sdpa"
        assert not any("hook_pattern" in name for name in model.hook_dict)

    def test_a_family_without_that_kernel(self, tmp_path):
        """Bloom has eager attention only."""
        config = transformers.BloomConfig(vocab_size=22, hidden_size=16, n_layer=2, n_head=2)
        model = transformers.BloomForCausalLM(config)
        model.save_pretrained(tmp_path)
        assert load_pretrained(model, attention="sdpa").cfg.n_layers == 2

    def test_another_kind(self, checkpoint):
        with pytest.raises(InputError, match="attention is 'flash'; expected 'eager' or 'sdpa'"):
            load_pretrained(checkpoint("gpt2"), attention="flash")
