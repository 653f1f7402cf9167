"""The independent check of the engine's arithmetic: Llama, Qwen2 and Qwen3 in plain numpy, from the same folder.

Written after Hugging Face's definitions and not after the engine: its own safetensors reader, whole matrices of scores,
no pages, no batches.

    reference.py make DIR              small random models in DIR/NAME, each with expected.json
    reference.py transformers DIR      the same expectations from PyTorch transformers in f32, and how far numpy was off

expected.json: {"prompt": ids, "positions": [...], "logits": [[...] after each of these positions of the prompt],
"greedy": 256 ids, "gap": smallest distance between the best two logits on the way}.
"""

import json
import os
import struct
import sys

import numpy as np

NEW_TOKENS = 256


def f32(x):
    return np.asarray(x, dtype=np.float32)


# safetensors: 8 bytes of header length, the header in JSON, the data.


def save(path, tensors, dtype):
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, value in tensors.items():
        blob = to_bytes(value, dtype)
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def to_bytes(value, dtype):
    if dtype == "F32":
        return value.astype("<f4").tobytes()
    if dtype == "F16":
        return value.astype("<f2").tobytes()
    bits = value.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def load_file(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: from_bytes(data[slice(*info["data_offsets"])], info) for name, info in header.items()}


def from_bytes(blob, info):
    if info["dtype"] == "BF16":
        value = (np.frombuffer(blob, "<u2").astype("<u4") << 16).view("<f4")
    else:
        value = np.frombuffer(blob, {"F32": "<f4", "F16": "<f2"}[info["dtype"]])
    return f32(value).reshape(info["shape"])


def load(folder):
    index = os.path.join(folder, "model.safetensors.index.json")
    names = ["model.safetensors"]
    if os.path.exists(index):
        names = sorted(set(json.load(open(index))["weight_map"].values()))
    tensors = {}
    for name in names:
        tensors.update(load_file(os.path.join(folder, name)))
    return tensors


# The model.


def frequencies(config, dim):
    exponent = f32(np.arange(0, dim, 2)) / f32(dim)
    plain = f32(1.0) / np.power(f32(config.get("rope_theta", 10000.0)), exponent)
    scaling = config.get("rope_scaling")
    if not scaling:
        return plain
    if scaling["rope_type"] == "linear":
        return plain / f32(scaling["factor"])
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    old, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    wave = 2 * np.pi / plain
    smooth = (old / wave - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    return f32(np.where(wave > old / low, plain / factor, np.where(wave < old / high, plain, between)))


def norm(x, gain, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + f32(epsilon)) * gain


def rotate(x, cos, sin):
    """x: [heads][positions][dimension]"""
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


class Model:
    def __init__(self, folder):
        self.config = json.load(open(os.path.join(folder, "config.json")))
        self.tensors = load(folder)
        self.heads = self.config["num_attention_heads"]
        self.kv_heads = self.config.get("num_key_value_heads") or self.heads
        self.dim = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        self.frequencies = frequencies(self.config, self.dim)
        self.cache = [None] * self.config["num_hidden_layers"]
        self.length = 0

    def linear(self, x, name):
        y = x @ self.tensors[name + ".weight"].T
        bias = self.tensors.get(name + ".bias")
        return y if bias is None else y + bias

    def forward(self, ids):
        """Logits [positions][vocabulary] after the new tokens, which follow those seen so far."""
        epsilon = self.config["rms_norm_eps"]
        count, group = len(ids), self.heads // self.kv_heads
        angles = np.outer(f32(np.arange(self.length, self.length + count)), self.frequencies)
        cos, sin = np.cos(angles), np.sin(angles)
        seen = self.length + count
        masked = np.arange(seen)[None, :] > np.arange(self.length, seen)[:, None]
        x = self.tensors["model.embed_tokens.weight"][ids]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            normed = norm(x, self.tensors[at + "input_layernorm.weight"], epsilon)
            q, k, v = (self.linear(normed, at + f"self_attn.{part}_proj") for part in "qkv")
            q, k, v = (part.reshape(count, -1, self.dim).transpose(1, 0, 2) for part in (q, k, v))
            if at + "self_attn.q_norm.weight" in self.tensors:
                q = norm(q, self.tensors[at + "self_attn.q_norm.weight"], epsilon)
                k = norm(k, self.tensors[at + "self_attn.k_norm.weight"], epsilon)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            if self.cache[layer] is not None:
                k = np.concatenate([self.cache[layer][0], k], axis=1)
                v = np.concatenate([self.cache[layer][1], v], axis=1)
            self.cache[layer] = (k, v)
            k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
            scores = q @ k.transpose(0, 2, 1) / f32(np.sqrt(self.dim))
            scores = np.where(masked, f32(-np.inf), scores)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = weights / weights.sum(axis=-1, keepdims=True) @ v
            x = x + self.linear(mixed.transpose(1, 0, 2).reshape(count, -1), at + "self_attn.o_proj")
            normed = norm(x, self.tensors[at + "post_attention_layernorm.weight"], epsilon)
            gate = self.linear(normed, at + "mlp.gate_proj")
            gate = gate / (1 + np.exp(-gate)) * self.linear(normed, at + "mlp.up_proj")
            x = x + self.linear(gate, at + "mlp.down_proj")
        self.length = seen
        tied = self.config.get("tie_word_embeddings", False)
        head = self.tensors["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return norm(x, self.tensors["model.norm.weight"], epsilon) @ head.T


def expect(folder, prompt, positions):
    model = Model(folder)
    logits = model.forward(prompt)
    assert logits.dtype == np.float32
    last, greedy, gap = logits[-1], [], np.inf
    for _ in range(NEW_TOKENS):
        two = np.partition(last, -2)[-2:]
        gap = min(gap, float(two[1] - two[0]))
        greedy.append(int(np.argmax(last)))
        last = model.forward(greedy[-1:])[-1]
    rows = [[float(value) for value in logits[at]] for at in positions]
    return {"prompt": prompt, "positions": positions, "logits": rows, "greedy": greedy, "gap": gap}


# Small random models: each differs from the others where the families differ.

BASE = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "llama": dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=176, vocab_size=500),
    "llama3": dict(hidden_size=96, num_attention_heads=6, num_key_value_heads=1, head_dim=64, intermediate_size=112,
                   vocab_size=1003, rope_theta=500000.0, rope_scaling=LLAMA3, tie_word_embeddings=True),
    "llama-biased": dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=3, intermediate_size=80,
                         vocab_size=320, attention_bias=True, mlp_bias=True,
                         rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "qwen2": dict(hidden_size=112, num_attention_heads=7, num_key_value_heads=1, intermediate_size=160, vocab_size=777,
                  rope_theta=1000000.0, tie_word_embeddings=True, use_sliding_window=False, sliding_window=4096,
                  max_window_layers=3),
    "qwen3": dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32, intermediate_size=144,
                  vocab_size=640, rope_theta=1000000.0, rms_norm_eps=1e-6),
    "qwen3-wide": dict(hidden_size=80, num_attention_heads=5, num_key_value_heads=5, head_dim=128,
                       intermediate_size=96, vocab_size=401, rope_theta=1000000.0, tie_word_embeddings=True),
}
DTYPES = {"llama3": "BF16", "qwen2": "BF16", "qwen3-wide": "F16"}


