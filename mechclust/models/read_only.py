"""Any Hugging Face language model with hook points to read from.

Imported only when such a model is loaded: it needs TransformerLens, which takes seconds to import.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, update_wrapper
from typing import Any, NoReturn

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from mechclust.models.attention_calls import KIND, caught_attention_calls, caught_eager_attention_calls, eager_function
from mechclust.models.hugging_face_blocks import (
    Blocks,
    check_attends_alike_at_every_length,
    check_embeds_tokens,
    find_blocks,
    hugging_face_block_input,
    hugging_face_block_output,
)
from mechclust.models.hugging_face_checkpoint import config_value
from mechclust.models.position_tables import counts_by_token, n_positions, position_table, words_before_positions
from mechclust.models.short_logits import are_equal
from mechclust.models.sizes import ModelShape
from probes.engine.attention import Attention
from probes.engine.hooked_model import evaluation_mode
from tasks import InputError
from tasks.text.token_ids import known_pad_token_id

Mask = Shaped[Tensor, "batch pos"]


def is_read_only(config: Any) -> bool:
    """Return whether a checkpoint with this Hugging Face configuration is always loaded as a ``ReadOnlyModel``.

    This is the case if TransformerLens does not know the architecture, or does not read it as Hugging Face does. The
    latter are encoder-decoders (its BART, T5 and their like have no ``blocks``) and the newer Falcons (40B, 180B, 11B),
    whose fused weights it splits in the wrong places.

    Raises:
        InputError: for a model that does not read tokens.
    """
    from transformer_lens.model_bridge.sources.transformers import determine_architecture_from_hf_config

    _check_reads_tokens(config)
    if _is_encoder_decoder(config) or getattr(config, "new_decoder_architecture", False):
        return True
    try:
        determine_architecture_from_hf_config(config)
    except ValueError:
        return True
    return False


class ReadOnlyModel(HookedRootModule):  # type: ignore[misc]  # untyped
    """A Hugging Face model behind TransformerLens's hook protocol, for reading only.

    Hugging Face computes the forward pass, and the hook points fire while it does. Hooks therefore see exactly Hugging
    Face's activations, and cannot change them. A hook that returns a value is refused, and so is one that edits in
    place, outside inference mode, where PyTorch counts edits. Backward hooks are refused when they are added, since no
    gradient passes these hook points. But activations are part of the graph, so ``activation.retain_grad()`` in a
    forward hook works.

    Hook points, for every block ``l``:

    - ``hook_embed`` ``[batch pos d_model]``: the input of the first block, ``hidden_states[0]``. In BERT and its
      relatives these are token, position and type embeddings, added, normalised and projected to ``d_model``. In
      decoders that add a table of positions (GPT-2, OPT) it is the token embedding before that, as in TransformerLens.
    - ``blocks.{l}.hook_resid_pre``, ``blocks.{l}.hook_resid_post`` ``[batch pos d_model]``: the block's input and the
      next block's input, ``hidden_states[l]`` and ``hidden_states[l + 1]``. After the last block it is that block's
      output, before the final norm if the model has one.
    - ``blocks.{l}.attn.hook_pattern`` ``[batch head query key]``: ``attentions[l]``, with eager attention. Kept only
      while a hook reads a pattern, but then the patterns of all layers are kept at once, and fire at the end.
    - ``blocks.{l}.attn.hook_attention``, a ``probes.Attention``, with ``sdpa`` attention: of queries and keys, without
      a pattern. It fires while the block runs, only if someone reads it, and leaves the forward pass as it is. Families
      without ``sdpa`` (soft caps, sinks) have it too, if they attend through transformers' interface: their own eager
      function is then called for one block of queries after the other.
    - ``unembed.hook_in`` ``[batch pos d_model]``: the input of a causal language model's head, which is the last hidden
      state after the final norm.

    ALBERT shares weights between blocks: each application is a separate block. Of an encoder-decoder the encoder is
    used. Heads and poolers are never computed.

    Padding: positions are counted from each example's first token (by RoBERTa and its relatives from their padding
    token, as in Hugging Face). Padding that changes a model's states although it is masked is refused.

    Args:
        model: a Hugging Face language model, with or without head. Its body is run on a few tokens, to find
            its blocks and whether it reads padding. Its pooler is never computed.
        tokenizer: kept as ``model.tokenizer``.

    Attributes:
        cfg: sizes, see ``ModelShape``.
        body: the Hugging Face module, without head.
        tokenizer: as given.
        lacks: hook points that other models have and this one has not (``"attn.hook_pattern"``,
            ``"attn.hook_attention"``), with the reason.

    Raises:
        InputError: if the model does not give hidden states ``[batch pos d_model]`` for tokens, or its blocks do not
            pass them on.

    Example:
        >>> import torch
        >>> from transformers import ElectraConfig, ElectraModel
        >>> shape = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        >>> theirs = ElectraModel(ElectraConfig(vocab_size=9, embedding_size=4, attn_implementation="eager", **shape))
        >>> model = ReadOnlyModel(theirs.eval())
        >>> last, cache = model.run_with_cache(torch.tensor([[3, 1, 4], [1, 5, 8]]))
        >>> list(cache)[:4]
        ['hook_embed', 'blocks.0.hook_resid_pre', 'blocks.0.hook_resid_post', 'blocks.1.hook_resid_pre']
        >>> cache["blocks.1.attn.hook_pattern"].shape, torch.equal(last, cache["blocks.1.hook_resid_post"])
        (torch.Size([2, 2, 3, 3]), True)
    """

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        super().__init__()
        _check_reads_tokens(model.config)
        body = _body(model)
        check_embeds_tokens(body)
        check_attends_alike_at_every_length(body)
        if getattr(body, "pooler", None) is not None:
            body.pooler = nn.Identity()  # never read, and random in many checkpoints; some bodies call it anyway
        self._stream, self._attending = _find_blocks(body)
        self._arguments = frozenset(inspect.signature(body.forward).parameters)
        self._positions = position_table(body)
        self._words = words_before_positions(body)
        self.cfg = _sizes(body, self._stream, self._positions)
        self.lacks = {}
        self.unembed = nn.Module()
        if _reads_last_state(model):
            self.unembed.hook_in = _ReadOnlyPoint()
        else:
            self.lacks["unembed.hook_in"] = "it has no head; its output is the last hidden state, after the final norm"
        if not self._stream.patterns:
            self.lacks["attn.hook_pattern"] = _no_patterns(body)
        if not self._attending:
            self.lacks["attn.hook_attention"] = _not_caught(body, self._stream.patterns)
        self.tokenizer = tokenizer
        self.hook_embed = _ReadOnlyPoint()
        self.blocks = nn.ModuleList(
            _block(self._stream.patterns, bool(self._attending)) for _ in range(self.cfg.n_layers)
        )
        self.setup()  # before the body is added: it would write a name on Hugging Face's modules too
        self.body = body
        self._reads_padding = self._sides_of_read_padding()

    def forward(
        self, tokens: Int[Tensor, "batch pos"], attention_mask: Mask | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the last hidden state, ``hidden_states[-1]``, after the final norm if there is one, and no logits.

        Args:
            tokens: token ids, which are moved to the model's device.
            attention_mask: 1 for tokens, 0 for padding. No padding when ``None``.

        Raises:
            InputError: for tokens of another shape or longer than ``cfg.n_ctx``, for padding that changes what the
                model computes, and for hooks that return a value.
        """
        if tokens.ndim != 2:
            raise InputError(f"this model reads tokens [batch pos], not of shape {list(tokens.shape)}; give a batch")
        if self.cfg.n_ctx is not None and tokens.shape[1] > self.cfg.n_ctx:
            raise InputError(
                f"this model reads tokens [batch pos] with at most {self.cfg.n_ctx} positions, "
                f"not of shape {list(tokens.shape)}; give a batch of sequences cut to model.cfg.n_ctx"
            )
        blocks: Any = self.blocks
        unembed: Any = self.unembed
        patterns = self._stream.patterns and any(block.attn.hook_pattern._forward_hooks for block in blocks)
        padding = self._padding(attention_mask)
        with _ForwardPass(self, patterns).hooked():
            out = self._run(tokens, padding, patterns)
        if patterns:
            for block, pattern in zip(blocks, out.attentions, strict=True):
                block.attn.hook_pattern(pattern)
        if "unembed.hook_in" not in self.lacks:
            unembed.hook_in(out.last_hidden_state)
        return out.last_hidden_state

    def get_input_embeddings(self) -> Any:
        """Return Hugging Face's module that embeds the tokens."""
        return self.body.get_input_embeddings()

    def _run(self, tokens: Int[Tensor, "batch pos"], padding: Mapping[str, Mask], patterns: bool = False) -> Any:
        """Return Hugging Face's output."""
        return self.body(
            input_ids=tokens.to(_device(self.body)),
            **padding,
            **_options(self._arguments),
            output_hidden_states=False,
            output_attentions=patterns,
            return_dict=True,
        )

    def _padding(self, mask: Mask | None) -> dict[str, Mask]:
        """Return the mask, and positions if the model takes them.

        Raises:
            InputError: for padding that would change what the model computes.
        """
        if mask is None:
            return {}
        mask = mask.to(_device(self.body))
        name = type(self.body).__name__
        takes_positions = "position_ids" in self._arguments
        counts_columns = self._positions is not None and not counts_by_token(self._positions) and not takes_positions
        if counts_columns and not bool(mask[:, 0].all()):
            raise InputError(
                f"the batch is padded on the left, but a {name} counts positions from the first column, padding "
                "included, which would change what it computes; pad on the right"
            )
        reads_right, reads_left = self._reads_padding
        if (reads_right and not bool(mask.all())) or (reads_left and not bool(mask[:, 0].all())):
            way = "give examples of one length, or one example per batch" if reads_right else "pad on the right"
            raise InputError(
                f"the batch has padding, which changes what a {name} computes, although it is masked; {way}"
            )
        return self._masked(mask)

    def _masked(self, mask: Mask) -> dict[str, Mask]:
        """Return a mask, and positions that start at each example's first token if the model takes positions."""
        if "position_ids" not in self._arguments or counts_by_token(self._positions):
            return {"attention_mask": mask}
        positions = torch.arange(mask.shape[1], device=mask.device)[None] - mask.long().argmax(1, keepdim=True)
        return {"attention_mask": mask, "position_ids": positions.clamp(min=0)}

    def _sides_of_read_padding(self) -> tuple[bool, bool]:
        """Return whether masked padding on the right changes states (FNet), and on the left (RecurrentGemma).

        In half precision, changes below 10% are not noticed.
        """
        pad = known_pad_token_id(config_value(self.body.config.get_text_config(), "pad_token_id"), self.cfg.d_vocab)
        one, other = [token for token in range(3) if token != pad][:2]
        tokens = torch.tensor([[one, other, pad], [pad, one, other]])
        mask = torch.tensor([[1, 1, 0], [0, 1, 1]], device=_device(self.body))
        with evaluation_mode(self.body), torch.no_grad():
            (alone,) = self._run(tokens[:1, :2], {}).last_hidden_state
            try:
                right, left = self._run(tokens, self._masked(mask)).last_hidden_state
            except Exception:  # of a family that takes no mask: anything
                return True, True
        return not are_equal([right[:2]], [alone]), not are_equal([left[1:]], [alone])


