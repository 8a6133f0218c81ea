"""Train a small CNN on handwritten digits with DistributedDataParallel, on any number of workers.

Needs torch and nothing else. torchrun (so ``torchx run dist.ddp``) tells each worker who it is through ``RANK`` and
``WORLD_SIZE``. With ``--checkpoint`` the training goes on where it stopped, also with another number of workers; a job
that is about to be ended writes one more (``should_checkpoint``).
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from data import Digits, load
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

try:
    from torchx.distributed import progress, should_checkpoint
except ImportError:  # torch is enough; nobody asks for a checkpoint then

    def should_checkpoint() -> bool:
        return False

    def progress() -> None:
        pass


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    say(f"worker {rank} of {world} is up: node {os.environ.get('GROUP_RANK', '0')}, process {os.getpid()}")
    try:
        train(args, load(), rank, world)
    finally:
        dist.destroy_process_group()


def train(args: argparse.Namespace, digits: Digits, rank: int, world: int) -> None:
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(cnn())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    done = resume(args.checkpoint, model, optimizer)
    if rank == 0:
        train_size, test_size = len(digits.train_labels), len(digits.test_labels)
        workers = f"{world} worker{'s' if world > 1 else ''}"
        say(f"{train_size} images to train on, {test_size} held out; {workers}; from epoch {done + 1}")

    dataset = TensorDataset(digits.train_images, digits.train_labels)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, world, rank, seed=args.seed)
    # The batch of all workers together stays the same, however many they are.
    loader = DataLoader(dataset, batch_size=max(1, args.batch_size // world), sampler=sampler)
    for epoch in range(done + 1, args.epochs + 1):
        started = time.monotonic()
        sampler.set_epoch(epoch)
        set_lr(optimizer, args.lr * (1 - (epoch - 1) / args.epochs))
        loss = one_epoch(model, optimizer, loader)
        asked = should_checkpoint()  # by a time limit or a preemption that is near; on all ranks, once a step
        if rank == 0:
            reached = accuracy(model.module, digits.test_images, digits.test_labels)
            if asked or epoch % args.save_every == 0 or epoch == args.epochs:
                save(args.checkpoint, epoch, model, optimizer)
                progress()  # what was trained so far is not lost any more
            took = time.monotonic() - started
            say(f"epoch {epoch:2d}/{args.epochs}  loss {loss:.4f}  test accuracy {reached:.4f}  {took:.2f} s")
    dist.barrier()
    if rank == 0:
        say(f"final test accuracy: {accuracy(model.module, digits.test_images, digits.test_labels):.4f}")


def cnn() -> nn.Module:
    """8x8 grey images, shape (N, 1, 8, 8), to 10 scores."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def one_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    """The mean loss over all workers."""
    model.train()
    total = torch.zeros(1)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.05)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / len(loader) / dist.get_world_size()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    return (model(images).argmax(1) == labels).float().mean().item()


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def resume(path: str | None, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint if there is one; the number of epochs that are done."""
    if not path or not os.path.exists(path):
        return 0
    state = torch.load(path, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def save(path: str | None, epoch: int, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Write aside and rename: a worker that is killed here leaves the last good checkpoint."""
    if not path:
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    aside = f"{path}.{os.getpid()}"
    torch.save({"epoch": epoch, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, aside)
    os.replace(aside, path)


def say(text: str) -> None:
    """One write for the whole line: torchrun runs workers unbuffered, and they share the node's output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", help="file to resume from, and to save to")
    parser.add_argument("--save-every", type=int, default=1, help="epochs between two checkpoints")
    return parser.parse_args()


if __name__ == "__main__":
    main()
    # A worker whose work is done must not fail in the interpreter's teardown, where a thread of gloo that is still
    # there now and then ends it with SIGABRT ("terminate called without an active exception", torch 2.13 on CPU).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
