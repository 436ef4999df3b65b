"""ε-SupInfoNCE + FairKL in a plain PyTorch loop, on data with a planted shortcut. Runs in seconds on a CPU.

    python examples/own_loop.py

Each sample has a weak core feature (the label plus noise) and a strong shortcut (equal to the label for 98 % of the
training samples, random at test time). A linear probe on the learned features shows which of the two was kept.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairmargin import losses

CLASSES, DIM = 4, 8


def sample(n: int, agreement: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(features, labels, bias labels)."""
    y = torch.randint(CLASSES, (n,), generator=generator)
    b = torch.where(
        torch.rand(n, generator=generator) < agreement,
        y,
        torch.randint(CLASSES, (n,), generator=generator),
    )
    core = torch.zeros(n, DIM)
    core[:, :CLASSES] = F.one_hot(y, CLASSES)
    shortcut = torch.zeros(n, DIM)
    shortcut[:, :CLASSES] = F.one_hot(b, CLASSES)
    noise = torch.randn(n, 2 * DIM, generator=generator)
    return torch.cat([core + 0.35 * noise[:, :DIM], 3 * shortcut + 0.1 * noise[:, DIM:]], 1), y, b


def train(name: str, x: Tensor, y: Tensor, b: Tensor, steps: int = 600) -> nn.Module:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(2 * DIM, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(x), (256,))
        z = encoder(x[batch])
        loss = losses.eps_supinfonce(z, y[batch], epsilon=0.25)
        if name == "ε-SupInfoNCE + FairKL":
            loss = 0.3 * loss + losses.fairkl(
                z, y[batch], b[batch], divergence="moments", negatives=True
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return encoder


def probe(
    encoder: nn.Module,
    train_set: tuple[Tensor, Tensor, Tensor],
    test_set: tuple[Tensor, Tensor, Tensor],
) -> float:
    """Test accuracy of a linear classifier on the frozen, normalized features."""
    with torch.no_grad():
        z, z_test = (F.normalize(encoder(data[0]), dim=1) for data in (train_set, test_set))
    classifier = nn.Linear(16, CLASSES)
    optimizer = torch.optim.LBFGS(classifier.parameters(), max_iter=200)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (
            F.cross_entropy(classifier(z), train_set[1]) + 1e-4 * classifier.weight.square().sum()
        )
        loss.backward()
        return loss

    optimizer.step(closure)
    return (classifier(z_test).argmax(1) == test_set[1]).float().mean().item()


if __name__ == "__main__":
    g = torch.Generator().manual_seed(0)
    biased, unbiased = sample(8000, 0.975, g), sample(4000, 0.0, g)
    for name in ("ε-SupInfoNCE", "ε-SupInfoNCE + FairKL"):
        accuracy = probe(train(name, *biased), biased, unbiased)
        print(f"{name:22}  accuracy without the shortcut: {accuracy:.1%}")