class _ForwardPass:
    """One forward pass of Hugging Face's modules, during which the hook points of a read-only model fire."""

    def __init__(self, model: Any, patterns: bool) -> None:
        self._model = model
        self._patterns = patterns
        self._calls: Counter[nn.Module] = Counter()
        self._n_attended = 0
        self._layers = {call: layer for layer, call in enumerate(model._stream.calls)}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Pass the residual stream to the hook points inside the block."""
        with ExitStack() as stack:
            if self._model._words is not None:
                stack.callback(self._model._words.register_forward_hook(self._embed).remove)
            for module in {module for module, _ in self._layers}:
                stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(self._leave).remove)
            if self._model._attending and any(block.attn.hook_attention._forward_hooks for block in self._model.blocks):
                if _kind(self._model.body) == KIND:
                    stack.enter_context(caught_attention_calls(self._attend))
                else:
                    stack.enter_context(caught_eager_attention_calls(self._attend, whole=self._patterns))
            yield

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        layer = self._layers.get((module, self._calls[module]))
        if layer is None:
            return
        state = hugging_face_block_input(inputs, options)
        if layer > 0:
            self._model.blocks[layer - 1].hook_resid_post(state)
        elif self._model._words is None:
            self._model.hook_embed(state)
        self._model.blocks[layer].hook_resid_pre(state)

    def _attend(self, module: nn.Module, attention: Callable[[], Attention]) -> None:
        if module not in self._model._attending:  # of another model, in another thread
            return
        point = self._model.blocks[self._n_attended].attn.hook_attention
        self._n_attended += 1
        if point._forward_hooks:
            point(attention())

    def _embed(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._model.hook_embed(output)

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._layers.get((module, self._calls[module])) == len(self._layers) - 1:
            self._model.blocks[-1].hook_resid_post(hugging_face_block_output(output))
        self._calls[module] += 1


class _ReadOnlyPoint(HookPoint):  # type: ignore[misc]  # untyped
    """A hook point next to Hugging Face's computation. TransformerLens adds its hooks through these two methods."""

    def register_forward_hook(self, hook: Callable[..., Any], **options: Any) -> Any:
        """Add a hook that is refused when it returns a value or edits in place."""
        return super().register_forward_hook(update_wrapper(partial(self._read, hook), hook), **options)

    def _read(self, hook: Callable[..., Any], *arguments: Any) -> None:
        activation = arguments[-1]
        is_counted = isinstance(activation, Tensor) and not activation.is_inference()
        edits = activation._version if is_counted else None
        returned = hook(*arguments)
        if returned is not None:
            action = "returned a value"
        elif edits is not None and activation._version != edits:
            action = "edited the activation in place"
        else:
            return
        raise InputError(
            f"a hook at {self.name!r} {action}, but this hook point is read-only, because it shows what Hugging "
            "Face's own modules compute; return None and leave the activation as it is, "
            "or edit with PyTorch's own hooks on the modules of model.body"
        )

    def register_full_backward_hook(self, hook: Any, prepend: bool = False) -> NoReturn:
        """Refuse a backward hook, which would never run."""
        raise InputError(
            f"no backward hook can be added at {self.name!r}, because no gradient passes through the hook points of "
            "this read-only model; call activation.retain_grad() in a forward hook and read activation.grad after "
            "backward()"
        )


