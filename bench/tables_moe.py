# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/tables.py for the mixture-of-experts layer: whole layers of real models beside torch's fastest way, the same
with uneven loads, and decoding with weights that are read from memory."""
import ctypes

from peer_library import Refusal
from peer_torch_moe import Layer
from tables_bench import show

SILU, GELU = 3, 1
# tokens, hidden, intermediate, experts, top_k, activation; without SiLU there is no gate.
LAYERS = [(2048, 4096, 11008, 32, 2, "gelu"), (32768, 4096, 11008, 32, 2, "gelu"), (32768, 1536, 256, 128, 8, "silu"),
          (32768, 4096, 1024, 128, 8, "silu"), (24576, 2048, 768, 128, 8, "silu"), (8192, 2048, 768, 128, 8, "silu"),
          (4096, 4096, 14336, 8, 2, "silu"), (5000, 3584, 2560, 60, 4, "silu")]
DECODING = [(tokens, *layer) for layer in ((2048, 768, 128, 8, "silu"), (4096, 14336, 8, 2, "silu"), (4096, 11008, 32, 2, "gelu"))
            for tokens in (1, 8, 64)]


class Case:
    """A layer's tensors. gate and up are halves of one tensor, as torch's ways have them. load: "router", or how ids are given."""

    def __init__(self, b, layer, load="router"):
        torch = b.torch
        self.b, (tokens, hidden, inner, experts, self.top_k, self.activation) = b, layer
        self.is_gated = self.activation == "silu"
        halves = 2 if self.is_gated else 1

        def scaled(scale, *shape):  # one expert at a time: fp32 numbers of all would not fit
            made = torch.empty(shape, dtype=torch.bfloat16, device=b.device)
            for part in made if len(shape) == 3 else [made]:
                part.copy_(torch.randn(part.shape, device=b.device) * scale)
            return made
        self.x, self.router = scaled(1, tokens, hidden), scaled(hidden ** -0.5, experts, hidden)
        self.w_in, self.w_down = scaled(hidden ** -0.5, experts, halves * inner, hidden), scaled(inner ** -0.5, experts, hidden, inner)
        self.rows, self.inner = tokens * self.top_k, inner
        self.flops = 2.0 * self.rows * hidden * inner * (halves + 1)
        self.preact = torch.empty(self.rows, halves * inner, dtype=torch.bfloat16, device=b.device)
        self.ids = torch.empty(tokens, self.top_k, dtype=torch.int32, device=b.device)
        self.weights = torch.empty(tokens, self.top_k, device=b.device)
        self.y, self.dy = torch.empty_like(self.x), scaled(1, tokens, hidden)
        self.is_routed = load == "router"
        if not self.is_routed:
            self.ids.copy_(ids_of(b, load, tokens, experts, self.top_k))
            self.weights.fill_(1 / self.top_k)

    def split(self, w):
        return {"gate": w[:, :self.inner], "up": w[:, self.inner:]} if self.is_gated else {"up": w}

    def call(self, op, **tensors):
        """Our call, in a workspace of its own."""
        b = self.b
        given = {"x": self.x, "w_down": self.w_down, "topk_ids": self.ids, "topk_weights": self.weights,
                 **{"w_" + name: w for name, w in self.split(self.w_in).items()}, **tensors}
        if self.is_routed:
            given["router"] = self.router
        run = b.ours(op, given, top_k=self.top_k, activation=SILU if self.is_gated else GELU)
        args, needed = run.keep[0], ctypes.c_size_t()
        b.library.check(getattr(b.library.library, f"tsr_{op}_prepare")(b.context, ctypes.byref(args), ctypes.byref(needed)))
        run.memory = b.torch.empty(needed.value + 256, dtype=b.torch.uint8, device=b.device)
        args.workspace, args.workspace_bytes = -(-run.memory.data_ptr() // 256) * 256, needed.value
        return run

    def forward(self, saves=False):
        return self.call("moe_forward", y=self.y, **({"preact": self.preact} if saves else {}))

    def backward(self):
        empty = self.b.torch.empty_like
        self.dw_in, self.dw_down, self.dx, self.drouter = map(empty, (self.w_in, self.w_down, self.x, self.router))
        routed = {"drouter": self.drouter} if self.is_routed else {"dtopk_weights": empty(self.weights)}
        return self.call("moe_backward", preact=self.preact, dy=self.dy, dx=self.dx, dw_down=self.dw_down, **routed,
                         **{"dw_" + name: w for name, w in self.split(self.dw_in).items()})

    def peer(self):
        parts = self.split(self.w_in)
        return Layer(self.b.torch, self.x, self.router, parts.get("gate"), parts["up"], self.w_down, self.top_k, self.activation)


def ids_of(b, load, tokens, experts, top_k):
    """balanced: every expert gets the same number of rows; half: expert 0 gets half of all rows; single: one row for each expert
    but the first, and no other row for any of them, as far as tokens choose different experts."""
    torch = b.torch
    turn = torch.arange(tokens * top_k, device=b.device)
    if load == "balanced":
        return (turn % experts).view(tokens, top_k)
    if load == "half":
        return torch.where(turn % 2 == 0, 0, 1 + turn // 2 % (experts - 1)).view(tokens, top_k)
    return torch.where(turn < experts - 1, turn + 1, 0).view(tokens, top_k)


def agree(ours, theirs):
    """Torch's router chooses by logits in 16 bits, so a few tokens have other experts: compares in the mean."""
    share = ((ours.float() - theirs.float()).norm() / theirs.float().norm()).item()
    if not share < 0.1:
        raise Refusal(f"torch and tessera differ by {share:.2g} in the mean")


