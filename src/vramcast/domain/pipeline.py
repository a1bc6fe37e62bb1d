"""Diffusion pipelines: text encoders, a denoiser, an autoencoder, and how they are run.

Networks are written as diffusers publishes them: a class and the fields of its config.json.
Names and defaults are those of the class's constructor, so that a repository's config is the description; fields that
change neither weights nor memory are left out.
[diffusers] huggingface/diffusers src/diffusers/models/unets, models/transformers, models/autoencoders at v0.35

A question about training a diffusion pipeline, complete.
"""

from __future__ import annotations

from typing import Literal

from vramcast.domain.device import Cluster
from vramcast.domain.job import Plan, Workload
from vramcast.domain.model import Model, Noun
from vramcast.domain.version import Version


class _Pyramid(Noun, frozen=True):
    """Residual blocks at several resolutions, each half of the one before."""

    in_channels: int = 3
    out_channels: int = 3
    block_out_channels: tuple[int, ...] = (128, 256, 512, 512)
    latent_channels: int = 16

    @property
    def scale(self) -> int:
        """Pixels per latent, along each side."""
        return int(2 ** (len(self.block_out_channels) - 1))


class AutoencoderKL(_Pyramid, frozen=True, tag="AutoencoderKL"):
    """Residual blocks at several resolutions, one attention in the middle; of images. FLUX.2's has other latents."""

    layers_per_block: int = 2
    latent_channels: int = 4
    sample_size: int = 512  # pixels per side above which tiles are cut
    force_upcast: bool = False  # the pipeline decodes in fp32 where it runs in fp16
    use_quant_conv: bool = True
    use_post_quant_conv: bool = True
    mid_block_add_attention: bool = True
    batch_norm: int = 0  # FLUX.2: channels of the norm of latents


class AutoencoderKLCogVideoX(_Pyramid, frozen=True, tag="AutoencoderKLCogVideoX"):
    """Causal three-dimensional convolutions that keep the last frames of a batch for the next one."""

    block_out_channels: tuple[int, ...] = (128, 256, 256, 512)
    layers_per_block: int = 3
    temporal_compression_ratio: int = 4
    sample_height: int = 480
    sample_width: int = 720


class AutoencoderKLHunyuanVideo(_Pyramid, frozen=True, tag="AutoencoderKLHunyuanVideo"):
    """Causal three-dimensional convolutions over a tile of the video at once."""

    layers_per_block: int = 2
    spatial_compression_ratio: int = 8
    temporal_compression_ratio: int = 4
    mid_block_add_attention: bool = True

    @property
    def scale(self) -> int:
        """Pixels per latent, along each side."""
        return self.spatial_compression_ratio


class AutoencoderKLWan(Noun, frozen=True, tag="AutoencoderKLWan"):
    """Causal three-dimensional convolutions, one latent frame after the other; Qwen-Image uses it for images."""

    base_dim: int = 96
    decoder_base_dim: int | None = None
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    is_residual: bool = False
    in_channels: int = 3
    out_channels: int = 3
    patch_size: int | None = None
    scale_factor_temporal: int = 4
    scale_factor_spatial: int = 8

    @property
    def scale(self) -> int:
        """Pixels per latent, along each side."""
        return self.scale_factor_spatial

    @property
    def latent_channels(self) -> int:
        return self.z_dim


Autoencoder = AutoencoderKL | AutoencoderKLCogVideoX | AutoencoderKLHunyuanVideo | AutoencoderKLWan


PerLevel = tuple[int, ...] | int


def level(value: PerLevel, index: int) -> int:
    """The entry of a level, where one number may stand for all."""
    return value if isinstance(value, int) else value[index]


