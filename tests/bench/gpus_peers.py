"""gpus_peers.py - PyTorch on all cards of this machine, with the shapes of tests/gpu/ranks.sh bench: python3
gpus_peers.py [WAY...], of: one ddp fsdp fsdp-kept.

A 1.5B model with random weights, trained in full: f32 masters, bf16 computing, fused AdamW, decoder layers compiled,
4 rows of 2048 tokens a card. one: a single card. ddp: DistributedDataParallel. fsdp: fully_shard (FSDP2) a decoder
layer; fsdp-kept: without resharding after forward. Prints one JSON line a way: tok_s (median of ten steps after
three, all cards), peak_gib (the fullest card's caching allocator). Needs torch and transformers.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from gpu_peers import SHAPES, config_of

WARM, TIMED, ROWS, LENGTH = 3, 10, 4, 2048


def model_of():
    from transformers import AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config_of("qwen2.5-1.5b"), dtype=torch.float32)


def divide(model, way):
    for layer in model.model.layers:
        layer.compile()
    if way == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if way.startswith("fsdp"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in [*model.model.layers, model]:
            fully_shard(part, mp_policy=policy, reshard_after_forward=way == "fsdp")
    return model


def measure(model, way):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(3, SHAPES["qwen2.5-1.5b"][1]["vocab_size"], (ROWS, LENGTH), device="cuda")
    seconds = []
    for _ in range(WARM + TIMED):
        torch.cuda.synchronize()
        began = time.time()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=not way.startswith("fsdp")):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.time() - began)
    return statistics.median(seconds[WARM:])


def rank(place, world, way):
    torch.cuda.set_device(place)
    os.environ.update(RANK=str(place), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT="29519")
    dist.init_process_group("nccl")
    median = measure(divide(model_of(), way), way)
    peak = torch.tensor(torch.cuda.max_memory_allocated() / 2**30, device="cuda")
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    if place == 0:
        result = dict(case="1.5b-full-ranks", peer=f"PyTorch {way}", ranks=world, tok_s=round(world * ROWS * LENGTH / median))
        print(json.dumps(dict(**result, peak_gib=peak.item())), flush=True)
    dist.destroy_process_group()


def main(ways):
    for way in ways or ["one", "ddp", "fsdp", "fsdp-kept"]:
        world = 1 if way == "one" else torch.cuda.device_count()
        try:
            mp.spawn(rank, (world, way), nprocs=world)
        except Exception as error:  # a peer that fails is a result too
            print(json.dumps(dict(case="1.5b-full-ranks", peer=f"PyTorch {way}", error=str(error)[-300:])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
