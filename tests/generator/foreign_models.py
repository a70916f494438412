#!/usr/bin/env python3
"""Exports architectures of torchvision, timm and transformers with random weights, runs them, and compares
with PyTorch.

    pip install torch torchvision timm transformers && ninja build/run_model
    python3 tests/generator/foreign_models.py [PATTERN]

Each is the smallest of its family, or a tiny configuration of it, in evaluation mode. It is equal, refused
with reasons, or wrong: its outputs differ from PyTorch's by more than 1e-4 of their largest value. "batch":
the spec's batch varies. "fixed": PyTorch's capture or gpunn supports only one size. Nothing is downloaded
except the packages."""
import argparse
import collections
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from generator import export_torch
from generator.exchange import tensor_files
from generator.exchange.torch_export.capture import flat

TOLERANCE = 1e-4

# torchvision's and timm's names, with the sides of the pictures
TORCHVISION = {
    "alexnet": 64, "convnext_tiny": 32, "deeplabv3_mobilenet_v3_large": 64, "densenet121": 32,
    "efficientnet_b0": 32, "efficientnet_v2_s": 32, "fcn_resnet50": 64, "googlenet": 64, "inception_v3": 96,
    "lraspp_mobilenet_v3_large": 64, "maxvit_t": 224, "mnasnet0_5": 32, "mobilenet_v2": 32,
    "mobilenet_v3_small": 32, "mvit_v2_s": (3, 16, 224, 224), "r2plus1d_18": (3, 4, 32, 32),
    "raft_small": 128, "regnet_y_400mf": 32, "resnet18": 32, "resnext50_32x4d": 32,
    "s3d": (3, 16, 224, 224), "shufflenet_v2_x0_5": 32, "squeezenet1_1": 64, "swin_t": 64, "swin_v2_t": 64,
    "swin3d_t": (3, 4, 64, 64), "vgg11_bn": 32, "vit_b_32": 224}
TIMM = {
    "beit_base_patch16_224": 224, "botnet26t_256": 256, "cait_xxs24_224": 224, "coat_tiny": 224,
    "coatnet_nano_rw_224": 224, "convit_tiny": 224, "convmixer_768_32": 56, "crossvit_tiny_240": 240,
    "cspresnet50": 64, "davit_tiny": 64, "deit_tiny_patch16_224": 224, "dla34": 64, "dpn48b": 64,
    "edgenext_xx_small": 64, "efficientformer_l1": 224, "efficientvit_b0": 64, "eva02_tiny_patch14_224": 224,
    "fastvit_t8": 64, "focalnet_tiny_srf": 64, "gcvit_xxtiny": 224, "ghostnet_050": 64, "hgnetv2_b0": 64,
    "hiera_tiny_224": 224, "hrnet_w18_small": 64, "inception_next_atto": 64, "lcnet_050": 64,
    "levit_128s": 224, "mambaout_femto": 64, "mixer_s32_224": 224, "mobilenetv4_conv_small": 64,
    "mobilevit_xxs": 64, "mobilevitv2_050": 64, "nf_resnet26": 64, "pit_ti_224": 224, "poolformer_s12": 64,
    "pvt_v2_b0": 64, "repvgg_a0": 64, "res2net50_14w_8s": 64, "resnest14d": 64, "rexnet_100": 64,
    "sequencer2d_s": 224, "skresnet18": 64, "tiny_vit_5m_224": 224,
    "twins_svt_small": 64, "visformer_tiny": 224, "volo_d1_224": 224, "xcit_nano_12_p16_224": 224}

WORDS, PICTURE, SOUND = {"input_ids": (2, 12)}, {"pixel_values": (2, 3, 32, 32)}, {"input_values": (2, 800)}
TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=48, vocab_size=99,
            max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
TWO_TOWERS = dict(encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                  encoder_ffn_dim=48, decoder_ffn_dim=48, d_model=32, decoder_start_token_id=1)
BOTH_WORDS = {"input_ids": (2, 12), "decoder_input_ids": (2, 5)}
CONVOLUTIONS = dict(conv_dim=(16, 16, 16), conv_kernel=(10, 3, 2), conv_stride=(5, 2, 2),
                    num_feat_extract_layers=3, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2)