def make(folder, name, seed):
    random = np.random.default_rng(seed)
    family = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[name.split("-")[0].replace("llama3", "llama")]
    config = {**BASE, **MODELS[name], "architectures": [family + "ForCausalLM"], "model_type": family.lower()}
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    dim = config.get("head_dim", hidden // config["num_attention_heads"])
    wide, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    tensors = {}

    def linear(name, out, into, gain, bias):
        tensors[name + ".weight"] = f32(random.normal(0, gain / np.sqrt(into), (out, into)))
        if bias:
            tensors[name + ".bias"] = f32(random.normal(0, 0.3, out))

    def gain(name, width):
        tensors[name + ".weight"] = f32(random.normal(1, 0.2, width))

    tied = config["tie_word_embeddings"]
    tensors["model.embed_tokens.weight"] = f32(random.normal(0, 2.5 / np.sqrt(hidden) if tied else 1, (vocab, hidden)))
    attention_bias = family == "Qwen2" or config.get("attention_bias", False)
    mlp_bias = config.get("mlp_bias", False)
    branch = 1 / np.sqrt(2 * config["num_hidden_layers"])
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        linear(at + "self_attn.q_proj", wide, hidden, 2, attention_bias)
        linear(at + "self_attn.k_proj", kv, hidden, 1, attention_bias)
        linear(at + "self_attn.v_proj", kv, hidden, 2, attention_bias)
        linear(at + "self_attn.o_proj", hidden, wide, 2 * branch, attention_bias and family != "Qwen2")
        linear(at + "mlp.gate_proj", ffn, hidden, 1.5, mlp_bias)
        linear(at + "mlp.up_proj", ffn, hidden, 1.5, mlp_bias)
        linear(at + "mlp.down_proj", hidden, ffn, 2 * branch, mlp_bias)
        gain(at + "input_layernorm", hidden)
        gain(at + "post_attention_layernorm", hidden)
        if family == "Qwen3":
            gain(at + "self_attn.q_norm", dim)
            gain(at + "self_attn.k_norm", dim)
    gain("model.norm", hidden)
    if not tied:
        linear("lm_head", vocab, hidden, 2.5, False)
    os.makedirs(folder, exist_ok=True)
    write_json(folder, "config.json", config)
    dtype = DTYPES.get(name, "F32")
    if name == "qwen3":
        files = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
        place = {tensor: files[index % 2] for index, tensor in enumerate(tensors)}
        for file in files:
            save(os.path.join(folder, file), {k: v for k, v in tensors.items() if place[k] == file}, dtype)
        write_json(folder, "model.safetensors.index.json", {"metadata": {}, "weight_map": place})
    else:
        save(os.path.join(folder, "model.safetensors"), tensors, dtype)
    prompt = [int(id) for id in random.integers(0, vocab, 150)]
    write_json(folder, "expected.json", expect(folder, prompt, [0, 1, 15, 16, 127, 128, 149]))


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file)


def with_transformers(folder):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with open(os.path.join(folder, "expected.json")) as file:
        expected = json.load(file)
    with torch.no_grad():
        ids = torch.tensor([expected["prompt"]])
        output = model(ids, use_cache=True)
        logits = output.logits[0].numpy()
        rows = [[float(value) for value in logits[at]] for at in expected["positions"]]
        off = float(np.abs(np.array(rows) - np.array(expected["logits"])).max())
        greedy = []
        for _ in range(NEW_TOKENS):
            greedy.append(int(output.logits[0, -1].argmax()))
            output = model(torch.tensor([greedy[-1:]]), past_key_values=output.past_key_values, use_cache=True)
    same = greedy == expected["greedy"]
    print(f"{os.path.basename(folder)}: numpy was off by {off:.2e}, greedy tokens {'equal' if same else 'DIFFER'}")
    write_json(folder, "expected.json", {**expected, "logits": rows, "greedy": greedy})


def main():
    command, folder = sys.argv[1:]
    if command == "make":
        for seed, name in enumerate(MODELS):
            make(os.path.join(folder, name), name, 1876 + seed)
    elif command == "transformers":
        for name in MODELS:
            with_transformers(os.path.join(folder, name))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
