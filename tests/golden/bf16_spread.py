#!/usr/bin/env python3
"""How far the reference moves when it computes in bf16: bf16_spread.py DATA_FOLDER [OUT.json]

Replays the trajectories of tests/golden/data with transformers, PEFT and torch in two bf16 ways: under autocast, and
with everything rounded to bf16 but the masters of what is trained. For each family and variant it writes the largest
relative distance of loss and gradient norm from the fp32 reference over all steps and both ways. The same replay in
fp32 must give the reference again (1e-4), or nothing is written. test_golden.c reads the result in bf16.
"""
import json
import pathlib
import sys

import peft
import torch
import transformers

VARIANTS = ("full", "lora", "rslora", "dora")
FP32_TOLERANCE = 1e-4


def open_model(folder, variant):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="eager")
    if variant != "full":
        model = peft.PeftModel.from_pretrained(model, str(folder / variant), is_trainable=True)
    return model.train()


def loss_of(model, ids, labels, way):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == "autocast"):
        logits = model(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.float()[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def replay(folder, golden, variant, way):
    """[(loss, gradient norm)] of every step. `way` is fp32, autocast or rounded."""
    model = open_model(folder, variant)
    hyper, rows = golden[variant]["hyper"], golden[variant]["rows"]
    masters = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    for master in masters.values():
        master.requires_grad_(True)
    if way == "rounded":
        for parameter in model.parameters():  # not the rotary frequencies: bf16 models keep them in fp32
            parameter.data = parameter.data.bfloat16()
    trained = {n: p for n, p in model.named_parameters() if n in masters}
    optimizer = torch.optim.AdamW(masters.values(), lr=0.0, betas=tuple(hyper["betas"]), eps=hyper["eps"],
                                  weight_decay=hyper["weight_decay"])
    ids, labels = torch.tensor(golden["input_ids"]), torch.tensor(golden["labels"])
    curve = []
    for row in rows:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(masters[name])
                parameter.grad = None
        loss = loss_of(model, ids, labels, way)
        loss.backward()
        for name, parameter in trained.items():
            masters[name].grad = parameter.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(masters.values(), hyper["max_grad_norm"])
        for group in optimizer.param_groups:
            group["lr"] = row["lr"]
        optimizer.step()
        curve.append((loss.item(), norm.item()))
    return curve


def distance(curve, rows):
    return tuple(max(abs(step[i] / row[key] - 1) for step, row in zip(curve, rows))
                 for i, key in enumerate(("loss", "grad_norm")))


def main(data, out):
    torch.set_num_threads(4)  # the models are tiny
    result = {"transformers": transformers.__version__, "peft": peft.__version__, "torch": torch.__version__}
    wrong = 0
    for folder in sorted(p.parent for p in data.glob("*/golden.json")):
        golden = json.loads((folder / "golden.json").read_text())
        for variant in (v for v in VARIANTS if v in golden):
            rows = golden[variant]["rows"]
            exact = max(distance(replay(folder, golden, variant, "fp32"), rows))
            ways = [distance(replay(folder, golden, variant, way), rows) for way in ("autocast", "rounded")]
            loss, norm = (max(way[i] for way in ways) for i in (0, 1))
            result.setdefault(folder.name, {})[variant] = {"loss": loss, "grad_norm": norm}
            wrong += exact > FP32_TOLERANCE
            print(f"{folder.name} {variant}: fp32 replay {exact:.1e} from the reference, "
                  f"bf16 loss {loss:.1e}, gradient norm {norm:.1e}", flush=True)
    if wrong:
        sys.exit(f"{wrong} fp32 replays are not the reference (above {FP32_TOLERANCE}): nothing is written")
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    main(folder, pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else folder / "bf16_spread.json")