class UNet(Noun, frozen=True, tag="UNet2DConditionModel"):
    """Residual blocks at several resolutions with transformers between them."""

    in_channels: int = 4
    out_channels: int = 4
    down_block_types: tuple[str, ...] = ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",)
    block_out_channels: tuple[int, ...] = (320, 640, 1280, 1280)
    layers_per_block: int = 2
    cross_attention_dim: int = 1280
    transformer_layers_per_block: PerLevel = 1
    attention_head_dim: PerLevel = 8  # number of heads, in spite of its name
    use_linear_projection: bool = False
    addition_time_embed_dim: int | None = None
    projection_class_embeddings_input_dim: int | None = None
    encoder_hid_dim: int | None = None  # Kolors: width of text states before they are projected

    @property
    def attends(self) -> tuple[bool, ...]:
        """Whether a level has transformers, from the finest to the coarsest."""
        return tuple(name.startswith("CrossAttn") for name in self.down_block_types)

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(level(self.attention_head_dim, index) for index in range(len(self.block_out_channels)))

    @property
    def depths(self) -> tuple[int, ...]:
        """Transformer layers of each level's transformers, where it has any."""
        return tuple(level(self.transformer_layers_per_block, index) for index in range(len(self.block_out_channels)))


class Transformer(Noun, frozen=True):
    """What those share whose width is that of their heads."""

    attention_head_dim: int = 128
    num_attention_heads: int = 24

    @property
    def hidden(self) -> int:
        """Width of each stream."""
        return self.num_attention_heads * self.attention_head_dim


class Flux(Transformer, frozen=True, tag="FluxTransformer2DModel"):
    """Two-stream blocks of text and image, then blocks of the joined stream with attention and MLP side by side."""

    in_channels: int = 64
    out_channels: int | None = None
    num_layers: int = 19
    num_single_layers: int = 38
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = False


class Flux2(Transformer, frozen=True, tag="Flux2Transformer2DModel"):
    """Flux with modulation shared by all blocks, gated MLPs and no biases."""

    in_channels: int = 128
    out_channels: int | None = None
    num_layers: int = 8
    num_single_layers: int = 48
    num_attention_heads: int = 48
    joint_attention_dim: int = 15360
    timestep_guidance_channels: int = 256
    mlp_ratio: float = 3.0
    guidance_embeds: bool = True


class SD3(Transformer, frozen=True, tag="SD3Transformer2DModel"):
    """Two-stream blocks (MMDiT); some attend twice in the image stream (MMDiT-X)."""

    patch_size: int = 2
    in_channels: int = 16
    out_channels: int = 16
    num_layers: int = 18
    attention_head_dim: int = 64
    num_attention_heads: int = 18
    joint_attention_dim: int = 4096
    caption_projection_dim: int = 1152
    pooled_projection_dim: int = 2048
    pos_embed_max_size: int = 96
    dual_attention_layers: tuple[int, ...] = ()
    qk_norm: str | None = None


class QwenImage(Transformer, frozen=True, tag="QwenImageTransformer2DModel"):
    """Two-stream blocks throughout."""

    patch_size: int = 2
    in_channels: int = 64
    out_channels: int = 16
    num_layers: int = 60
    joint_attention_dim: int = 3584


class AuraFlow(Transformer, frozen=True, tag="AuraFlowTransformer2DModel"):
    """Two-stream blocks, then blocks of the joined stream; gated MLPs, no biases."""

    sample_size: int = 64
    patch_size: int = 2
    in_channels: int = 4
    out_channels: int = 4
    num_mmdit_layers: int = 4
    num_single_dit_layers: int = 32
    attention_head_dim: int = 256
    num_attention_heads: int = 12
    joint_attention_dim: int = 2048
    caption_projection_dim: int = 3072
    pos_embed_max_size: int = 1024


class Face(Noun, frozen=True):
    """ConsisID's face modules: an extractor of facial tokens, and cross-attention to them in every second block."""

    id_dim: int = 1280
    vit_dim: int = 1024
    depth: int = 10
    dim_head: int = 64
    num_heads: int = 16
    num_id_token: int = 5
    num_queries: int = 32
    output_dim: int = 2048
    ff_mult: int = 4
    num_scale: int = 5
    cross_attn_interval: int = 2
    cross_attn_dim_head: int = 128
    cross_attn_num_heads: int = 16