def _block(patterns: bool, attention: bool) -> nn.Module:
    block = nn.Module()
    block.hook_resid_pre = _ReadOnlyPoint()
    block.attn = nn.Module()
    if patterns:
        block.attn.hook_pattern = _ReadOnlyPoint()
    if attention:
        block.attn.hook_attention = _ReadOnlyPoint()
    block.hook_resid_post = _ReadOnlyPoint()
    return block


def _reads_last_state(model: Any) -> bool:
    """Return whether the model has a head that reads the last hidden state as it is, as causal language models do."""
    name = type(model).__name__
    return name.endswith(("ForCausalLM", "LMHeadModel")) and model.get_output_embeddings() is not None


def _check_reads_tokens(config: Any) -> None:
    if getattr(config.get_text_config(), "vocab_size", None) is None:
        raise InputError(
            f"a model of type {config.model_type!r} reads no tokens (its configuration has no vocab_size), so nothing "
            "can be measured in it; give a language model"
        )


def _is_encoder_decoder(config: Any) -> bool:
    """Return whether a model is of an encoder-decoder family, also if only its encoder was kept, as for T5."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as FAMILIES

    return bool(config.is_encoder_decoder) or config.model_type in FAMILIES


def _body(model: Any) -> Any:
    if model.config.is_encoder_decoder or type(model).__name__.endswith("EncoderModel"):
        return model.get_encoder()
    if model.base_model is model and _reads_last_state(model):  # Llama 4 has its body under another name than it says
        return getattr(model, "model", model)
    return model.base_model


def _device(body: Any) -> torch.device:
    """Return the device for tokens. An offloaded module states the device that it will run on."""
    embedding = body.get_input_embeddings()
    runs_on = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return embedding.weight.device if runs_on is None else torch.device(runs_on)  # type: ignore[no-any-return]


def _options(arguments: Container[str]) -> dict[str, Any]:
    return {"use_cache": False} if "use_cache" in arguments else {}


def _find_blocks(body: Any) -> tuple[Blocks, tuple[nn.Module, ...]]:
    """Find the blocks, and the module of each that attends, in evaluation mode, and leave no trace."""
    attending: list[nn.Module] = []
    eager = _kind(body) == "eager"
    in_blocks = eager and not _has_kernel(body) and eager_function(body) is not None
    note = partial(_note, attending)
    tokens = torch.arange(3, device=_device(body))[None]
    options = _options(inspect.signature(body.forward).parameters)
    caught = caught_eager_attention_calls(note, whole=True) if in_blocks else caught_attention_calls(note)
    with evaluation_mode(body), torch.no_grad(), caught:
        forward = partial(
            body, input_ids=tokens, **options, output_hidden_states=True, output_attentions=eager, return_dict=True
        )
        stream = find_blocks(body, forward)
    return stream, tuple(attending) if _is_one_for_each(attending, stream) else ()


def _kind(body: Any) -> str:
    """Return the name of a model's attention function."""
    return getattr(body.config, "_attn_implementation", "eager")


