"""A small GPT over characters, trained DiLoCo's way: AdamW on every worker, and a round only every so many steps.

    torchrun --nproc-per-node 4 examples/train_gpt.py --data shakespeare.txt
    torchrun --nproc-per-node 4 examples/train_gpt.py --data shakespeare.txt --resume checkpoints    goes on after an interruption
    python examples/train_gpt.py                                                                     one process alone

What is tacit's stands in the lines marked with numbers; all the rest is the script one would write for a single
process. DiLoCo is Douillard et al. 2023, arXiv 2311.08105: the mean of the workers' models is not taken over as it is,
but through an outer optimizer, SGD with Nesterov momentum, whose gradient is how far they have come since the last
round.
"""

import argparse
import contextlib
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import tacit

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("--data", type=Path, help="a text file; without it the source of Python's own argparse")
arguments.add_argument("--steps", type=int, default=600, help="optimizer steps per worker")
arguments.add_argument("--period", type=int, default=20, help="local steps between two rounds")
arguments.add_argument("--batch", type=int, default=16, help="windows in a micro-batch")
arguments.add_argument("--accumulate", type=int, default=2, help="micro-batches in a step")
arguments.add_argument("--context", type=int, default=64, help="characters the model looks back")
arguments.add_argument("--width", type=int, default=64)
arguments.add_argument("--layers", type=int, default=2)
arguments.add_argument("--lr", type=float, default=3e-3)
arguments.add_argument("--clip", type=float, default=1.0, help="largest norm of a worker's own gradient")
arguments.add_argument("--bf16", action="store_true", help="compute in bfloat16 where that is safe (autocast)")
arguments.add_argument("--evaluate-every", type=int, default=100)
arguments.add_argument("--checkpoint-every", type=int, default=100)
arguments.add_argument("--checkpoints", type=Path, help="a folder to write checkpoints to; all machines must see it")
arguments.add_argument("--resume", type=Path, help="go on from the checkpoint in this folder, and write new ones there")
options = arguments.parse_args()
folder = options.resume or options.checkpoints


class Block(nn.Module):
    """Causal attention, then a two-layer perceptron, each added to the stream it reads."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: Tensor) -> Tensor:
        parts = self.mix(self.norm_1(stream)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        stream = stream + self.out(attended.transpose(1, 2).flatten(2))
        return stream + self.perceptron(self.norm_2(stream))


class GPT(nn.Module):
    """Embeddings, blocks, and a head that shares its weights with the embedding (tied weights travel once)."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, options.width)
        self.position = nn.Parameter(0.02 * torch.randn(options.context, options.width))
        self.blocks = nn.Sequential(*(Block(options.width) for _ in range(options.layers)))
        self.norm, self.head = nn.LayerNorm(options.width), nn.Linear(options.width, characters, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.token(codes) + self.position[: codes.shape[1]])))


# Data. Every worker trains on its own stretch of the text; the last tenth is nobody's and validates.
text = (options.data or Path(argparse.__file__)).read_text(encoding="utf-8")
alphabet = sorted(set(text))
codes = torch.tensor([alphabet.index(character) for character in text])
training, validation = codes[: len(codes) * 9 // 10], codes[len(codes) * 9 // 10 :]
share = len(training) // tacit.size()
mine = training[tacit.rank() * share : (tacit.rank() + 1) * share]

# Which device: a GPU for each process of this machine, if there are any.
local = int(os.environ.get("LOCAL_RANK", "0"))
device = torch.device("cuda", local % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
else:
    torch.set_num_threads(1)  # as many processes as cores already

torch.manual_seed(tacit.rank())  # every worker draws windows of its own; rank 0's initial model goes to all at attach
model = GPT(len(alphabet)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.1)

strategy = tacit.LocalSGD(period=tacit.Every(options.period), outer=tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True))
session = tacit.attach(  # 1: from here on optimizer.step() is also where workers talk
    model,
    optimizer,
    strategy,
    steps=options.steps,
    optimizer_state="keep",  # DiLoCo: every worker's Adam moments stay its own
    rescue_folder=folder,  # the remaining workers write a checkpoint here if one is lost
)


def windows(source: Tensor) -> tuple[Tensor, Tensor]:
    """Draw windows of ``source``, and for each character the one after it."""
    starts = torch.randint(len(source) - options.context - 1, (options.batch,))
    pieces = torch.stack([source[start : start + options.context + 1] for start in starts.tolist()]).to(device)
    return pieces[:, :-1], pieces[:, 1:]


def loss_on(x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of the next characters, in nats."""
    # bfloat16 has the range of float32, so no GradScaler is needed; with float16 use one as ever:
    # scaler.step(optimizer)
    with torch.autocast(device.type, torch.bfloat16) if options.bf16 else contextlib.nullcontext():
        logits = model(x)
    return functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())


@torch.no_grad()
def validate() -> float:
    """Return the loss on windows spread evenly over the validation text."""
    starts = torch.linspace(0, len(validation) - options.context - 1, 16).long()
    pieces = torch.stack([validation[start : start + options.context + 1] for start in starts.tolist()]).to(device)
    return float(loss_on(pieces[:, :-1], pieces[:, 1:]))


# A checkpoint carries model, optimizer, the strategy's state and every process's random numbers: the windows that
# follow are those that would have followed without a break.
if options.resume is not None:
    session.resume(options.resume)  # 2

while session.step < options.steps:
    for group in optimizer.param_groups:  # a warm-up that follows from session.step needs no place in the checkpoint
        group["lr"] = options.lr * min(1.0, (session.step + 1) / 20)
    optimizer.zero_grad()
    for _ in range(options.accumulate):  # micro-batches: their gradients add up, and only optimizer.step() is a step
        loss = loss_on(*windows(mine))
        (loss / options.accumulate).backward()
        session.observe(loss)  # 3, optional: for the loss curve, and for periods that look at the loss
    nn.utils.clip_grad_norm_(
        model.parameters(), options.clip
    )  # clips this worker's own gradient, before anything travels
    optimizer.step()
    if session.step % options.evaluate_every == 0:
        # What would be reported if the run ended now. All workers must enter; the clock of the run stands still
        # meanwhile.
        with session.reported_model():
            if tacit.rank() == 0:
                measured = validate()
                session.log(loss=measured)
                print(f"step {session.step}: validation loss {measured:.3f} after {session.now_s():.1f} s", flush=True)
    if folder is not None and session.step % options.checkpoint_every == 0:
        session.checkpoint(folder)

run = session.close()  # 4: the last round; all workers now hold the reported model
if tacit.rank() == 0:
    summary = run.summary()
    print(
        f"{tacit.size()} workers, {session.step} steps, {summary['rounds']} rounds, {summary['bytes_sent'] / 1e6:.1f} MB sent: "
        f"validation loss {validate():.3f}"
    )
