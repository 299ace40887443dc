"""A PRU in a LightningModule: nothing differs from an nn.LSTM.

    pip install torch-pru lightning
    python examples/lightning_tagger.py

The task: say for every step whether the sum of the numbers so far is positive.
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torch_pru import PRU


class Tagger(lightning.LightningModule):
    def __init__(self, features: int = 16, units: int = 64) -> None:
        super().__init__()
        self.rnn = PRU(features, units, batch_first=True)  # was: nn.LSTM(features, units, batch_first=True)
        self.head = nn.Linear(units, 1)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(x)
        return self.head(y).squeeze(-1)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        x, target = batch
        return nn.functional.binary_cross_entropy_with_logits(self(x), target)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def sums(sequences: int = 512, steps: int = 20, features: int = 16) -> TensorDataset:
    x = torch.randn(sequences, steps, features)
    return TensorDataset(x, (x.sum(-1).cumsum(1) > 0).float())


def main(epochs: int = 8) -> float:
    """Train, and return the accuracy on new sequences."""
    lightning.seed_everything(0)
    model = Tagger()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, DataLoader(sums(), batch_size=32, shuffle=True))
    x, target = sums(128).tensors
    with torch.no_grad():
        return ((model(x) > 0).float() == target).float().mean().item()


if __name__ == "__main__":
    print(f"accuracy {main():.2f}")