def _has_kernel(body: Any) -> bool:
    """Return whether PyTorch's kernel computes the attention of a model's family."""
    return bool(getattr(body, "_supports_sdpa", False))


def _note(attending: list[nn.Module], module: nn.Module, _: Any) -> None:
    attending.append(module)


def _is_one_for_each(attending: Sequence[nn.Module], stream: Blocks) -> bool:
    """Return whether each block has attended once, in its turn."""
    if len(attending) != len(stream.calls):
        return False
    pairs = zip(attending, stream.calls, strict=True)
    return all(module in set(block.modules()) for module, (block, _) in pairs)


def _not_caught(body: Any, patterns: bool) -> str:
    kind = _kind(body)
    if kind != KIND and _has_kernel(body) and (patterns or kind != "eager"):
        return f"attention of kind {kind!r} gives no queries and keys; load the model with attention='sdpa'"
    works = ", and so does attention_pattern()" if patterns else ""
    if kind != "eager":
        works = ", and attention_pattern() may with attention='eager'"
    return (
        f"the queries and keys of a {type(body).__name__} cannot be caught, because not each of its blocks calls "
        f"transformers' attention once; residual() works{works}"
    )


def _no_patterns(body: Any) -> str:
    kind = _kind(body)
    if kind != "eager":
        return f"attention of kind {kind!r} keeps no attention patterns; load the model with attention='eager'"
    return f"a {type(body).__name__} gives no attention patterns [batch head query key] for each of its blocks"


def _sizes(body: Any, stream: Blocks, positions: Any) -> ModelShape:
    config = body.config.get_text_config()
    n_heads: int = stream.n_heads or config_value(config, "num_attention_heads") or 0
    d_head = config_value(config, "head_dim") or config_value(config, "d_kv")
    limits = [config_value(config, "max_position_embeddings")]
    if positions is not None:
        limits.append(n_positions(positions))
    return ModelShape(
        n_layers=len(stream.calls),
        n_heads=n_heads,
        d_model=stream.d_model,
        d_head=d_head or stream.d_model // max(n_heads, 1),
        d_vocab=config.vocab_size,
        n_ctx=min((limit for limit in limits if limit is not None and limit > 0), default=None),
    )