STAGES = dict(image_size=32, embed_dim=16, depths=[1, 1], num_attention_heads=[2, 4], window_size=4,
              patch_size=2)
VIEWS = {"image_size": 32, "patch_size": 8}
FOUR_STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 2, 4]}
T5 = {"d_kv": 8, "d_ff": 48, "d_model": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 16,
           "shared_expert_intermediate_size": 16, "experts_implementation": "batched_mm"}
# by name, the configuration's settings besides TINY, and the inputs
TRANSFORMERS = {
    "LlamaForCausalLM": ({}, WORDS), "Qwen2ForCausalLM": ({}, WORDS),
    "Qwen3ForCausalLM": ({"head_dim": 8}, WORDS),
    "MistralForCausalLM": ({"sliding_window": 8}, WORDS), "GemmaForCausalLM": ({"head_dim": 8}, WORDS),
    "Gemma2ForCausalLM": ({"head_dim": 8, "sliding_window": 8}, WORDS), "PhiForCausalLM": ({}, WORDS),
    "Phi3ForCausalLM": ({}, WORDS), "GPTNeoXForCausalLM": ({}, WORDS),
    "GPT2LMHeadModel": ({"n_inner": 48}, WORDS),
    "OPTForCausalLM": ({"ffn_dim": 48, "word_embed_proj_dim": 32}, WORDS), "BloomForCausalLM": ({}, WORDS),
    "FalconForCausalLM": ({}, WORDS),
    "MptForCausalLM": ({"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}, WORDS),
    "Olmo2ForCausalLM": ({}, WORDS), "CohereForCausalLM": ({}, WORDS), "StableLmForCausalLM": ({}, WORDS),
    "Starcoder2ForCausalLM": ({}, WORDS), "GraniteForCausalLM": ({}, WORDS),
    "GPTJForCausalLM": ({"rotary_dim": 4}, WORDS),
    "CodeGenForCausalLM": ({"n_embd": 32, "rotary_dim": 4}, WORDS),
    "GPTNeoForCausalLM": ({"attention_types": [[["global", "local"], 1]], "window_size": 4}, WORDS),
    "XGLMForCausalLM": ({"ffn_dim": 48, "attention_heads": 4, "num_layers": 2, "d_model": 32}, WORDS),
    "MixtralForCausalLM": (EXPERTS, WORDS), "Qwen2MoeForCausalLM": (EXPERTS, WORDS),
    "MambaForCausalLM": ({"state_size": 4, "time_step_rank": 4}, WORDS),
    "Mamba2ForCausalLM": ({"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
                          WORDS),
    "RwkvForCausalLM": ({"attention_hidden_size": 32, "context_length": 64}, WORDS), "BertModel": ({}, WORDS),
    "RobertaModel": ({"max_position_embeddings": 66}, WORDS), "DistilBertModel": ({"hidden_dim": 48}, WORDS),
    "AlbertModel": ({"embedding_size": 16}, WORDS), "ElectraModel": ({"embedding_size": 16}, WORDS),
    "DebertaV2Model": ({"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
                       WORDS),
    "RoFormerModel": ({"embedding_size": 32}, WORDS), "ConvBertModel": ({"embedding_size": 32}, WORDS),
    "BigBirdModel": ({"attention_type": "original_full"}, WORDS),
    "MPNetModel": ({"max_position_embeddings": 66}, WORDS),
    "ModernBertModel": ({"global_attn_every_n_layers": 2, "local_attention": 4}, WORDS),
    "FNetModel": ({}, WORDS),
    "SqueezeBertModel": (dict({"embedding_size": 32, "post_attention_groups": 1},
                              **{key + "_groups": 2 for key in ("q", "k", "v", "intermediate", "output")}),
                         WORDS),
    "LongformerModel": ({"attention_window": 4, "max_position_embeddings": 70}, WORDS),
    "T5Model": (T5, BOTH_WORDS), "SwitchTransformersModel": (dict(T5, num_experts=2), BOTH_WORDS),
    "BartModel": (TWO_TOWERS, BOTH_WORDS), "PegasusModel": (TWO_TOWERS, BOTH_WORDS),
    "MBartModel": (TWO_TOWERS, BOTH_WORDS),
    "LEDModel": (dict(TWO_TOWERS, attention_window=4, max_encoder_position_embeddings=64), BOTH_WORDS),
    "PerceiverModel": ({"d_model": 16, "num_latents": 8, "d_latents": 16, "num_blocks": 1,
                        "num_self_attends_per_block": 1, "num_self_attention_heads": 2,
                        "num_cross_attention_heads": 2}, {"inputs": (2, 10, 16)}),
    "WhisperModel": (dict(TWO_TOWERS, num_mel_bins=8, max_source_positions=20, max_target_positions=16),
                     {"input_features": (2, 8, 40), "decoder_input_ids": (2, 5)}),
    "Wav2Vec2Model": (CONVOLUTIONS, SOUND), "HubertModel": (CONVOLUTIONS, SOUND),
    "WavLMModel": (CONVOLUTIONS, SOUND),
    "SEWModel": (dict(CONVOLUTIONS, squeeze_factor=2), SOUND), "Data2VecAudioModel": (CONVOLUTIONS, SOUND),
    "Wav2Vec2ConformerModel": (dict(CONVOLUTIONS, position_embeddings_type="rotary"), SOUND),
    "ASTModel": ({"num_mel_bins": 16, "max_length": 24, "patch_size": 8, "frequency_stride": 8,
                  "time_stride": 8}, {"input_values": (2, 24, 16)}),
    "EncodecModel": ({}, {"input_values": (2, 1, 640)}),
    "CLIPModel": ({"text_config": TINY, "vision_config": dict(TINY, **VIEWS), "projection_dim": 16},
                  dict(WORDS, **PICTURE)),
    "SiglipModel": ({"text_config": dict(TINY, max_position_embeddings=12),
                     "vision_config": dict(TINY, **VIEWS)}, dict(WORDS, **PICTURE)),
    "ViTModel": (VIEWS, PICTURE), "Dinov2Model": (VIEWS, PICTURE), "BeitModel": (VIEWS, PICTURE),
    "ViTMAEModel": (VIEWS, dict(PICTURE, noise=(2, 16))), "DPTModel": (dict(VIEWS, is_hybrid=False), PICTURE),
    "SwinModel": (STAGES, PICTURE), "SegformerModel": (FOUR_STAGES, PICTURE),
    "PvtV2Model": (FOUR_STAGES, PICTURE), "PoolFormerModel": (FOUR_STAGES, PICTURE),
    "MobileViTModel": ({"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
                        "image_size": 64}, {"pixel_values": (2, 3, 64, 64)}),
    "LevitModel": ({"image_size": 64, "hidden_sizes": [16, 32, 48], "num_attention_heads": [2, 2, 2],
                    "depths": [1, 1, 1], "key_dim": [8, 8, 8]}, {"pixel_values": (2, 3, 64, 64)}),
    "VideoMAEModel": (dict(VIEWS, num_frames=4), {"pixel_values": (2, 4, 3, 32, 32)})}


class Flat(torch.nn.Module):
    """A model of transformers with positional inputs and its first result."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs):
        result = self.model(**dict(zip(self.names, inputs)), return_dict=True, **self.options())
        return next(result[key] for key in ("logits", "logits_per_image", "last_hidden_state")
                    if key in result)

    def options(self):
        return {"use_cache": False} if hasattr(self.model.config, "use_cache") else {}


def of_torchvision(name):
    import torchvision.models
    kind = TORCHVISION[name]
    options = {"weights_backbone": None} if name.startswith(("fcn", "deeplab", "lraspp")) else {}
    options.update({"init_weights": False} if name in ("googlenet", "inception_v3") else {})
    model = torchvision.models.get_model(name, weights=None, **options)
    shape = (2,) + (kind if isinstance(kind, tuple) else (3, kind, kind))
    return model, [torch.rand(shape)] * (2 if name.startswith("raft") else 1)


def of_timm(name):
    import timm
    size = TIMM[name]
    options = {"img_size": size} if name.startswith(("davit", "focalnet", "twins")) and size != 224 else {}
    try:
        model = timm.create_model(name, pretrained=False, **options)
    except TypeError:
        model = timm.create_model(name, pretrained=False)
    return model, [torch.rand(2, 3, size, size)]


def of_transformers(name):
    import transformers
    settings, inputs = TRANSFORMERS[name]
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**dict(TINY, **settings)))
    values = [torch.randint(3, 99, shape) if key.endswith("ids") else torch.rand(shape)
              for key, shape in inputs.items()]
    return Flat(model, list(inputs)), values


def stirred(model):
    """The model with random values where it starts with equal ones: norms, biases, tables of zeros."""
    with torch.no_grad():
        for name, x in list(model.named_parameters()) + list(model.named_buffers()):
            if x.is_floating_point() and (x == x.flatten()[:1]).all() and "Inf" not in name:
                x.add_(0.1 * torch.rand_like(x))
    return model.eval()


def exported(model, inputs, name):
    """Writes NAME.json and NAME.safetensors. Returns how, or raises Unsupported."""
    for how, dynamic in (("batch", True), ("fixed", False)):
        try:
            export_torch.export(model, inputs, name + ".json", name + ".safetensors", dynamic_batch=dynamic)
            return how
        except export_torch.Unsupported:
            if not dynamic:
                raise


def difference(model, inputs, folder):
    """The largest difference of all outputs, each relative to its largest value, and how the model was
    exported."""
    name = os.path.join(folder, "model")
    how = exported(model, inputs, name)
    names = export_torch.input_names_of(model, len(inputs), None)
    export_torch.save_safetensors(name + ".in", dict(zip(names, inputs)))
    command = [os.path.join(ROOT, "build", "run_model"), name + ".json", "--weights", name + ".safetensors",
               "--input", name + ".in", "--output", name + ".out"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode:
        raise RuntimeError("run_model ended with %d: %s" % (done.returncode, done.stdout.strip()[-300:]))
    results, errors = tensor_files.read_safetensors(name + ".out"), []
    with torch.no_grad():
        expected = flat(model(*inputs))
    for key, wanted in expected:
        got = torch.tensor(results[key].values, dtype=torch.float64).reshape(results[key].shape)
        errors.append((got - wanted).abs().max() / wanted.abs().max())
    return float(torch.stack(errors).max()), how


def outcome(make, name):
    """equal, refused or wrong, and a sentence on it."""
    torch.manual_seed(1)
    model, inputs = make(name)
    with tempfile.TemporaryDirectory() as folder:
        try:
            error, how = difference(stirred(model), tuple(inputs), folder)
        except export_torch.Unsupported as why:
            problems = collections.Counter(re.sub(r" \(in .*?\): ", ": ", p).splitlines()[0]
                                           for p in why.problems)
            return "refused", "\n".join("    %d x %s" % (count, text)
                                        for text, count in problems.most_common(8))
        except (RuntimeError, OSError) as why:
            return "wrong", "    %s" % why
    return "equal" if error <= TOLERANCE else "wrong", "%.1e, %s" % (error, how)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="", help="of the names")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    counts = collections.Counter()
    for make, names in ((of_torchvision, TORCHVISION), (of_timm, TIMM), (of_transformers, TRANSFORMERS)):
        for name in names:
            if not re.search(options.pattern, name):
                continue
            start = time.time()
            state, text = outcome(make, name)
            counts[state] += 1
            print("%-8s %s (%.0f s)%s%s" % (state, name, time.time() - start,
                                            ": " if state == "equal" else "\n", text), flush=True)
    print("%d: %d equal, %d refused, %d wrong" %
          (sum(counts.values()), counts["equal"], counts["refused"], counts["wrong"]))
    return counts["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())
