#!/usr/bin/env python3
"""A real model against reference numbers made with transformers and PEFT; one line a check.

    real.py REFERENCES MODEL [--device cpu|cuda:N] [--precision fp32|tf32|bf16|fp16] [--tokens N]

REFERENCES holds golden.json, tokens.json, first_mate.jsonl and adapter_start/; MODEL is the same model as a Hugging
Face folder. The programs are taken from the build folder (PLIMSOLL_BUILD, else build/ of the tree).

fp32: token ids and masks exactly, the loss of every token 1e-4, the five likeliest words at every 37th position, the
25-step LoRA curve (loss and gradient norm) 1e-3 relative, greedy answers before and after it id for id. Narrower: the
mean loss and the loss of every step 1 % relative (the gradient norm, which is no mean, 10 %), and the change of voice:
no answer says "Fair winds." before training, every answer ends with it after.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", ROOT / "build"))
FAIR_WINDS = [11285, 11113]
FAREWELL = [*FAIR_WINDS, 30, 2]  # " Fair winds.<|im_end|>"
SPOKEN_MAX = 48  # the longest reference answer


class Checks:
    def __init__(self, title):
        self.title, self.passed, self.failed = title, 0, 0

    def run(self, name, check):
        """check() returns what was measured, or raises."""
        try:
            found = check()
            self.passed += 1
            print(f"ok {self.title}: {name}: {found}", flush=True)
        except (AssertionError, KeyError, OSError, ValueError, StopIteration) as problem:
            self.failed += 1
            print(f"FAILED {self.title}: {name}: {type(problem).__name__} {problem}", flush=True)


def require(condition, text):
    if not condition:
        raise AssertionError(text)


def within(what, off, bound):
    require(off <= bound, f"{what} off by {off:.3e}, at most {bound:.0e} is right")
    return f"{what} {off:.2e} of {bound:.0e}"


class Real:
    def __init__(self, options):
        self.options = options
        self.references, self.model = options.references.resolve(), options.model.resolve()
        self.exact = options.precision == "fp32"
        self.golden = json.loads((self.references / "golden.json").read_text())

    def program(self, path, *args):
        end = subprocess.run([BUILD / path, *map(str, args)], capture_output=True, text=True, check=False)
        require(end.returncode == 0, f"{path} ended with {end.returncode}: {end.stderr.strip()[-600:]}")
        return end.stdout

    def tool(self, *args):
        place = ("--device", self.options.device, "--precision", self.options.precision)
        return self.program("tests/real_tool", *place, *args)

    def token_ids(self):
        lines = self.tool("tokens", self.model, self.references / "first_mate.jsonl").splitlines()
        wanted = json.loads((self.references / "tokens.json").read_text())
        require(len(lines) == len(wanted), f"{len(lines)} rows, {len(wanted)} are right")
        for number, (line, row) in enumerate(zip(lines, wanted), 1):
            ours = json.loads(line)
            require(ours["ids"] == row["ids"], f"ids of row {number}")
            require(ours["trained"] == [int(t) for t in row["trained"]], f"mask of row {number}")
        return f"{len(wanted)} rows exact"

    def losses(self):
        ours = json.loads(self.tool("losses", self.model, self.references / "golden.json"))
        wanted = self.golden["nll"]
        require(len(ours["nll"]) == len(wanted), f"{len(ours['nll'])} losses, {len(wanted)} are right")
        worst = max(abs(a - b) for a, b in zip(ours["nll"], wanted))
        mean = abs(sum(ours["nll"]) / sum(wanted) - 1)
        if not self.exact:
            return within("mean", mean, 1e-2) + f", largest difference of a token {worst:.2e}"
        for item in ours["top5_ids"]:
            position = item["position"]
            require(item["ids"] == self.golden["top5_ids"][position], f"likeliest words at {position}")
        return within("every token", worst, 1e-4) + f", {len(ours['top5_ids'])} times the likeliest five exact"

    def greedy(self, answers, adapter):
        """Our ids of every answer."""
        extra = [adapter] if adapter else []
        return [json.loads(self.tool("greedy", self.model, json.dumps(a["prompt_ids"]), self.options.tokens,
                                     *extra))["new_ids"] for a in answers]

    def answers(self, key, adapter):
        answers = self.golden[key]
        spoken = self.greedy(answers, adapter)
        same = 0
        for number, (ours, answer) in enumerate(zip(spoken, answers), 1):
            wanted = answer["new_ids"][:self.options.tokens]
            same += ours == wanted
            if self.exact:
                require(ours == wanted, f"answer {number}: {ours}, wanted {wanted}")
            elif adapter:
                require(ours[-len(FAREWELL):] == FAREWELL, f"answer {number} ends without Fair winds: {ours}")
            else:
                pairs = [list(pair) for pair in zip(ours, ours[1:])]
                require(FAIR_WINDS not in pairs, f"answer {number} says Fair winds before training: {ours}")
        return f"{same} of {len(answers)} answers id for id" + ("" if self.exact else ", the voice as it must be")

    def spec(self):
        lora = self.golden["lora"]
        flags = {} if self.exact else {self.options.precision: True}
        return {
            "model": str(self.model), "adapter_name_or_path": str(self.references / "adapter_start"),
            "device": self.options.device, **flags,
            "data": {"train_files": [str(self.references / "first_mate.jsonl")], "shuffle": False,
                     "max_length": 512},
            "per_device_train_batch_size": lora["batch"], "learning_rate": lora["learning_rate"],
            "lr_scheduler_type": lora["schedule"], "warmup_steps": lora["warmup_steps"],
            "weight_decay": lora["weight_decay"], "max_grad_norm": lora["max_grad_norm"],
            "max_steps": lora["steps"],
        }

    def train(self, run):
        run.mkdir()
        (run / "spec.json").write_text(json.dumps(self.spec()))
        self.program("plimsoll-engine", "run", run)
        self.events = [json.loads(line) for line in (run / "events.0.jsonl").read_text().splitlines()]
        steps = [event for event in self.events if event["kind"] == "step"]
        rows = self.golden["lora"]["rows"]
        require(len(steps) == len(rows), f"{len(steps)} steps, {len(rows)} are right")
        for step, row in zip(steps, rows):
            require(step["trained_tokens"] == row["trained_tokens"], f"trained tokens of step {row['step']}")
        off = {key: max(abs(s[key] / r[key] - 1) for s, r in zip(steps, rows)) for key in ("loss", "grad_norm")}
        bounds = (1e-3, 1e-3) if self.exact else (1e-2, 1e-1)
        return (within("loss", off["loss"], bounds[0]) + ", "
                + within("gradient norm", off["grad_norm"], bounds[1]))

    def memory(self):
        planned = next(e for e in self.events if e["kind"] == "start")["planned_peak_bytes"]
        measured = [e for e in self.events if e["kind"] == "memory"][-1]["peak"]
        require(planned == measured, f"planned {planned} bytes, measured {measured}")
        return f"planned = measured = {measured} bytes"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("references", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16", "fp16"))
    parser.add_argument("--tokens", type=int, default=SPOKEN_MAX, help="of each answer")
    options = parser.parse_args()
    real, checks = Real(options), Checks(f"{options.device} {options.precision}")
    with tempfile.TemporaryDirectory(prefix="plimsoll-real-") as scratch:
        os.environ["PLIMSOLL_CACHE_DIR"] = str(pathlib.Path(scratch) / "cache")
        run = pathlib.Path(scratch) / "run"
        checks.run("token ids and masks of the chat rows", real.token_ids)
        checks.run("losses of the text", real.losses)
        checks.run("greedy answers before training", lambda: real.answers("greedy_before", None))
        checks.run("the 25-step LoRA curve", lambda: real.train(run))
        checks.run("peak of memory", real.memory)
        checks.run("greedy answers after training", lambda: real.answers("greedy_after", run / "adapter"))
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed or not checks.passed else 0


if __name__ == "__main__":
    sys.exit(main())
