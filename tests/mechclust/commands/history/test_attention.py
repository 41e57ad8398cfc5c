"""Attention on the page, of prompts with more tokens than are shown."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from mechclust.commands.history import checkpoint_job
from mechclust.models import load_pretrained


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_it_is_that_in_the_whole_prompt(family, write_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_job, "MAX_ATTENTION_TOKENS", 4)
    path = write_checkpoint(tmp_path / family, family)
    tokens = torch.tensor([5, 9, 7, 6, 8, 10, 5])
    shown = checkpoint_job._patterns(load_pretrained(path), tokens)
    own = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    with torch.inference_mode():
        whole = torch.cat(own(tokens[None], output_attentions=True).attentions)
    torch.testing.assert_close(shown / 255, whole[..., :4, :4], rtol=0, atol=0.51 / 255)
