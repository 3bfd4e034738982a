"""gpu_peers.py - what the peers do on this card with the shapes of gpu_bench: python3 gpu_peers.py FOLDER CASE...

FOLDER receives models with random weights, one a shape, made once (Unsloth and the start case load from files); it
must hold a `tokenizer` folder with any tokenizer, because Unsloth will not load a model without one. Prints one JSON
line a case: the case, the peer, tok_s (median of ten steps after three), peak_gib (the caching allocator's). Needs
torch, transformers, peft and, for most cases, unsloth; a peer that is missing is named in the line, not passed over.
"""
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

WARM, TIMED = 3, 10
SHAPES = {
    "llama-8b": ("LlamaConfig", dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                                     num_key_value_heads=8, vocab_size=128256, rope_theta=500000.0, tie_word_embeddings=False)),
    "qwen2.5-0.5b": ("Qwen2Config", dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                                         num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True)),
    "qwen2.5-1.5b": ("Qwen2Config", dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                                         num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True)),
    "smollm2-135m": ("LlamaConfig", dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                                         num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True)),
}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# case: shape, how it is measured, and its numbers
CASES = {
    "8b-lora": ("llama-8b", "unsloth", dict(checkpointing=False, rows=4, length=2048)),
    "8b-lora-ckpt": ("llama-8b", "unsloth", dict(checkpointing="unsloth", rows=4, length=2048)),
    "8b-rows": ("llama-8b", "unsloth-rows", dict(rows=8)),
    "longest-8b-24g": ("llama-8b", "unsloth-fit", dict(cap_gib=24, lengths=[16384, 24576, 32768])),
    "0.5b-lora": ("qwen2.5-0.5b", "compile", dict(mode="lora", rows=8, length=2048)),
    "0.5b-lora-unsloth": ("qwen2.5-0.5b", "unsloth", dict(checkpointing=False, rows=8, length=2048)),
    "0.5b-rows": ("qwen2.5-0.5b", "unsloth-rows", dict(rows=16)),
    "135m-lora": ("smollm2-135m", "liger-compile", dict(mode="lora", rows=8, length=1024)),
    "1.5b-full": ("qwen2.5-1.5b", "compile", dict(mode="full", rows=4, length=2048)),
    "start-1.5b": ("qwen2.5-1.5b", "start", dict()),
}


def config_of(shape):
    import transformers
    kind, numbers = SHAPES[shape]
    config = getattr(transformers, kind)(max_position_embeddings=131072, bos_token_id=1, eos_token_id=2, pad_token_id=2, **numbers)
    config._attn_implementation = "sdpa"
    config.use_cache = False
    return config


def random_model(shape):
    import torch
    from transformers import AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config_of(shape), dtype=torch.bfloat16)


def model_folder(root, shape):
    folder = os.path.join(root, shape)
    if not os.path.exists(os.path.join(folder, "config.json")):
        random_model(shape).save_pretrained(folder, max_shard_size="8GB")
        for name in os.listdir(os.path.join(root, "tokenizer")):
            shutil.copy(os.path.join(root, "tokenizer", name), folder)
    return folder


def trainer(model):
    import torch
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step(ids, labels=None, mask=None):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids if labels is None else labels, attention_mask=mask).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss
    return step


