"""Models from transformers, very small and with random weights, and what they are called with.

model = ARCHITECTURES["llama"].model()
model(**ARCHITECTURES["llama"].inputs(seed=1))
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from frontend_fuzz import describe, first_difference

VOCABULARY = 64
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""What most configurations call their sizes."""

Inputs = Callable[[torch.Generator], dict[str, Any]]


def ids(generator: torch.Generator) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, VOCABULARY, (2, 7), generator=generator)}


def masked_ids(generator: torch.Generator) -> dict[str, Any]:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    return {**ids(generator), "attention_mask": mask}


def both_ids(generator: torch.Generator) -> dict[str, Any]:
    return {**ids(generator), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 5), generator=generator)}


def picture(generator: torch.Generator) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}


def picture_and_ids(generator: torch.Generator) -> dict[str, Any]:
    return {**ids(generator), **picture(generator)}


def sound(generator: torch.Generator) -> dict[str, Any]:
    return {"input_values": torch.randn(2, 800, generator=generator)}


def spectrum_and_ids(generator: torch.Generator) -> dict[str, Any]:
    return {
        "input_features": torch.randn(2, 8, 40, generator=generator),
        "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 5), generator=generator),
    }


@dataclass(frozen=True)
class Architecture:
    """A kind of model: how its configuration differs from the usual, and what it takes."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    takes: Inputs = ids
    without: tuple[str, ...] = ()
    """What its configuration does not have of the usual sizes."""
    head: str = "AutoModel"

    def model(self, **more: Any) -> nn.Module:
        """A fresh one; the weights follow from torch's random state."""
        import transformers

        usual = {name: value for name, value in SMALL.items() if name not in self.without}
        with _quiet():
            config = transformers.AutoConfig.for_model(self.name, **{**usual, **self.options, **more})
            head = getattr(transformers, self.head)
            model: nn.Module = head.from_config(config) if self.head.startswith("Auto") else head(config)
        return model.eval()

    def inputs(self, seed: int = 0) -> dict[str, Any]:
        return self.takes(torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


_GROUPED = {"num_key_value_heads": 1, "head_dim": 16}
_SEQUENCES = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
_T5 = {
    "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0,
}  # fmt: skip
_T5_WITHOUT = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "pad_token_id": None}
"""With a padding token they look for it among the ids, and warn: a branch on data. As they come, they have none."""
_PICTURE = {"image_size": 32, "patch_size": 8}
_NO_TEXT = ("vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
_WAVES = {
    "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "mask_feature_prob": 0.0,
}  # fmt: skip
_INSIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}

_ALL = [
    Architecture("bert", takes=masked_ids),
    Architecture("gpt2", _GPT2),
    Architecture("llama", _GROUPED),
    Architecture("t5", _T5, both_ids, _T5_WITHOUT),
    Architecture("distilbert", {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}, masked_ids),
    Architecture("roberta", takes=masked_ids),
    Architecture("albert", {"embedding_size": 16}, masked_ids),
    Architecture("electra", {"embedding_size": 16}, masked_ids),
    Architecture("mpnet", takes=masked_ids),
    Architecture("mobilebert", {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}, masked_ids),
    Architecture("deberta", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, masked_ids),
    Architecture("deberta-v2", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, masked_ids),
    Architecture("fnet", takes=ids),
    Architecture("modernbert", {"global_attn_every_n_layers": 2, "reference_compile": False}, masked_ids),
    Architecture("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    Architecture("bloom", {"n_layer": 2, "n_head": 2}),
    Architecture("gpt_neo", {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]}),
    Architecture("gpt_neox", {"rotary_pct": 0.5}),
    Architecture("gptj", {**_GPT2, "rotary_dim": 8}),
    Architecture("codegen", {**_GPT2, "num_attention_heads": 4, "rotary_dim": 4}),
    Architecture("openai-gpt", _GPT2),
    Architecture("mistral", _GROUPED),
    Architecture("mixtral", {**_GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1}),
    Architecture("qwen2", {"num_key_value_heads": 1}),
    Architecture("qwen3", _GROUPED),
    Architecture("gemma", _GROUPED),
    Architecture("gemma2", {**_GROUPED, "sliding_window": 4}),
    Architecture("phi", {"partial_rotary_factor": 0.5}),
    Architecture("phi3", {"num_key_value_heads": 1}),
    Architecture("falcon", {"new_decoder_architecture": False}),
    Architecture("stablelm", {"num_key_value_heads": 1}),
    Architecture("olmo", {"num_key_value_heads": 1}),
    Architecture("olmo2", {"num_key_value_heads": 1}),
    Architecture("cohere", {"num_key_value_heads": 1}),
    Architecture("starcoder2", {"num_key_value_heads": 1}),
    Architecture("granite", {"num_key_value_heads": 1}),
    Architecture("mamba", {"state_size": 4, "time_step_rank": 2}),
    Architecture("mamba2", {"state_size": 4, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4}),
    Architecture("rwkv", {"attention_hidden_size": 32, "context_length": 64}),
    Architecture("t5", {**_T5, "is_encoder_decoder": False, "use_cache": False}, ids, _T5_WITHOUT, "T5EncoderModel"),
    Architecture("mt5", _T5, both_ids, _T5_WITHOUT),
    Architecture("bart", _SEQUENCES, both_ids),
    Architecture("mbart", _SEQUENCES, both_ids),
    Architecture("pegasus", _SEQUENCES, both_ids),
    Architecture("marian", _SEQUENCES, both_ids),
    Architecture("blenderbot", _SEQUENCES, both_ids),
    Architecture("m2m_100", _SEQUENCES, both_ids),
    Architecture("longt5", {**_T5, "local_radius": 3}, both_ids, _T5_WITHOUT),
    Architecture("whisper", {**_SEQUENCES, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32},
                 spectrum_and_ids),
    Architecture("vit", _PICTURE, picture, _NO_TEXT),
    Architecture("deit", _PICTURE, picture, _NO_TEXT),
    Architecture("beit", _PICTURE, picture, _NO_TEXT),
    Architecture("dinov2", _PICTURE, picture, _NO_TEXT),
    Architecture("convnext", {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1]}, picture, tuple(SMALL)),
    Architecture("resnet", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, picture, tuple(SMALL)),
    Architecture("swin", {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2],
                          "window_size": 4}, picture, tuple(SMALL)),
    Architecture("segformer", {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16],
                               "patch_sizes": [3, 3], "strides": [4, 2], "num_attention_heads": [1, 2],
                               "mlp_ratios": [2, 2], "decoder_hidden_size": 16}, picture, tuple(SMALL)),
    Architecture("clip", {"text_config": {**SMALL, "projection_dim": 16},
                          "vision_config": {**_INSIDE, **_PICTURE, "projection_dim": 16}, "projection_dim": 16},
                 picture_and_ids, tuple(SMALL)),
    Architecture("siglip", {"text_config": SMALL, "vision_config": {**_INSIDE, **_PICTURE}}, picture_and_ids,
                 tuple(SMALL)),
    Architecture("wav2vec2", _WAVES, sound),
    Architecture("hubert", _WAVES, sound),
]  # fmt: skip