class CogVideoX(Transformer, frozen=True, tag="CogVideoXTransformer3DModel"):
    """Blocks over text and video tokens that share weights but for modulation; ConsisID adds face modules."""

    num_attention_heads: int = 30
    attention_head_dim: int = 64
    in_channels: int = 16
    out_channels: int = 16
    time_embed_dim: int = 512
    ofs_embed_dim: int | None = None
    text_embed_dim: int = 4096
    num_layers: int = 30
    sample_width: int = 90
    sample_height: int = 60
    sample_frames: int = 49
    patch_size: int = 2
    patch_size_t: int | None = None
    temporal_compression_ratio: int = 4
    max_text_seq_length: int = 226
    use_rotary_positional_embeddings: bool = False
    use_learned_positional_embeddings: bool = False
    face: Face | None = None


class HunyuanVideo(Transformer, frozen=True, tag="HunyuanVideoTransformer3DModel"):
    """Flux's blocks over video tokens, with a small transformer that refines the text."""

    in_channels: int = 16
    out_channels: int = 16
    num_layers: int = 20
    num_single_layers: int = 40
    num_refiner_layers: int = 2
    mlp_ratio: float = 4.0
    patch_size: int = 2
    patch_size_t: int = 1
    guidance_embeds: bool = True
    text_embed_dim: int = 4096
    pooled_projection_dim: int = 768


class Wan(Transformer, frozen=True, tag="WanTransformer3DModel"):
    """Self-attention over video tokens, cross-attention to text, modulation from a shared table."""

    patch_size: tuple[int, int, int] = (1, 2, 2)
    num_attention_heads: int = 40
    in_channels: int = 16
    out_channels: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    ffn_dim: int = 13824
    num_layers: int = 40
    cross_attn_norm: bool = True
    image_dim: int | None = None
    added_kv_proj_dim: int | None = None


class PixArt(Transformer, frozen=True, tag="PixArtTransformer2DModel"):
    """Self-attention over image tokens, cross-attention to text, one modulation for all blocks."""

    num_attention_heads: int = 16
    attention_head_dim: int = 72
    in_channels: int = 4
    out_channels: int = 8
    num_layers: int = 28
    cross_attention_dim: int = 1152
    sample_size: int = 128
    patch_size: int = 2
    caption_channels: int = 4096
    use_additional_conditions: bool | None = None  # None: where samples are 128 wide


class OmniGen(Noun, frozen=True, tag="OmniGenTransformer2DModel"):
    """A language model's layers over text, reference images and the noisy image in one sequence."""

    in_channels: int = 4
    patch_size: int = 2
    hidden_size: int = 3072
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    intermediate_size: int = 8192
    num_layers: int = 32
    vocab_size: int = 32064
    pos_embed_max_size: int = 192
    time_step_dim: int = 256

    @property
    def hidden(self) -> int:
        return self.hidden_size


class ZImage(Noun, frozen=True, tag="ZImageTransformer2DModel"):
    """Layers over joined text and image tokens, behind small refiners of each."""

    in_channels: int = 16
    dim: int = 3840
    n_layers: int = 30
    n_refiner_layers: int = 2
    n_heads: int = 30
    n_kv_heads: int = 30
    cap_feat_dim: int = 2560

    @property
    def hidden(self) -> int:
        return self.dim


class Lumina2(Noun, frozen=True, tag="Lumina2Transformer2DModel"):
    """Layers over joined text and image tokens, behind small refiners of each; keys of fewer heads."""

    patch_size: int = 2
    in_channels: int = 16
    hidden_size: int = 2304
    num_layers: int = 26
    num_refiner_layers: int = 2
    num_attention_heads: int = 24
    num_kv_heads: int = 8
    multiple_of: int = 256
    cap_feat_dim: int = 1024

    @property
    def hidden(self) -> int:
        return self.hidden_size


Denoiser = (
    UNet | Flux | Flux2 | SD3 | QwenImage | AuraFlow | CogVideoX | HunyuanVideo | Wan | PixArt | OmniGen | ZImage
    | Lumina2
)


Network = Model | Denoiser | Autoencoder


