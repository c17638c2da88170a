"""Small random models of many architectures: configuration, inputs, and whether the model generates tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as T

VOCABULARY = 61
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GROUPED = TINY | {"num_key_value_heads": 2}
PIXELS = {"image_size": 16, "patch_size": 4, "num_channels": 3}


def quiet(config: T.PretrainedConfig) -> T.PretrainedConfig:
    """`config` with every rate of dropout, dropped paths and masked time at 0: two devices draw different numbers."""
    for name, value in vars(config).items():
        if isinstance(value, T.PretrainedConfig):
            quiet(value)
        elif isinstance(value, float) and ("drop" in name or name in ("mask_time_prob", "mask_feature_prob")):
            setattr(config, name, 0.0)
    return config


@dataclass(frozen=True)
class Architecture:
    """A model class with a tiny configuration; `kind` says what goes in and whether it decodes.

    `dtype` is float64 where gradients are ill-conditioned: in float32 the CPU itself is more than 1e-4 off.
    """

    model: str
    config: Callable[[], Any]
    kind: str = "decoder"
    pixels: int = 16
    dtype: torch.dtype = torch.float32

    def build(self) -> torch.nn.Module:
        torch.manual_seed(0)
        model = getattr(T, self.model)(quiet(self.config()))
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return model.to(self.dtype)

    def inputs(self, device: str) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(5, VOCABULARY, (2, 7), generator=generator)
        images = torch.randn(2, 3, self.pixels, self.pixels, generator=generator)
        sound = torch.randn(2, 800, generator=generator)
        spectrum = torch.randn(2, 80, 40, generator=generator)
        made = {
            "decoder": {"input_ids": tokens, "labels": tokens},
            "encoder": {"input_ids": tokens, "labels": tokens},
            "seq2seq": {"input_ids": tokens, "labels": tokens},
            "vision": {"pixel_values": images, "labels": torch.tensor([0, 1])},
            "audio": {"input_values": sound, "labels": torch.tensor([0, 1])},
            "speech": {"input_features": spectrum, "labels": tokens},
            "clip": {"input_ids": tokens, "pixel_values": images, "return_loss": torch.tensor(True)},
        }[self.kind]
        cast = {name: value.to(self.dtype) if value.is_floating_point() else value for name, value in made.items()}
        return {name: value.to(device) for name, value in cast.items()}


def decoder(config: str, model: str, **more: Any) -> Architecture:
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return Architecture(model, lambda: getattr(T, config)(**(GROUPED | special | more)))


def encoder(config: str, model: str, **more: Any) -> Architecture:
    return Architecture(model, lambda: getattr(T, config)(**(TINY | more)), "encoder")


def _gpt_style(**more: Any) -> dict[str, Any]:
    return {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY} | more


def _seq2seq(**more: Any) -> dict[str, Any]:
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return sizes | heads | special | {"vocab_size": VOCABULARY, "forced_eos_token_id": None} | more


def _t5(**more: Any) -> dict[str, Any]:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
    return sizes | {"dropout_rate": 0.0, "decoder_start_token_id": 0} | more


def listener(config: str, model: str, **more: Any) -> Architecture:
    sizes = {k: v for k, v in TINY.items() if k != "max_position_embeddings"}
    ears = {"conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2}
    places = {"num_conv_pos_embeddings": 2 if more else 8, "num_conv_pos_embedding_groups": 4}
    return Architecture(model, lambda: getattr(T, config)(**(sizes | ears | places | more)), "audio")


VISION = {k: v for k, v in TINY.items() if k not in ("vocab_size", "max_position_embeddings")} | PIXELS

ARCHITECTURES = {
    "gpt2": Architecture("GPT2LMHeadModel", lambda: T.GPT2Config(**_gpt_style(bos_token_id=1, eos_token_id=2))),
    "gptj": Architecture(
        "GPTJForCausalLM", lambda: T.GPTJConfig(**_gpt_style(rotary_dim=4, bos_token_id=1, eos_token_id=2))
    ),
    "gpt_neox": decoder("GPTNeoXConfig", "GPTNeoXForCausalLM"),
    "gpt_bigcode": Architecture(
        "GPTBigCodeForCausalLM", lambda: T.GPTBigCodeConfig(**_gpt_style(bos_token_id=1, eos_token_id=2))
    ),
    "opt": decoder("OPTConfig", "OPTForCausalLM", ffn_dim=48, word_embed_proj_dim=32),
    "bloom": decoder("BloomConfig", "BloomForCausalLM", n_layer=2, n_head=4),
    "llama": decoder("LlamaConfig", "LlamaForCausalLM"),
    "mistral": decoder("MistralConfig", "MistralForCausalLM", sliding_window=4),
    "mixtral": decoder("MixtralConfig", "MixtralForCausalLM", num_local_experts=4),
    "qwen2": decoder("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": decoder("Qwen3Config", "Qwen3ForCausalLM", head_dim=8),
    "gemma": decoder("GemmaConfig", "GemmaForCausalLM", head_dim=8),
    "gemma2": decoder("Gemma2Config", "Gemma2ForCausalLM", head_dim=8, sliding_window=4),
    "phi": decoder("PhiConfig", "PhiForCausalLM"),
    "phi3": decoder("Phi3Config", "Phi3ForCausalLM"),
    "olmo": decoder("OlmoConfig", "OlmoForCausalLM"),
    "stablelm": decoder("StableLmConfig", "StableLmForCausalLM"),
    "falcon": decoder("FalconConfig", "FalconForCausalLM"),
    "codegen": Architecture(
        "CodeGenForCausalLM", lambda: T.CodeGenConfig(**_gpt_style(rotary_dim=4, bos_token_id=1, eos_token_id=2))
    ),
    "mamba": decoder("MambaConfig", "MambaForCausalLM", state_size=4),
    "mamba2": decoder(
        "Mamba2Config", "Mamba2ForCausalLM", state_size=4, head_dim=16, num_heads=4, n_groups=1, chunk_size=4
    ),
    "rwkv": Architecture(
        "RwkvForCausalLM",
        lambda: T.RwkvConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, context_length=32),
    ),
    "recurrent_gemma": decoder(
        "RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", num_hidden_layers=3, lru_width=32, attention_window_size=4
    ),
    "qwen2_moe": decoder(
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "cohere": decoder("CohereConfig", "CohereForCausalLM"),
    "bert": encoder("BertConfig", "BertForMaskedLM"),
    "roberta": encoder("RobertaConfig", "RobertaForMaskedLM", pad_token_id=1),
    "electra": encoder("ElectraConfig", "ElectraForMaskedLM", embedding_size=32),
    "distilbert": Architecture(
        "DistilBertForMaskedLM",
        lambda: T.DistilBertConfig(vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48),
        "encoder",
    ),
    "albert": encoder("AlbertConfig", "AlbertForMaskedLM", embedding_size=16),
    "deberta_v2": encoder(
        "DebertaV2Config", "DebertaV2ForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "xlnet": Architecture(
        "XLNetLMHeadModel",
        lambda: T.XLNetConfig(vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=48),
        "encoder",
    ),
    "funnel": Architecture(
        "FunnelForMaskedLM",
        lambda: T.FunnelConfig(
            vocab_size=VOCABULARY, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4, d_head=8, d_inner=48
        ),
        "encoder",
    ),
    "fnet": encoder("FNetConfig", "FNetForMaskedLM"),
    "convbert": encoder("ConvBertConfig", "ConvBertForMaskedLM", embedding_size=32, conv_kernel_size=3, head_ratio=2),
    "t5": Architecture("T5ForConditionalGeneration", lambda: T.T5Config(**_t5()), "seq2seq"),
    "bart": Architecture("BartForConditionalGeneration", lambda: T.BartConfig(**_seq2seq()), "seq2seq"),
    "marian": Architecture("MarianMTModel", lambda: T.MarianConfig(**_seq2seq()), "seq2seq"),
    "pegasus": Architecture("PegasusForConditionalGeneration", lambda: T.PegasusConfig(**_seq2seq()), "seq2seq"),
    "longt5": Architecture("LongT5ForConditionalGeneration", lambda: T.LongT5Config(**_t5(local_radius=3)), "seq2seq"),
    "longt5_global": Architecture(
        "LongT5ForConditionalGeneration",
        lambda: T.LongT5Config(**_t5(local_radius=3, encoder_attention_type="transient-global", global_block_size=2)),
        "seq2seq",
    ),
    "switch_transformers": Architecture(
        "SwitchTransformersForConditionalGeneration",
        lambda: T.SwitchTransformersConfig(**_t5(num_decoder_layers=2, num_experts=4, router_jitter_noise=0.0)),
        "seq2seq",
    ),
    "prophetnet": Architecture(
        "ProphetNetForConditionalGeneration",
        lambda: T.ProphetNetConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_encoder_layers=1,
            num_decoder_layers=1,
            num_encoder_attention_heads=4,
            num_decoder_attention_heads=4,
            decoder_start_token_id=0,
        ),
        "seq2seq",
    ),
    "vit": Architecture("ViTForImageClassification", lambda: T.ViTConfig(**VISION), "vision"),
    "deit": Architecture("DeiTForImageClassification", lambda: T.DeiTConfig(**VISION), "vision"),
    "beit": Architecture(
        "BeitForImageClassification", lambda: T.BeitConfig(**VISION, use_relative_position_bias=True), "vision"
    ),
    "convnext": Architecture(
        "ConvNextForImageClassification",
        lambda: T.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2, image_size=16),
        "vision",
    ),
    "resnet": Architecture(
        "ResNetForImageClassification",
        lambda: T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
        "vision",
    ),
    "swin": Architecture(
        "SwinForImageClassification",
        lambda: T.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4),
        "vision",
    ),
    "swinv2": Architecture(
        "Swinv2ForImageClassification",
        lambda: T.Swinv2Config(
            image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
        ),
        "vision",
    ),
    "cvt": Architecture(
        "CvtForImageClassification",
        lambda: T.CvtConfig(
            embed_dim=[8, 16, 16],
            num_heads=[1, 2, 2],
            depth=[1, 2, 3],
            patch_sizes=[3, 3, 3],
            patch_stride=[2, 2, 2],
            patch_padding=[1, 1, 1],
            drop_path_rate=[0.0, 0.0, 0.0],
        ),
        "vision",
    ),
    "focalnet": Architecture(
        "FocalNetForImageClassification",
        lambda: T.FocalNetConfig(
            image_size=16,
            patch_size=2,
            embed_dim=8,
            depths=[1, 1],
            hidden_sizes=[8, 16],
            focal_levels=[2, 2],
            focal_windows=[3, 3],
        ),
        "vision",
    ),
    "segformer": Architecture(
        "SegformerForImageClassification",
        lambda: T.SegformerConfig(
            hidden_sizes=[8, 16],
            depths=[1, 1],
            num_encoder_blocks=2,
            patch_sizes=[3, 3],
            strides=[2, 2],
            num_attention_heads=[1, 2],
            sr_ratios=[2, 1],
            mlp_ratios=[2, 2],
        ),
        "vision",
    ),
    "mobilenet_v2": Architecture(
        "MobileNetV2ForImageClassification",
        lambda: T.MobileNetV2Config(depth_multiplier=0.25, image_size=16),
        "vision",
        dtype=torch.float64,
    ),
    "mobilevit": Architecture(
        "MobileViTForImageClassification",
        lambda: T.MobileViTConfig(
            image_size=32, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 24, 32, 32, 64], patch_size=2
        ),
        "vision",
        pixels=32,
        dtype=torch.float64,
    ),
    "mobilevitv2": Architecture(
        "MobileViTV2ForImageClassification",
        lambda: T.MobileViTV2Config(image_size=64, width_multiplier=0.25),
        "vision",
        pixels=64,
        dtype=torch.float64,
    ),
    "levit": Architecture(
        "LevitForImageClassification",
        lambda: T.LevitConfig(
            image_size=64,
            hidden_sizes=[16, 24, 32],
            num_attention_heads=[2, 2, 2],
            depths=[1, 1, 1],
            key_dim=[8, 8, 8],
        ),
        "vision",
        pixels=64,
        dtype=torch.float64,
    ),
    "wav2vec2": listener("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification"),
    "hubert": listener("HubertConfig", "HubertForSequenceClassification"),
    "wavlm": listener("WavLMConfig", "WavLMForSequenceClassification"),
    "sew": listener("SEWConfig", "SEWForSequenceClassification"),
    "data2vec_audio": listener("Data2VecAudioConfig", "Data2VecAudioForSequenceClassification", conv_pos_kernel_size=3),
    "whisper": Architecture(
        "WhisperForConditionalGeneration",
        lambda: T.WhisperConfig(**_seq2seq(max_source_positions=20, max_target_positions=32)),
        "speech",
    ),
    "data2vec_vision": Architecture(
        "Data2VecVisionForImageClassification",
        lambda: T.Data2VecVisionConfig(**VISION, use_relative_position_bias=True),
        "vision",
    ),
    "mobilenet_v1": Architecture(
        "MobileNetV1ForImageClassification", lambda: T.MobileNetV1Config(depth_multiplier=0.25), "vision"
    ),
    "clip": Architecture(
        "CLIPModel",
        lambda: T.CLIPConfig(
            text_config=TINY | {"eos_token_id": 2, "bos_token_id": 1}, vision_config=VISION, projection_dim=16
        ),
        "clip",
    ),
}
DECODERS = [name for name, architecture in ARCHITECTURES.items() if architecture.kind == "decoder"]
GENERATORS = DECODERS + [name for name, architecture in ARCHITECTURES.items() if architecture.kind == "seq2seq"]