def fastest(b, paths):
    name, path = b.timing.fastest(list(paths))
    return name, path


def same_way(b, way, peers):
    """The calls of several layers of one shape, compiled once if that is the way."""
    name = way.removesuffix(", torch.compile")
    layer = dict(peers[0].ways(False))[name]
    if way != name:
        b.torch._dynamo.reset()
        layer = b.torch.compile(layer, dynamic=False)
    return [lambda inputs=peer.inputs: layer(*inputs) for peer in peers]


def layers(b):
    torch, size = b.torch, 8192
    a, w, c = b.random(size, size), b.random(size, size), b.random(size, size)
    dense = b.ours("matmul_forward", {"a": a, "b": w, "c": c}, transpose_b=1)

    def rate():
        return 2e-6 * size ** 3 / b.in_turns([dense], 4)[0]

    def lines():
        for layer in LAYERS:
            def forward(layer=layer):
                case = Case(b, layer)
                ours, saving = case.forward(), case.forward(saves=True)
                ours()
                way, path = fastest(b, case.peer().forward())
                agree(case.y, path()[0])
                us = b.in_turns([ours, path, saving], 4)
                tflops = 1e-6 * case.flops / us[0]
                return [1e-3 * us[0], 1e-3 * us[1], us[1] / us[0], tflops, 100 * tflops / rate(), 1e-3 * us[2], way]

            def backward(layer=layer):
                case = Case(b, layer)
                case.forward(saves=True)()
                ours = case.backward()
                ours()
                way, path = fastest(b, case.peer().backward(case.dy))
                agree(case.dx, path()[0])
                agree(case.dw_down, path()[-1])
                us = b.in_turns([ours, path], 4)
                tflops = 2e-6 * case.flops / us[0]
                return [1e-3 * us[0], 1e-3 * us[1], us[1] / us[0], tflops, 100 * tflops / rate(), "", way]
            name = " ".join(map(str, layer))
            yield name + ", forward", forward
            torch.cuda.empty_cache()
            yield name + ", backward", backward
            torch.cuda.empty_cache()
    show("Mixture-of-experts layers: tokens, hidden, intermediate, experts, top_k; bf16, router included",
         ["layer", "ours ms", "torch ms", "torch / ours", "TFLOP/s", "% of 8192^3", "ours, saving h", "torch's way"], lines())


def loads(b):
    def lines():
        for layer in ((32768, 4096, 1024, 128, 8, "silu"), (24576, 2048, 768, 128, 8, "silu"), (4096, 4096, 14336, 8, 2, "silu")):
            for is_backward in (False, True):
                def measure(layer=layer, is_backward=is_backward):
                    calls = []
                    for load in ("balanced", "half", "single"):
                        case = Case(b, layer, load)
                        if is_backward:
                            case.forward(saves=True)()
                        calls.append(case.backward() if is_backward else case.forward())
                    us = b.in_turns(calls, 2)
                    return [1e-3 * us[0], us[1] / us[0], us[2] / us[0]]
                yield " ".join(map(str, layer)) + (", backward" if is_backward else ", forward"), measure
                b.torch.cuda.empty_cache()
    show("Uneven loads, time over that of balanced experts", ["layer", "balanced ms", "half on one expert", "one row an expert"],
         lines())


def decoding(b):
    cache = getattr(b.torch.cuda.get_device_properties(b.device), "L2_cache_size", 0) or 60 << 20

    def lines():
        for layer in DECODING:
            def measure(layer=layer):
                case = Case(b, layer)
                ours = case.forward()
                ours()
                touched = case.ids.unique().numel()
                read = 2 * touched * (case.w_in[0].numel() + case.w_down[0].numel())
                way = fastest(b, case.peer().forward())[0]
                others = [Case(b, layer) for _ in range(min(1 + 2 * cache // read, 6))]  # weights leave the cache
                calls = [ours, *(other.forward() for other in others)]
                paths = same_way(b, way, [each.peer() for each in (case, *others)])

                def all_of(calls):
                    return lambda: [call() for call in calls]
                us = [time / len(calls) for time in b.in_turns([all_of(calls), all_of(paths)], 4)]
                return [us[0], us[1], us[1] / us[0], touched, 1e-3 * read / us[0], way]
            yield " ".join(map(str, layer)), measure
            b.torch.cuda.empty_cache()
    show("Decoding, weights from memory: tokens, hidden, intermediate, experts, top_k",
         ["layer", "ours us", "torch us", "torch / ours", "experts touched", "GB/s of their weights", "torch's way"], lines())


KINDS = (layers, loads, decoding)


def moe(b):
    for kind in KINDS:
        kind(b)
