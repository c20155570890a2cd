"""Tiny random checkpoints in the folder layout of each family, saved by diffusers itself."""

from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel

LENGTH = 20  # tokens of a prompt
EDGE = 64  # pixels: 16 × 16 latents

SD_SCHEDULER = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012, "steps_offset": 1}


def clip_tokenizer() -> Any:
    """A token a character."""
    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: id for id, word in enumerate(words)}
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=LENGTH)


def t5_tokenizer() -> Any:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -10.0), ("▁", -2.0)]
    pieces += [(letter, -3.0) for letter in "abcdefghijklmnopqrstuvwxyz0123456789,."]
    return transformers.T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=512)


def text_encoder(*, projection: bool = False, layers: int = 1) -> Any:
    size = len(clip_tokenizer())
    config = transformers.CLIPTextConfig(
        vocab_size=size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        projection_dim=16,
        bos_token_id=size - 2,
        eos_token_id=size - 1,
        pad_token_id=size - 1,
    )
    kind = transformers.CLIPTextModelWithProjection if projection else transformers.CLIPTextModel
    return kind(config).eval()


def autoencoder(**fields: Any) -> Any:
    settings: dict[str, Any] = {"latent_channels": 4, "scaling_factor": 0.18215, **fields}
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=EDGE,
        mid_block_add_attention=False,
        **settings,
    ).eval()


def unet(**fields: Any) -> Any:
    settings: dict[str, Any] = {"cross_attention_dim": 16, **fields}
    return diffusers.UNet2DConditionModel(
        sample_size=EDGE // 4,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        attention_head_dim=2,
        norm_num_groups=4,
        **settings,
    ).eval()


def _save(pipeline: Any, folder: Path) -> Path:
    pipeline.save_pretrained(folder)
    return folder


def stable_diffusion(folder: Path, *, scheduler: Any = None, unet_fields: dict[str, Any] | None = None) -> Path:
    torch.manual_seed(0)
    pipeline = diffusers.StableDiffusionPipeline(
        vae=autoencoder(),
        text_encoder=text_encoder(),
        tokenizer=clip_tokenizer(),
        unet=unet(**(unet_fields or {})),
        scheduler=scheduler or diffusers.DDIMScheduler(**SD_SCHEDULER, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return _save(pipeline, folder)


def stable_diffusion_xl(folder: Path, **fields: Any) -> Path:
    torch.manual_seed(0)
    pipeline = diffusers.StableDiffusionXLPipeline(
        vae=autoencoder(scaling_factor=0.13025, force_upcast=True),
        text_encoder=text_encoder(layers=2),
        text_encoder_2=text_encoder(projection=True, layers=2),
        tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer(),
        unet=unet(
            cross_attention_dim=32,
            addition_embed_type="text_time",
            addition_time_embed_dim=4,
            projection_class_embeddings_input_dim=4 * 6 + 16,
        ),
        scheduler=diffusers.EulerDiscreteScheduler(**SD_SCHEDULER),
        add_watermarker=False,
        **fields,
    )
    return _save(pipeline, folder)


def flux(folder: Path, *, guidance: bool = True, scheduler: Any = None) -> Path:
    torch.manual_seed(0)
    t5 = transformers.T5EncoderModel(
        transformers.T5Config(
            vocab_size=len(t5_tokenizer()), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, pad_token_id=0
        )
    )
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 6, 6),
        guidance_embeds=guidance,
    )
    pipeline = diffusers.FluxPipeline(
        vae=autoencoder(shift_factor=0.1159, scaling_factor=0.3611, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=text_encoder(),
        text_encoder_2=t5.eval(),
        tokenizer=clip_tokenizer(),
        tokenizer_2=t5_tokenizer(),
        transformer=transformer.eval(),
        scheduler=scheduler or diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
    )
    return _save(pipeline, folder)
