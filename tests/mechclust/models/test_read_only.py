"""The read-only model: what it refuses, and that the ways out which its messages name work."""

from __future__ import annotations

import pytest
import torch

from mechclust.models.read_only import ReadOnlyModel
from probes import record
from tasks import InputError
from tests.mechclust.models.families import FAMILIES, TOKENS, N

NAMES = ["hook_embed"]
NAMES += [f"blocks.{i}.{k}" for i in range(N) for k in ("hook_resid_pre", "attn.hook_pattern", "hook_resid_post")]
FIRST_AND_LAST = ["hook_embed", *(f"blocks.{i}.hook_resid_post" for i in range(N))]


@pytest.fixture(params=["albert", "bart", "falcon_new"])
def model(request):
    return ReadOnlyModel(FAMILIES[request.param].build())


def message(hook, model, name="blocks.1.hook_resid_pre"):
    with pytest.raises(InputError) as error, model.hooks(fwd_hooks=[(name, hook)]):
        model(TOKENS)
    return str(error.value)


class TestReadOnly:
    def test_a_hook_that_returns_a_value(self, model):
        for name in NAMES:
            expected = (
                f"a hook at '{name}' returned a value, but this hook point is read-only, because it shows what "
                "Hugging Face's own modules compute; return None and leave the activation as it is, "
                "or edit with PyTorch's own hooks on the modules of model.body"
            )
            for hook in (lambda x, hook: x * 0, lambda x, hook: x):
                assert message(hook, model, name) == expected
            with torch.inference_mode():
                assert message(hook, model, name) == expected
        assert not any(point._forward_hooks for point in model.hook_dict.values())
        assert not any(point.fwd_hooks for point in model.hook_dict.values())
        model(TOKENS)

    def test_however_the_hook_is_added(self, model):
        with pytest.raises(InputError, match="returned a value"):
            model.run_with_hooks(TOKENS, fwd_hooks=[("hook_embed", lambda x, hook: x)])
        model.add_hook("hook_embed", lambda x, hook: x)
        with pytest.raises(InputError, match="returned a value"):
            model(TOKENS)
        model.reset_hooks()
        model.add_perma_hook("hook_embed", lambda x, hook: x)
        with pytest.raises(InputError, match="returned a value"):
            model(TOKENS)
        model.reset_hooks(including_permanent=True)
        model.hook_dict["hook_embed"].register_forward_hook(lambda module, inputs, output: output)
        with pytest.raises(InputError, match="returned a value"):
            model(TOKENS)

    def test_a_hook_that_edits_in_place(self, model):
        def edit(x, hook):
            x[:, 0] = 0

        with torch.no_grad():
            assert message(edit, model).startswith(
                "a hook at 'blocks.1.hook_resid_pre' edited the activation in place, but this hook point is read-only, "
            )

    def test_the_way_out_works(self):
        """The message names PyTorch's hooks on ``model.body``: such an edit is read, and reaches what follows."""
        model = ReadOnlyModel(FAMILIES["electra"].build())
        with torch.no_grad(), record(model, NAMES) as before:
            model(TOKENS)
        for prepend in (False, True):
            handle = model.body.encoder.layer[0].register_forward_hook(
                lambda module, inputs, output: torch.zeros_like(output), prepend=prepend
            )
            with torch.no_grad(), record(model, NAMES) as after:
                model(TOKENS)
            handle.remove()
            assert after["blocks.0.hook_resid_post"][0].abs().max() == 0
            assert (after["blocks.1.hook_resid_post"][0] - before["blocks.1.hook_resid_post"][0]).abs().max() > 1e-2

    def test_run_with_cache(self, model):
        with torch.no_grad():
            output, cache = model.run_with_cache(TOKENS)
        names = [*NAMES, *(name for name in model.hook_dict if name == "unembed.hook_in")]  # of causal models
        assert list(cache) == sorted(
            names, key=lambda name: ("pattern" in name) + 2 * ("unembed" in name)
        )  # as they fire
        assert sorted(model.hook_dict) == sorted(names)
        with torch.no_grad():
            assert torch.equal(output, model(TOKENS))
        assert not any(point._forward_hooks for point in model.hook_dict.values())

    def test_a_backward_hook(self, model):
        for name in NAMES:
            with (
                pytest.raises(InputError) as error,
                model.hooks(fwd_hooks=[(NAMES[0], print)], bwd_hooks=[(name, lambda x, hook: None)]),
            ):
                model(TOKENS)
            assert str(error.value) == (
                f"no backward hook can be added at '{name}', because no gradient passes through the hook points "
                "of this "
                "read-only model; call activation.retain_grad() in a forward hook and read activation.grad "
                "after backward()"
            )
        assert not any(point._forward_hooks or point._backward_hooks for point in model.hook_dict.values())

    def test_gradients_by_retain_grad(self, model):
        """The way out that the message names: the gradients that autograd gives in Hugging Face's model."""
        kept = {}

        def hook(x, hook):
            x.retain_grad()
            kept[hook.name] = x

        with model.hooks(fwd_hooks=[(name, hook) for name in NAMES]):
            output = model(TOKENS)
        weight = torch.linspace(-1, 1, output.numel()).reshape(output.shape)  # a plain sum is constant after the norm
        (output * weight).sum().backward()
        theirs = model.body(TOKENS, output_hidden_states=True, output_attentions=True)
        inside = [*theirs.hidden_states, *theirs.attentions]
        gradients = torch.autograd.grad((theirs.last_hidden_state * weight).sum(), inside)
        names = [*FIRST_AND_LAST[:-1], *(f"blocks.{i}.attn.hook_pattern" for i in range(N))]
        for name, gradient in zip(names, [*gradients[:N], *gradients[N + 1 :]], strict=True):
            assert gradient.abs().max() > 1e-4
            torch.testing.assert_close(kept[name].grad, gradient, atol=1e-5, rtol=1e-4)
