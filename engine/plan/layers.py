"""What one decoder layer saves and needs, operation by operation, as each training stack runs it.

The sizes follow the code of transformers, PEFT, bitsandbytes, FlashAttention and LitGPT (docs/planner.md names the
places); `tape` counts them. All sizes are bytes for `tokens` tokens.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from engine.plan.shapes import Block, Linear, Shape
from engine.plan.tape import Replay, Tape, Tensor

BF16, FP32 = 2, 4
PYTHON_GELU = ("phi", "gpt2")  # transformers writes their `gelu_new` out in single operations
# Bytes a bf16 value that unfused code moves in forward, kernel by kernel (docs/planner.md)
RMS_NORM = 36  # to fp32, square, mean, times the root, back to bf16, times the weight
ROTATE = 20  # negate a half, join the halves, two products, a sum
UNPACK = 1.25  # of the unpacked size: the 4-bit weights are read as well


@dataclass(frozen=True)
class Numerics:
    """How a layer is computed: everything that changes what it saves."""

    tokens: int
    sequence: int  # tokens that attend to each other: matters where the scores are materialised
    trains_base: bool
    checkpointed: bool = True
    weight_bytes: int = BF16  # of the base's parameters (4: fp32 under autocast)
    grad_bytes: int = BF16
    lora: frozenset[str] = frozenset()
    rank: int = 0
    lora_bytes: int = FP32
    dora: bool = False
    dropout: bool = True
    autocast: bool = True
    quant: str | None = None
    residual: int = BF16  # bytes of the residual stream (4: k-bit preparation, fp32 weights)
    attention: str = "flash"
    repeat_kv: bool = False  # keys and values copied to all heads
    fused_norm: bool = False
    fused_mlp: bool = False
    fused_lora: bool = False
    old_bnb: bool = False  # bitsandbytes 0.41: keeps each 4-bit layer's input, dequantises to fp16 and casts that
    quant_experts: bool = False
    litgpt: bool = False


@functools.lru_cache(maxsize=256)
def layer(shape: Shape, block: Block, numerics: Numerics) -> Replay:
    """Replay one layer of a kind."""
    builder = _LitGPT if numerics.litgpt else _Layer
    return builder(shape, block, numerics).replay()


class _Layer:
    """A layer of transformers, with PEFT and bitsandbytes around its matrices."""

    def __init__(self, shape: Shape, block: Block, numerics: Numerics) -> None:
        self.shape = shape
        self.block = block
        self.n = numerics
        self.t = numerics.tokens
        self.tape = Tape()

    def replay(self) -> Replay:
        s, d = self.shape, self.shape.hidden
        size = float(self.n.residual * d * self.t)
        x = self.tape.source(0.0 if self.n.checkpointed else size, size)
        normed = self.norm(x, d)
        out = self.attention(normed)
        if s.post_norms:
            out = self.norm(out, d)
        if s.parallel:
            mlp = self.mlp(normed)
            self.add(x, self.add(out, mlp))
        else:
            x = self.add(x, out)
            mlp = self.mlp(self.norm(x, d))
            if s.post_norms:
                mlp = self.norm(mlp, d)
            self.add(x, mlp)
        return self.tape.replay()

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self.tape.op(self.n.residual * self.shape.hidden * self.t, (x, y), alias=True)

    # --- norms

    def norm(self, x: Tensor, width: int, rows: int = 1, wide: bool | None = None) -> Tensor:
        """A norm over `width` values, `rows` of them a token; `x` is in the residual stream's type."""
        n, t = self.n, self.t
        numbers = width * rows * t
        fp32 = n.residual == FP32 if wide is None else wide
        out = (FP32 if fp32 else BF16) * numbers
        scale = FP32 * rows * t
        if not self.shape.rms_norm:
            # autocast computes layer_norm in fp32: the cast input is kept, the output is fp32
            saved: list[Tensor | float] = [x if fp32 or not n.autocast else FP32 * numbers, 2 * scale]
            return self.tape.op(
                FP32 * numbers if n.autocast else out, (x,), saved, weight_grad=self.norm_grad(2 * width),
                moved=(BF16 + 3 * FP32) * numbers if n.autocast else None,
            )  # fmt: skip
        if n.fused_norm:
            return self.tape.op(out, (x,), (x, scale), weight_grad=self.norm_grad(width))
        saved = [x if fp32 else FP32 * numbers, scale]
        if n.trains_base:
            gemma = self.shape.family.startswith("gemma")
            saved.append((FP32 if gemma or fp32 else BF16) * numbers)
        return self.tape.op(
            out, (x,), saved, forward=FP32 * numbers, backward=2 * FP32 * numbers, weight_grad=self.norm_grad(width),
            moved=RMS_NORM * numbers,
        )  # fmt: skip

    def norm_grad(self, width: int) -> float:
        return width * self.n.grad_bytes if self.n.trains_base else 0.0

    # --- matrices

    def linear(self, name: str, x: Tensor, wide: bool = False) -> Tensor:
        """A matrix, with its adapter where it has one; `wide`: the input is fp32 and so is a 4-bit layer's output."""
        n, t, lin = self.n, self.t, self.block.by_name[name]
        out = (FP32 if wide and n.quant else BF16) * lin.n_out * t
        copy = BF16 * lin.n_in * t
        if n.trains_base:
            saved: list[Tensor | float] = [copy if wide or n.weight_bytes == FP32 else x]
            if n.weight_bytes == FP32:
                saved.append(BF16 * lin.weights)
            casts = (FP32 + BF16) * lin.weights if n.weight_bytes == FP32 else 0.0
            casts += x.size + copy if wide else 0.0
            return self.tape.op(out, (x,), saved, weight_grad=lin.parameters * n.grad_bytes, moved=casts)
        if n.quant == "int8" and not lin.fused:
            base = self.int8(lin, x, out)
        else:
            dequantised = 0.0 if lin.fused else self.dequantised(lin.weights)
            kept = [copy if wide else x] if n.old_bnb and n.quant else []
            moved = UNPACK * dequantised + (x.size + copy if wide else 0.0)
            base = self.tape.op(out, (x,), kept, forward=dequantised, backward=dequantised, moved=moved)
        return self.adapter(name, x, base, wide) if name in n.lora else base

    def int8(self, lin: Linear, x: Tensor, out: float) -> Tensor:
        """bitsandbytes' LLM.int8: the input is cast to fp16 and to 8 bits, and kept although the weights are frozen.

        The product is summed in 32 bits; backward unpacks the weights.
        """
        inputs, sums = 3.0 * lin.n_in * self.t, 4.0 * lin.n_out * self.t
        unpacked = float(BF16 * lin.weights)
        return self.tape.op(out, (x,), (x,), forward=inputs + sums, backward=unpacked, moved=2 * (inputs + sums))

    def dequantised(self, weights: float) -> float:
        """A 4-bit matrix is unpacked for each product."""
        return 0.0 if not self.n.quant else (2 if self.n.old_bnb else 1) * BF16 * weights

    def adapter(self, name: str, x: Tensor, base: Tensor, wide: bool) -> Tensor:
        """PEFT's `result + lora_B(lora_A(dropout(x))) * scaling`."""
        n, t, lin = self.n, self.t, self.block.by_name[name]
        copy = BF16 * lin.n_in * t
        weights = n.rank * (lin.n_in + lin.n_out) * n.lora_bytes
        if n.fused_lora:
            return self.tape.op(
                base.size, (x, base), (x, copy) if n.dropout else (x,), weight_grad=weights, backward=copy
            )
        # Outside bitsandbytes PEFT casts the input to the adapter's type first; autocast then makes a bf16 copy that
        # no other matrix shares. Dropout makes a tensor of its own as well, and keeps its mask (one byte a value).
        casts = n.lora_bytes == FP32 and not n.quant
        own = n.dropout or casts or wide
        saved: list[Tensor | float] = [copy if own else x]
        if n.dropout:
            saved.append(lin.n_in * t)
        # gradients on their way back through the casts and the dropout, beside the one that arrives
        passing = (8 if n.dropout else 6) if casts else 4 if wide else 2 if n.dropout else 0
        backward = float(passing * lin.n_in * t)
        # to fp32 and back, the dropout between them, and the reading of a product that is too narrow for the cores
        moved = (BF16 + (12 if casts else 0) + ((2 * FP32 + 1) if casts else 5) * n.dropout) * float(lin.n_in * t)
        down = self.tape.op(BF16 * n.rank * t, (x,), saved, backward=backward, weight_grad=weights, moved=moved)
        up = self.tape.op(BF16 * lin.n_out * t, (down,), (down,))
        scaled = self.tape.op(BF16 * lin.n_out * t, (up,))
        out = self.tape.op(base.size, (base, scaled), alias=True)
        if n.dora:
            # the column norm of W + BA, and the two products that the magnitude scales; BA is made by sending a unit
            # matrix through the adapter, and W, BA and their sum are in the adapter's type
            copies, unit = (18, 6) if n.lora_bytes == FP32 and not n.quant else (6, 2)
            norm = max(unit * lin.n_in**2 + BF16 * lin.weights, BF16 * lin.n_in**2 + copies * lin.weights)
            out = self.tape.op(base.size, (out,), (out, base), backward=BF16 * lin.weights, forward=norm)
        return out

    # --- attention

    def attention(self, x: Tensor) -> Tensor:
        q, k, v, holder = self.projections(x)
        out = self.attend(q, k, v, holder)
        return self.linear("o_proj", out)

    @property
    def wide(self) -> bool:
        """Whether norms hand fp32 on."""
        return self.n.residual == FP32 or (not self.shape.rms_norm and self.n.autocast)

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values after rotation; the last one is the fused projection that the values lie in."""
        s, t, wide = self.shape, self.t, self.wide
        names = self.block.by_name
        q_bytes, k_bytes = BF16 * s.q * t, BF16 * s.k * t
        if "qkv_proj" in names or "c_attn" in names:
            qkv = self.linear("qkv_proj" if "qkv_proj" in names else "c_attn", x, wide)
            return self.rotate(qkv, q_bytes), self.rotate(qkv, k_bytes), qkv, qkv
        if "kv_b_proj" in names:
            return (*self.latent(x), None)
        q, k = self.linear("q_proj", x, wide), self.linear("k_proj", x, wide)
        value = self.linear("v_proj", x, wide)
        if s.qk_norm:
            q = self.norm(q, s.head_dim, s.heads, wide=False)
            k = self.norm(k, s.head_dim, s.kv_heads, wide=False)
        return self.rotate(q, q_bytes), self.rotate(k, k_bytes), self.narrow(value, k_bytes), None

    def latent(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """DeepSeek's attention: queries and keys/values go through a narrow latent."""
        s, t, names = self.shape, self.t, self.block.by_name
        if "q_a_proj" in names:
            low = self.norm(self.linear("q_a_proj", x), names["q_a_proj"].n_out, wide=False)
            q = self.linear("q_b_proj", low)
        else:
            q = self.linear("q_proj", x)
        narrow = self.norm(self.linear("kv_a_proj_with_mqa", x), names["kv_b_proj"].n_in, wide=False)
        kv = self.linear("kv_b_proj", narrow)
        keys = self.tape.op(BF16 * s.q * t, (kv,))  # rotated and plain parts joined: new tensors
        return self.rotate(q, BF16 * s.q * t), keys, kv

    def rotate(self, x: Tensor, size: float) -> Tensor:
        """Rotary embedding makes a new tensor and saves only the shared tables."""
        return self.tape.op(size, (x,), backward=size, moved=2 * size if self.n.fused_norm else ROTATE / BF16 * size)

    def narrow(self, x: Tensor, size: float) -> Tensor:
        """The values as attention takes them: cast where a 4-bit layer hands fp32 on."""
        return self.tape.op(size, (x,)) if x.size > size else x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, holder: Tensor | None) -> Tensor:
        s, n, t = self.shape, self.n, self.t
        q_bytes = BF16 * s.q * t
        if n.repeat_kv and s.heads != s.kv_heads:
            k, v = self.tape.op(q_bytes, (k,), backward=0.0), self.tape.op(q_bytes, (v,))
        out_bytes = BF16 * s.heads * s.v_head_dim * t
        log_sum = FP32 * s.heads * t
        if n.attention == "eager":
            scores = s.heads * float(t) * n.sequence
            raw = self.tape.op(BF16 * scores, (q, k), (q, k), backward=0.0)
            if s.softcap:  # Gemma 2: the hyperbolic tangent keeps its result
                raw = self.tape.op(BF16 * scores, (raw,), forward=BF16 * scores, keep=True)
            soft = self.tape.op(FP32 * scores, (raw,), forward=FP32 * scores, keep=True)
            probs = self.tape.op(BF16 * scores, (soft,))
            return self.tape.op(out_bytes, (probs, v), (probs, v))
        # FlashAttention's backward sums dQ in fp32, and dK and dV of shared heads at full width
        backward = FP32 * s.q * t + log_sum
        if s.heads != s.kv_heads and not n.repeat_kv:
            backward += 2 * q_bytes
        return self.tape.op(out_bytes, (q, k, v), (q, k, v, log_sum), backward=backward, keep=True, moved=0.0)

    # --- MLP

    def mlp(self, x: Tensor) -> Tensor:
        s, t, names = self.shape, self.t, self.block.by_name
        if "router" in names:
            return self.mixture(x)
        wide = self.wide
        if "gate_up_proj" in names:
            both = self.linear("gate_up_proj", x, wide)
            return self.linear("down_proj", self.gate(both, both, s.ffn * t), wide)
        if s.gated:
            gate, up = self.linear("gate_proj", x, wide), self.linear("up_proj", x, wide)
            numbers = self.block.by_name["gate_proj"].n_out * t
            return self.linear("down_proj", self.gate(gate, up, numbers), wide)
        up = self.linear("up_proj", x, wide)
        saved: list[Tensor | float] = [up]
        if s.family in PYTHON_GELU and not self.n.litgpt:
            saved += [up.size] * 3  # half of x, the tangent, and one plus it
        hidden = self.tape.op(up.size, (up,), saved)
        return self.linear("down_proj", hidden, wide)

    def gate(self, gate: Tensor, up: Tensor, numbers: float) -> Tensor:
        """`act(gate) * up`: two kernels save three tensors; a fused one saves two and works in place."""
        size = (FP32 if self.wide and self.n.quant else BF16) * numbers
        if self.n.fused_mlp:
            return self.tape.op(size, (gate, up), (gate, up))
        act = self.tape.op(size, (gate,), (gate,), grad=size)
        return self.tape.op(size, (act, up), (act, up))

    def mixture(self, x: Tensor) -> Tensor:
        """Experts: each token's rows are gathered for the experts that it is routed to."""
        s, n, t = self.shape, self.n, self.t
        rows = s.experts_per_token * t
        weights = sum(lin.parameters for lin in self.block.linears if lin.copies > 1)
        grads = weights * n.grad_bytes if n.trains_base else 0.0
        dequantised = BF16 * weights / max(1, s.experts) if n.quant and n.quant_experts else 0.0
        # PEFT adds an adapter to a fused parameter by making the sum: a copy of all experts, and its gradient
        summed = BF16 * weights if n.lora & {"gate_proj", "up_proj"} and not n.quant_experts else 0.0
        router = self.tape.op(FP32 * s.experts * t, (x,), (x,) if n.trains_base else (), keep=True)
        gathered = self.tape.op(BF16 * s.hidden * rows, (x,))
        saved: list[Tensor | float] = [gathered] if n.trains_base else []
        if summed:
            saved.append(summed)
        both = self.tape.op(
            2 * BF16 * s.expert_ffn * rows, (gathered,), saved, weight_grad=2 * grads / 3, backward=dequantised + summed
        )
        act = self.gate(both, both, s.expert_ffn * rows)
        kept = (act,) if n.trains_base else ()
        out = self.tape.op(BF16 * s.hidden * rows, (act,), kept, weight_grad=grads / 3, backward=dequantised)
        joined = self.tape.op(BF16 * s.hidden * t, (out, router), (out, router))
        if s.shared_ffn:
            numbers = s.shared_ffn * t
            up = self.gate(self.linear("shared_gate_proj", x), self.linear("shared_up_proj", x), numbers)
            joined = self.add(joined, self.linear("shared_down_proj", up))
        return joined