def timed(step, vocab, rows, length):
    import torch
    ids = torch.randint(3, min(vocab, 40000), (rows, length), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(WARM + TIMED):
        torch.cuda.synchronize()
        began = time.time()
        loss = step(ids)
        torch.cuda.synchronize()
        seconds.append(time.time() - began)
    median = statistics.median(seconds[WARM:])
    return dict(tok_s=rows * length / median, step_ms=median * 1e3, loss=loss.item(),
                peak_gib=torch.cuda.max_memory_allocated() / 2**30, first_step_s=seconds[0])


def unsloth_model(folder, length, checkpointing):
    import torch
    from unsloth import FastLanguageModel
    model, _ = FastLanguageModel.from_pretrained(folder, max_seq_length=length, dtype=torch.bfloat16, load_in_4bit=False)
    model = FastLanguageModel.get_peft_model(model, r=16, target_modules=LINEAR, lora_alpha=32, lora_dropout=0, bias="none",
                                             random_state=0, use_gradient_checkpointing=checkpointing)
    FastLanguageModel.for_training(model, use_gradient_checkpointing=bool(checkpointing))
    return model


def unsloth(root, shape, checkpointing, rows, length):
    model = unsloth_model(model_folder(root, shape), length, checkpointing)
    return dict(peer="Unsloth", **timed(trainer(model), SHAPES[shape][1]["vocab_size"], rows, length))


def unsloth_rows(root, shape, rows, batches=24, warm=6):
    """Rows as in instruction data: lengths log-normal, median 270, 32 to 2048, first 60 % prompt, padded to the longest."""
    import torch
    step, draw = trainer(unsloth_model(model_folder(root, shape), 2048, False)), random.Random(0)
    torch.cuda.reset_peak_memory_stats()
    began = real = padded = 0
    for i in range(batches):
        lengths = [min(2048, max(32, int(draw.lognormvariate(5.6, 0.8)))) for _ in range(rows)]
        ids = torch.randint(3, 40000, (rows, max(lengths)), device="cuda")
        column, length = torch.arange(max(lengths), device="cuda")[None], torch.tensor(lengths, device="cuda")[:, None]
        labels = torch.where((column < length) & (column >= (length * 6) // 10), ids, -100)
        if i == warm:
            torch.cuda.synchronize()
            began = time.time()
        step(ids, labels, (column < length).long())
        if i >= warm:
            real += sum(lengths)
            padded += rows * max(lengths)
    torch.cuda.synchronize()
    return dict(peer="Unsloth", tok_s=real / (time.time() - began), padding=1 - real / padded,
                peak_gib=torch.cuda.max_memory_allocated() / 2**30)


def unsloth_fit(root, shape, cap_gib, lengths):
    import torch
    model = unsloth_model(model_folder(root, shape), max(lengths), "unsloth")
    torch.cuda.set_per_process_memory_fraction(cap_gib * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    step, longest = trainer(model), 0
    for length in lengths:
        try:
            for _ in range(2):
                step(torch.randint(3, 40000, (1, length), device="cuda"))
            torch.cuda.synchronize()
            longest = length
        except torch.OutOfMemoryError:
            break
    torch.cuda.set_per_process_memory_fraction(1.0)
    return dict(peer="Unsloth", tokens=longest, tried=lengths)


def compiled(root, shape, mode, rows, length, liger=False):
    import torch
    from peft import LoraConfig, get_peft_model
    if liger:
        from liger_kernel.transformers import apply_liger_kernel_to_llama
        apply_liger_kernel_to_llama()
    model = random_model(shape)
    if mode == "lora":
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=LINEAR, task_type="CAUSAL_LM"))
        for p in model.parameters():
            if p.requires_grad:
                p.data = p.data.to(torch.bfloat16)
    step = trainer(torch.compile(model))
    name = "PEFT + Liger + torch.compile" if liger else "PEFT + torch.compile" if mode == "lora" else "torch.compile"
    return dict(peer=name, **timed(step, SHAPES[shape][1]["vocab_size"], rows, length))


START = """
import sys, torch
from transformers import AutoModelForCausalLM
from peft import LoraConfig, get_peft_model
m = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).cuda()
m = get_peft_model(m, LoraConfig(r=16, target_modules=sys.argv[2].split(",")))
o = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], fused=True)
i = torch.randint(0, 1000, (4, 1024), device="cuda")
m(input_ids=i, labels=i).loss.backward(); o.step(); torch.cuda.synchronize()
"""


def start(root, shape):
    folder = model_folder(root, shape)
    seconds = []
    for _ in range(2):
        began = time.time()
        subprocess.run([sys.executable, "-c", START, folder, ",".join(LINEAR)], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.time() - began)
    return dict(peer="PEFT", seconds=min(seconds))


HOW = {"unsloth": unsloth, "unsloth-rows": unsloth_rows, "unsloth-fit": unsloth_fit, "compile": compiled, "start": start,
       "liger-compile": lambda *a, **k: compiled(*a, liger=True, **k)}


def main(root, names):
    for name in names or CASES:
        shape, how, numbers = CASES[name]
        try:
            result = HOW[how](root, shape, **numbers)
        except Exception as error:  # a peer that fails is a result too
            result = dict(peer=how, error=f"{type(error).__name__}: {error}"[:300])
        print(json.dumps(dict(case=name, **result)), flush=True)
        import torch
        gc.collect()
        torch.cuda.empty_cache()
        torch._dynamo.reset()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