class Component(Noun, frozen=True):
    """One network of a pipeline."""

    name: str  # as the pipeline calls it: "text_encoder_2", "transformer", "vae"
    role: Literal["encoder", "denoiser", "autoencoder"]
    network: Network
    tokens: int = 0  # encoders: length prompts are padded to
    dtype: str | None = None  # where the pipeline keeps it in another one than asked for


class Pipeline(Noun, frozen=True):
    """A repository with a model_index.json. Components stand in the order in which they are offloaded."""

    name: str
    family: str  # the pipeline's class
    components: tuple[Component, ...]
    height: int = 1024  # what is generated when nothing else is said [pixels]
    width: int = 1024
    frames: int = 1
    guidance: bool = True  # classifier-free: every step denoises with and without the prompt, in one batch
    context_tokens: int = 77  # text tokens the denoiser reads
    dtype: str = "bf16"
    notes: tuple[str, ...] = ()

    def of_role(self, role: str) -> tuple[Component, ...]:
        return tuple(component for component in self.components if component.role == role)

    @property
    def denoisers(self) -> tuple[Component, ...]:
        """One, or one for each range of noise (Wan 2.2)."""
        return self.of_role("denoiser")

    @property
    def autoencoder(self) -> Component | None:
        return next(iter(self.of_role("autoencoder")), None)


Placed = Literal["on", "cached", "none"]
"""Whether a frozen network works in every step, once before the first one, or never."""


class DiffusionSetting(Noun, frozen=True, kw_only=True):
    """What a script of diffusion training does beside what every training says."""

    height: int | None = None  # of a sample [pixels]; None: as the pipeline generates
    width: int | None = None
    frames: int | None = None
    tokens: int | None = None  # of a prompt, where the script says how long they are
    trains: Literal["denoiser", "controlnet", "embedding", "text-kv"] = "denoiser"
    vae: Placed = "on"
    vae_dtype: Literal["half", "fp32"] | None = None  # "half": as everything frozen; None: fp32 where fp16 overflows
    text: Placed = "on"
    text_learns: bool = False  # with adapters where the denoiser has some, whole where it is trained whole
    text_words: bool = False  # tables of words learn beside the rest
    text_rank: int | None = None  # of those adapters; None: as the denoiser's
    prior: bool = False  # a class image beside every sample: twice the batch
    ema: bool = False
    condition: Literal["channels", "tokens"] | None = None  # a second image, beside the latent's channels or its tokens
    distils: Literal["itself", "apart"] | None = None  # without its adapters, or another denoiser; both are fp32 then
    teacher_half: bool = False  # the other one is in 16 bits
    encodes: int = 0  # images at once through the autoencoder; 0: all
    float8: bool = False  # frozen linears multiply in 8 bits, of weights that stay as they are
    weights: Literal["fp8"] | None = None  # type in which a frozen denoiser is held; None: what the precision says
    swapped: int = 0  # blocks that wait on the host, as sd-scripts counts them
    fused: bool = False  # each weight is stepped within backward, and its gradient dies
    targets: tuple[str, ...] = ()  # modules with adapters, as the tool calls them; (): its own default
    validation: bool = False  # images are made between steps
    reloads: Literal["kept", "cast"] | None = None  # a pipeline comes after the last step; "cast": to fp32 first


class DiffusionJob(Noun, frozen=True, kw_only=True):
    """One question about training a pipeline."""

    pipeline: Pipeline
    workload: Workload
    plan: Plan
    cluster: Cluster
    engine: str
    engine_version: Version | None = None
    setting: DiffusionSetting = DiffusionSetting()
    alloc_conf: str = ""
    env: dict[str, str] = {}
    workspaces: dict[str, float] = {}  # of cuDNN: kernel and phase -> share of the tensors that it moves
    assumed: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int, int]:
        """Frames, rows and columns of a sample [pixels]."""
        asked, usual = self.setting, self.pipeline
        side = self.workload.image_size
        return asked.frames or usual.frames, asked.height or side or usual.height, asked.width or side or usual.width,

    @property
    def batch(self) -> int:
        """Samples of one forward."""
        return self.workload.micro_batch * (2 if self.setting.prior else 1)