ARCHITECTURES = {f"{each.name} encoder" if each.head == "T5EncoderModel" else each.name: each for each in _ALL}
MAIN = ("bert", "gpt2", "llama", "t5")


# ---- captured and not ---------------------------------------------------------------------------------------

Capture = Callable[[Any], Any]


@dataclass
class Checked:
    """How a captured model did."""

    name: str
    parameters: int = 0
    differences: list[str] = field(default_factory=list)
    """In words, beginning with the call."""
    captured: Any = None
    recordings: int = 0
    """After all calls with the first inputs."""
    recordings_on_new_data: int = 0
    """How many more the other inputs took."""
    settled: bool = False
    """The third call came from the cache."""

    @property
    def right(self) -> bool:
        return not self.differences


def check(architecture: Architecture, capture: Capture, *, others: int = 2) -> Checked:
    """Three calls with one input, then one each with others of the same shapes: bit for bit what eager gives?"""
    torch.manual_seed(0)
    model = architecture.model()
    found = Checked(architecture.name, sum(each.numel() for each in model.parameters()))
    found.captured = captured = capture(model)

    def compared(words: str, seed: int) -> bool:
        """Whether it came from the cache."""
        hits = getattr(captured, "hits", 0)
        with torch.no_grad():
            torch.manual_seed(0)
            expected = [describe(model(**architecture.inputs(seed))), torch.get_rng_state()]
            torch.manual_seed(0)
            try:
                result = [describe(captured(**architecture.inputs(seed))), torch.get_rng_state()]
            except Exception as error:  # noqa: BLE001 - a line of the table, with its reason
                found.differences.append(f"{words}: {type(error).__name__}: {error}")
                return False
        difference = first_difference(expected[0], result[0])
        if difference is None and not torch.equal(expected[1], result[1]):
            difference = "the state of the random numbers"
        if difference is not None:
            found.differences.append(f"{words}: {difference}")
        return getattr(captured, "hits", 0) > hits

    for number in (1, 2, 3):
        found.settled = compared(f"call {number}", 0)
    found.recordings = getattr(captured, "recordings", 0)
    for seed in range(1, 1 + others):
        compared(f"other inputs {seed}", seed)
    found.recordings_on_new_data = getattr(captured, "recordings", 0) - found.recordings
    return found


STEPS = 3


def train(architecture: Architecture, capture: Capture) -> Checked:
    """Steps of SGD with dropout: the same losses, gradients, parameters and random numbers, bit for bit?"""
    torch.manual_seed(0)
    eager = architecture.model().train()
    ours = copy.deepcopy(eager)
    found = Checked(architecture.name, sum(each.numel() for each in eager.parameters()))
    found.captured = captured = capture(ours)
    states = []
    for model, call in ((eager, eager), (ours, captured)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(1)
        kept: list[dict[str, Any]] = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = _loss(call(**architecture.inputs(step)))
            loss.backward()
            optimizer.step()
            kept.append({"loss": loss.detach().clone(), "random state": torch.get_rng_state()})
            for kind, of in (("gradient of", "grad"), ("parameter", "data")):
                for name, each in model.named_parameters():
                    value = getattr(each, of)
                    kept[-1][f"{kind} {name}"] = None if value is None else value.clone()
            for name, each in model.named_buffers():
                kept[-1][f"buffer {name}"] = each.clone()
        states.append(kept)
    for step, (expected, result) in enumerate(zip(*states, strict=True), 1):
        for name, value in expected.items():
            if not _is_same(value, result[name]):
                found.differences.append(f"step {step}: {name}")
    found.recordings = getattr(captured, "recordings", 0)
    found.settled = getattr(captured, "hits", 0) > 0
    return found


def _loss(result: Any) -> torch.Tensor:
    """Of all floats that a model gives and that have gradients."""
    values = [each for each in dict(result).values() if isinstance(each, torch.Tensor) and each.requires_grad]
    return torch.stack([each.float().pow(2).mean() for each in values]).sum()


def _is_same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(
        one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)
    )
