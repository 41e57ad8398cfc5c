"""The read-only encoder: what it refuses, and that the ways out which its messages name work."""

from __future__ import annotations

import pytest
import torch

from mechclust.models import load_pretrained
from tasks import InputError
from tests.mechclust.models.hooked import NAMES, TOKENS, activations


@pytest.fixture(params=["albert", "bart", "electra", "roberta"])
def model(request, encoder_checkpoint):
    return load_pretrained(encoder_checkpoint(request.param))


def message(hook, model, name="blocks.1.hook_resid_pre"):
    with pytest.raises(InputError) as error, model.hooks(fwd_hooks=[(name, hook)]):
        model(TOKENS)
    return str(error.value)


class TestReadOnly:
    @pytest.mark.parametrize("name", NAMES)
    def test_a_hook_that_returns_a_value(self, model, name):
        expected = (
            f"a hook at '{name}' returned a value, but this hook point is read-only, because Hugging Face has "
            "finished its computation when it fires; return None and leave the activation as it is, "
            "or edit with PyTorch's own hooks (prepend=True) on the modules of model.encoder"
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

    def test_the_way_out_works(self, encoder_checkpoint):
        """The message names PyTorch's hooks on ``model.encoder``: such an edit reaches what follows,
        and, put before those by which Hugging Face keeps hidden states, what is read there."""
        model = load_pretrained(encoder_checkpoint("electra"))
        _, before = activations(model)
        first = model.encoder.encoder.layer[0]
        handle = first.register_forward_hook(lambda module, inputs, output: torch.zeros_like(output), prepend=True)
        _, after = activations(model)
        handle.remove()
        assert after["blocks.0.hook_resid_post"].abs().max() == 0
        assert (after["blocks.1.hook_resid_post"] - before["blocks.1.hook_resid_post"]).abs().max() > 1e-2

    def test_run_with_cache(self, model):
        with torch.no_grad():
            output, cache = model.run_with_cache(TOKENS)
        assert list(cache) == NAMES == list(model.hook_dict)
        assert torch.equal(output, cache["blocks.1.hook_resid_post"])
        assert not any(point._forward_hooks for point in model.hook_dict.values())

    def test_a_backward_hook(self, model):
        for name in NAMES:
            with (
                pytest.raises(InputError) as error,
                model.hooks(fwd_hooks=[(NAMES[0], print)], bwd_hooks=[(name, lambda x, hook: None)]),
            ):
                model(TOKENS)
            assert str(error.value) == (
                f"no backward hook can be added at '{name}', because no gradient passes the hook points of this "
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
        theirs = model.encoder(TOKENS, output_hidden_states=True, output_attentions=True)
        inside = [*theirs.hidden_states, *theirs.attentions]
        gradients = torch.autograd.grad((theirs.last_hidden_state * weight).sum(), inside)
        names = ["hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
        names += ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]
        for name, gradient in zip(names, gradients, strict=True):
            assert gradient.abs().max() > 1e-4
            torch.testing.assert_close(kept[name].grad, gradient, atol=1e-6, rtol=0)
