"""A Stable Diffusion of random weights, of the size of a small model that draws 64 × 64 pixels."""

from pathlib import Path

from models.cache import build_once, cache_root

VERSION = 1


def folder() -> Path:
    """Made once: what it draws means nothing, what it costs does."""

    def build(into: Path) -> None:
        import diffusers
        import torch

        from tests.pipelines.image import checkpoints

        torch.manual_seed(0)
        unet = diffusers.UNet2DConditionModel(
            sample_size=16,
            in_channels=4,
            out_channels=4,
            block_out_channels=(96, 160, 192),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            layers_per_block=1,
            attention_head_dim=8,
            cross_attention_dim=16,
        )
        diffusers.StableDiffusionPipeline(
            vae=checkpoints.autoencoder(),
            text_encoder=checkpoints.text_encoder(),
            tokenizer=checkpoints.clip_tokenizer(),
            unet=unet,
            scheduler=diffusers.DDIMScheduler(**checkpoints.SD_SCHEDULER, clip_sample=False),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        ).save_pretrained(into)

    return build_once(cache_root() / "benchmarks" / f"image-{VERSION}", build)
