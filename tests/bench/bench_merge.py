"""Memory and time of a streamed merge against its alternatives in the same run, one JSON line a figure.

    python tests/bench/bench_merge.py [--gigabytes 4] [--folder DIR]

The base is written into a temporary folder: bf16, files of 1 GB. Compared are `cp` with fsync of the base, and PEFT's
way (load, merge_and_unload, save_pretrained), each in a process of its own; FP8, the quantized base and two adapters
are compared with the plain merge. The base's pages are dropped before each (posix_fadvise), so that all read from the
disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = {
    "fp8": ["--dtype", "fp8"],
    "quantized_base": ["--quantized-base", "nf4-double"],
    "two_adapters": ["--adapter", "{adapter}=0.5"],
}
HIDDEN, INNER, VOCAB, KV = 2048, 8192, 32000, 512
MAKE = """
import sys, json, torch
from pathlib import Path
from safetensors.torch import save_file
folder, layers = Path(sys.argv[1]), int(sys.argv[2])
H, I, V, K = {sizes}
torch.manual_seed(0)
def rand(*s): return (torch.randn(*s) * 0.02).to(torch.bfloat16)
config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=H, intermediate_size=I, vocab_size=V,
    num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=2048,
    tie_word_embeddings=False, torch_dtype="bfloat16", rms_norm_eps=1e-5)
(folder / "base").mkdir(); (folder / "adapter").mkdir()
(folder / "base/config.json").write_text(json.dumps(config))
part, held, where, parts = {{}}, 0, {{}}, []
def put(name, t):
    global part, held
    if held + t.numel() * 2 > 1e9: flush()
    part[name] = t; held += t.numel() * 2
def flush():
    global part, held
    parts.append(f"part-{{len(parts)}}.safetensors"); save_file(part, folder / "base" / parts[-1], {{"format": "pt"}})
    where.update(dict.fromkeys(part, parts[-1])); part, held = {{}}, 0
put("model.embed_tokens.weight", rand(V, H))
lora = {{}}
for n in range(layers):
    p = f"model.layers.{{n}}."
    for name, out, inner in (
        ("self_attn.q_proj", H, H), ("self_attn.k_proj", K, H), ("self_attn.v_proj", K, H), ("self_attn.o_proj", H, H),
        ("mlp.gate_proj", I, H), ("mlp.up_proj", I, H), ("mlp.down_proj", H, I),
    ):
        put(p + name + ".weight", rand(out, inner))
        lora[f"base_model.model.{{p}}{{name}}.lora_A.weight"] = torch.randn(16, inner) * 0.02
        lora[f"base_model.model.{{p}}{{name}}.lora_B.weight"] = torch.randn(out, 16) * 0.02
    for name in ("input_layernorm", "post_attention_layernorm"):
        put(p + name + ".weight", torch.ones(H, dtype=torch.bfloat16))
put("model.norm.weight", torch.ones(H, dtype=torch.bfloat16))
put("lm_head.weight", rand(V, H)); flush()
(folder / "base/model.safetensors.index.json").write_text(json.dumps({{"metadata": {{}}, "weight_map": where}}))
save_file(lora, folder / "adapter/adapter_model.safetensors", {{"format": "pt"}})
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
(folder / "adapter/adapter_config.json").write_text(json.dumps(dict(
    peft_type="LORA", task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules=targets,
    base_model_name_or_path=str(folder / "base"))))
"""
PEFT = """
import sys, torch
from transformers import AutoModelForCausalLM
from peft import PeftModel
base, adapter, out = sys.argv[1:]
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16), adapter)
model.merge_and_unload().save_pretrained(out, max_shard_size="1GB")
print([l.split()[1] for l in open("/proc/self/status") if l.startswith("VmHWM")][0])
"""


def drop(folder: Path) -> None:
    """Forget the files' pages."""
    for path in folder.rglob("*.safetensors"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def sync(folder: Path) -> None:
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def figure(name: str, **values: float) -> None:
    print(json.dumps({"figure": name, **values}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--folder", help="where to work (default: the temporary folder)")
    args = parser.parse_args()
    layer = 2 * (2 * HIDDEN * HIDDEN + 2 * KV * HIDDEN + 3 * HIDDEN * INNER)
    layers = max(1, round((args.gigabytes * 1e9 - 4 * VOCAB * HIDDEN) / layer))
    work = Path(tempfile.mkdtemp(prefix="ftui-bench-", dir=args.folder))
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "FTUI_HOME": str(work / "home")}
    try:
        make = MAKE.format(sizes=(HIDDEN, INNER, VOCAB, KV))
        subprocess.run([sys.executable, "-c", make, str(work), str(layers)], check=True)
        base = work / "base"
        size = sum(path.stat().st_size for path in base.iterdir())
        shard = max(path.stat().st_size for path in base.iterdir())
        copy = []
        merge = []
        for _round in range(2):
            drop(base)
            begin = time.monotonic()
            subprocess.run(["cp", "-r", str(base), str(work / "copy")], check=True)
            sync(work / "copy")
            copy.append(time.monotonic() - begin)
            shutil.rmtree(work / "copy")
            drop(base)
            begin = time.monotonic()
            argv = [sys.executable, "-P", "-m", "tui", "merge", str(work / "adapter"), "--json", "--skip-logits"]
            done = subprocess.run([*argv, "--out", str(work / "out")], check=True, capture_output=True, env=env)
            merge.append(time.monotonic() - begin)
            ours = json.loads(done.stdout)
            shutil.rmtree(work / "out")
            written = ours["write_seconds"]
            figure("round", merge=round(merge[-1], 1), written=round(written, 1), cp=round(copy[-1], 1), bytes=size)
        peak = ours["peak_rss_bytes"]
        figure("merge_peak_rss", merge=peak, largest_shard=shard, over_shard=peak - shard, base=size)
        figure("merge_to_cp", ratio=round(min(merge) / min(copy), 2))
        for name, words in KINDS.items():
            drop(base)
            begin = time.monotonic()
            done = subprocess.run(
                [*argv, *(word.format(adapter=work / "adapter") for word in words), "--out", str(work / "out")],
                check=True,
                capture_output=True,
                env=env,
            )
            spent, found = time.monotonic() - begin, json.loads(done.stdout)
            shutil.rmtree(work / "out")
            over = found["peak_rss_bytes"] - shard
            figure(name, to_merge=round(spent / min(merge), 2), peak_rss=found["peak_rss_bytes"], over_shard=over)
        drop(base)
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", PEFT, str(base), str(work / "adapter"), str(work / "peft")],
            check=True,
            capture_output=True,
            env=env,
        )
        sync(work / "peft")
        peft = time.monotonic() - begin
        figure("peft_seconds", peft=round(peft, 1), merge=round(min(merge), 1), cp=round(min(copy), 1))
        figure("peft_peak_rss", peft=int(done.stdout.split()[-1]) * 1024)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
