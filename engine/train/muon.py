"""`optim: muon`: torch's Muon for the matrices, AdamW for the rest, as its authors use it.

transformers has no name for it. One optimizer around the two: schedulers, accelerate and checkpoints see nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

NAME = "muon"
# Muon is for what maps one hidden state to another; tables of tokens are matrices in shape only.
TABLES = (torch.nn.Embedding,)


class MuonWithAdamW(torch.optim.Optimizer):
    """Two optimizers that step together.

    Args:
        matrices: parameters of two dimensions.
        others: all else that is trained.
        lr: of both: Muon's updates are scaled to the size of AdamW's.
    """

    def __init__(
        self,
        matrices: Iterable[torch.nn.Parameter],
        others: Iterable[torch.nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        matrices, others = list(matrices), list(others)
        self.parts: list[torch.optim.Optimizer] = []
        if matrices:
            self.parts.append(
                torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
            )
        if others:
            self.parts.append(torch.optim.AdamW(others, lr=lr, weight_decay=0.0, betas=betas, eps=eps))
        super().__init__([*matrices, *others], {"lr": lr})
        self._share()

    def _share(self) -> None:
        """Let the groups be those of the parts: a scheduler's new rate then reaches them."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The states of both."""
        return {type(part).__name__: part.state_dict() for part in self.parts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the states of both."""
        for part in self.parts:
            part.load_state_dict(state_dict[type(part).__name__])
        self._share()


def create(model: torch.nn.Module, args: Any) -> MuonWithAdamW:
    """The optimizer of a model with the trainer's arguments."""
    tables = {id(p) for module in model.modules() if isinstance(module, TABLES) for p in module.parameters()}
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is not None:
        tables |= {id(parameter) for parameter in head.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [p for p in trained if p.ndim == 2 and id(p) not in tables]
    chosen = {id(parameter) for parameter in matrices}
    return MuonWithAdamW(
        matrices,
        [parameter for parameter in trained if id(parameter) not in chosen],
        lr=args.learning_rate,
        weight_decay=args.weight_decay,
        betas=(args.adam_beta1, args.adam_beta2),
        eps=args.adam_epsilon,
    )


class OwnOptimizer:
    """Mixin for a trainer: `own_optimizer` names one that the library does not know."""

    own_optimizer: str | None = None

    def create_optimizer(self, model: Any = None) -> Any:
        """The library's optimizer, or ours."""
        if self.own_optimizer != NAME or self.optimizer is not None:  # type: ignore[has-type]
            return super().create_optimizer(model)  # type: ignore[misc]
        self.optimizer = create(self.model if model is None else model, self.args)  # type: ignore[attr-defined]
        return self.optimizer