class _LitGPT(_Layer):
    """A layer of LitGPT: plain bf16 (no autocast), one fused projection for queries, keys and values."""

    def norm(self, x: Tensor, width: int, rows: int = 1, wide: bool | None = None) -> Tensor:
        size = self.n.weight_bytes * width * rows * self.t
        if self.shape.rms_norm:  # the input is cast to fp32 first
            numbers = width * rows * self.t
            kept = [x if self.n.weight_bytes == FP32 else FP32 * numbers, FP32 * rows * self.t]
            if self.n.trains_base:
                kept.append(FP32 * numbers)
            return self.tape.op(size, (x,), kept, backward=FP32 * numbers, weight_grad=self.norm_grad(width))
        return self.tape.op(size, (x,), (x, 8 * self.t), weight_grad=self.norm_grad(2 * width))

    def linear(self, name: str, x: Tensor, wide: bool = False) -> Tensor:
        n, t, lin = self.n, self.t, self.block.by_name[name]
        out = n.weight_bytes * lin.n_out * t
        if n.trains_base:
            return self.tape.op(out, (x,), (x,), weight_grad=lin.parameters * n.grad_bytes)
        dequantised = self.dequantised(lin.weights)
        kept = (x,) if n.old_bnb and n.quant else ()
        base = self.tape.op(out, (x,), kept, forward=dequantised, backward=dequantised)
        if name not in n.lora:
            return base
        return self.lora(lin.n_in, x, base, lin.n_out, lin.n_out)

    def lora(self, n_in: int, x: Tensor, base: Tensor, enabled: int, n_out: int) -> Tensor:
        n, t = self.n, self.t
        size = n.weight_bytes
        saved: list[Tensor | float] = [size * n_in * t, n_in * t] if n.dropout else [x]
        down = self.tape.op(size * n.rank * t, (x,), saved, weight_grad=n.rank * (n_in + enabled) * size)
        up = self.tape.op(size * enabled * t, (down,), (down,))
        if enabled != n_out:
            # index_copy keeps its source for the shape that its backward expands to
            up = self.tape.op(size * n_out * t, (up,), (up,))
        scaled = self.tape.op(size * n_out * t, (up,))
        return self.tape.op(base.size, (base, scaled), alias=True)

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        s, n, t = self.shape, self.n, self.t
        size = n.weight_bytes
        width = s.q + 2 * s.k
        weights = s.hidden * width
        kept: tuple[Tensor, ...] = (x,) if n.trains_base or (n.old_bnb and n.quant) else ()
        qkv = self.tape.op(
            size * width * t, (x,), kept, weight_grad=weights * n.grad_bytes if n.trains_base else 0.0,
            forward=self.dequantised(weights), backward=self.dequantised(weights),
        )  # fmt: skip
        fused = "qkv_proj" in n.lora
        parts = {"q_proj": s.q, "k_proj": s.k, "v_proj": s.k}
        enabled = s.q + s.k if fused else sum(w for name, w in parts.items() if name in n.lora)
        if enabled:
            qkv = self.lora(s.hidden, x, qkv, enabled, width)
        # the values stay a view: the whole projection lives as long as they do
        return self.rotate(qkv, size * s.q * t), self.rotate(qkv, size * s.k * t), qkv, qkv

    def attend(self, q: Tensor, k: Tensor, v: Tensor, holder: Tensor | None) -> Tensor:
        s, t, size = self.shape, self.t, self.n.weight_bytes
        log_sum = FP32 * s.heads * t
        if s.heads != s.kv_heads:  # expanded to all heads
            k = self.tape.op(size * s.q * t, (k,))
            v = self.tape.op(size * s.q * t, (v,))
        return self.tape.op(size * s.q * t, (q, k, v), (q, k, v, log_sum), backward=FP32 * s.q * t + log_sum, keep=True)

    @property
    def wide(self) -> bool:
        return False

    def gate(self, gate: Tensor, up: Tensor, numbers: float) -> Tensor:
        size = self.n.weight_bytes * numbers
        act = self.tape.op(size, (gate,), (gate,))
        return self.tape.op(size, (act, up), (act, up))
