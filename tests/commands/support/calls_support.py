# SPDX-License-Identifier: Apache-2.0
"""The public calls as their headers declare them, made with ctypes: every tsr_X(ctx, args) with the fields of its args
struct, their types, offsets and the comment of each tensor. scripts/abi measures the layouts. The library is
$TESSERA_LIBRARY."""
import ctypes
import dataclasses
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import struct

import ml_dtypes
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIBRARY = os.environ.get("TESSERA_LIBRARY", "")
CALL_FIELDS = ("size", "flags", "variant", "workspace", "workspace_bytes")
DTYPES = {"f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16),
          "f16": np.dtype(np.float16), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
          "e5m2": np.dtype(ml_dtypes.float8_e5m2), "i32": np.dtype(np.int32), "u8": np.dtype(np.uint8)}
FORMATS = {"float": "f", "double": "d", "int32_t": "i", "int64_t": "q", "uint32_t": "I", "uint64_t": "Q", "size_t": "Q"}


def dtype_name(array):
    return next(name for name, dtype in DTYPES.items() if dtype == array.dtype)


# ---- The headers -------------------------------------------------------------------------------

@dataclasses.dataclass
class Field:
    name: str
    type: str
    offset: int
    comment: str = ""  # of a tensor: "in  (..., cols), optional"

    @property
    def is_read(self):
        return bool(re.match(r"io|in\b", self.comment))

    @property
    def is_written(self):
        return bool(re.match(r"io|out|in-out|in and out", self.comment)) or "in and out under" in self.comment

    @property
    def is_optional(self):
        return bool(re.search(r"optional|or absent|beside|, with ", self.comment))


# Tensors that apply neither reads nor writes: num_errors counts errors on a device, which apply reports by name on the
# CPU.
WITHOUT_A_FILE = {"num_errors"}


@dataclasses.dataclass
class Call:
    op: str  # "softmax_forward"
    bytes: int
    fields: dict

    @property
    def tensors(self):
        return {n: f for n, f in self.fields.items() if f.type == "tsr_tensor" and n not in WITHOUT_A_FILE}

    @property
    def scalars(self):
        return {n: f for n, f in self.fields.items() if f.type != "tsr_tensor" and n not in CALL_FIELDS}


def load_abi():
    loader = importlib.machinery.SourceFileLoader("abi_script", str(ROOT / "scripts/abi"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("abi_script", loader))
    loader.exec_module(module)
    return module


def read_comments():
    """{struct: {tensor: comment}}"""
    result = {}
    for header in (ROOT / "include/tessera").glob("*.h"):
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\n\} (\w+);", header.read_text(), re.S):
            result[name] = dict(re.findall(r"tsr_tensor (\w+);\s*// *([^\n]*)", body))
    return result


def read_calls():
    """({op: Call}, {enum: {constant: value}}, layout of tsr_tensor)"""
    abi = load_abi()
    structs, enums, functions = abi.read_headers()
    layout = abi.measure(structs, enums)
    if layout is None:
        return {}, {}, {}
    layout = abi.blocks(layout)
    text = "".join(abi.declarations().values())
    bodies = {name: body for name, body in re.findall(r"typedef struct (\w+)\s*\{(.*?)\}\s*\1\s*;", text, re.S)}
    comments = read_comments()

    def fields_of(name, prefix="", base=0):
        for declaration in filter(None, (re.sub(r"\s+", " ", d).strip() for d in bodies[name].split(";"))):
            kind, field = re.match(r"(.*?)(\w+)$", declaration).groups()
            kind = kind.replace("const ", "").strip()
            offset = base + int(layout[f"struct {name}"][1][field].split()[0])
            if kind in bodies and kind != "tsr_tensor":
                yield from fields_of(kind, field + ".", offset)
                continue
            kind = "int32_t" if kind in enums else "size_t" if "*" in kind else kind
            yield Field(prefix + field, kind, offset, comments.get(name, {}).get(field, ""))

    calls = {}
    for function, declaration in functions.items():
        match = re.fullmatch(r"tsr_status tsr_(\w+)\(tsr_context \*ctx, const (\w+) \*args\)", declaration)
        if match:
            fields = {f.name: f for f in fields_of(match[2])}
            calls[match[1]] = Call(match[1], int(layout[f"struct {match[2]}"][0]), fields)
    values = {name.split()[1]: {c: int(v) for c, v in members.items()}
              for name, (_, members) in layout.items() if name.startswith("enum")}
    return calls, values, {n: int(v.split()[0]) for n, v in layout["struct tsr_tensor"][1].items()}


# ---- Shapes, as written in the comments ----------------------------------------------------------

def alternatives(comment):
    """"in (rows, k) or (num_groups, rows, k)": [["rows", "k"], ["num_groups", "rows", "k"]]; "out as q": "q"."""
    text = re.sub(r"^(in-out|in and out|io|in|out)\s+", "", comment)
    match = re.match(r"as (\w+)", text)
    if match:
        return match[1]
    result = []
    while text.startswith("("):
        end = next(i for i in range(len(text)) if text[:i + 1].count("(") == text[:i + 1].count(")"))
        inner, text = text[1:end], re.sub(r"^(,? or |, )(?=\()", "", text[end + 1:])
        optional = re.match(r"\[(\w+),\] ", inner)
        if optional:
            inner = inner[optional.end():]
            result.append([optional[1], *inner.split(", ")])
        result.append(inner.split(", ") if inner else [])
    assert result, f"no shape in the comment '{comment}'"
    return result


def evaluate(dimension, sizes):
    text = re.sub(r"ceil\((\w+) / (\d+)\)", r"-(-\1 // \2)", dimension).replace(" / ", " // ")
    text = re.sub(r"(\w+) (?=[a-z])", r"\1 * ", text)
    return eval(text, {"__builtins__": {}}, sizes)  # an expression from our own header


# ---- The library -------------------------------------------------------------------------------

class Refused(Exception):
    """A status other than TSR_OK, and its sentence."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class Library:
    """Calls on one device, with one context per instruction set."""

    def __init__(self, device="cpu"):
        self.calls, self.enums, self.tensor_layout = read_calls()
        self.c = ctypes.CDLL(LIBRARY)
        self.c.tsr_last_error.restype = ctypes.c_char_p
        self.device = (1, int((device.split(":") + ["0"])[1])) if device != "cpu" else (0, 0)
        self.device_name, self.contexts, self.statuses = device, {}, {}
        for name, value in self.enums["tsr_status"].items():
            self.statuses[value] = name
        self.c.tsr_memory_copy.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t]
        self.c.tsr_memory_free.argtypes = [ctypes.c_void_p] * 2

    def check(self, status):
        if status != 0:
            raise Refused(self.statuses[status], self.c.tsr_last_error().decode())

    def isas(self):
        """The instruction sets of this machine, or only $TSR_ISA."""
        names = {"TSR_ISA_SCALAR": "scalar", "TSR_ISA_AVX2": "avx2", "TSR_ISA_AVX512": "avx512"}
        found = [names[n] for n, v in self.enums["tsr_isa"].items() if n in names and self.c.tsr_isa_is_supported(v)]
        return [n for n in found if n == os.environ.get("TSR_ISA", n)]

    def context(self, isa, threads=2):
        if isa not in self.contexts:
            # size, device, isa, num_threads, parallel_for, its user, allocator (3), l3_bytes, stream, tuning_file
            options = ctypes.create_string_buffer(struct.pack(
                "QiiiiQQQQQqQQ", 88, *self.device, self.enums["tsr_isa"][f"TSR_ISA_{isa.upper()}"], threads,
                0, 0, 0, 0, 0, 0, 0, 0))
            context = ctypes.c_void_p()
            self.check(self.c.tsr_context_create(options, ctypes.byref(context)))
            self.contexts[isa] = context
        return self.contexts[isa]

    def variants(self, op):
        class Info(ctypes.Structure):
            _fields_ = [("name", ctypes.c_char_p), ("summary", ctypes.c_char_p), ("flags", ctypes.c_uint32)]
        info, names = Info(), []
        for i in range(self.c.tsr_variant_count(op.encode())):
            self.check(self.c.tsr_variant_info_get(op.encode(), i, ctypes.byref(info)))
            names.append(info.name.decode())
        return names

    def put_tensor(self, args, field, array, data):
        at = {n: field.offset + o for n, o in self.tensor_layout.items()}
        strides = [int(np.prod(array.shape[i + 1:])) for i in range(array.ndim)]
        struct.pack_into("Q", args, at["data"], data)
        struct.pack_into("i", args, at["dtype"], self.enums["tsr_dtype"]["TSR_" + dtype_name(array).upper()])
        struct.pack_into("ii", args, at["device"], *self.device)
        struct.pack_into("i", args, at["ndim"], array.ndim)
        struct.pack_into(f"{array.ndim}q", args, at["shape"], *array.shape)
        struct.pack_into(f"{array.ndim}q", args, at["stride"], *strides)

    def run(self, op, isa, tensors, scalars, outputs, flags=0, variant=None):
        """Returns the outputs by name and leaves the tensors unchanged. outputs: {name: zeros} of tensors that are only written."""
        call, context = self.calls[op], self.context(isa)
        args = ctypes.create_string_buffer(call.bytes)
        struct.pack_into("Q", args, call.fields["size"].offset, call.bytes)
        struct.pack_into("I", args, call.fields["flags"].offset, flags)
        name = ctypes.create_string_buffer(variant.encode()) if variant else None
        if name is not None:
            struct.pack_into("Q", args, call.fields["variant"].offset, ctypes.addressof(name))
        for field, value in scalars.items():
            struct.pack_into(FORMATS[call.fields[field].type], args, call.fields[field].offset, value)
        arrays = {n: np.array(a, order="C", copy=True).reshape(a.shape) for n, a in {**tensors, **outputs}.items()}
        pointers = {}
        try:
            for n, a in arrays.items():
                pointers[n] = self.to_device(context, a)
                self.put_tensor(args, call.fields[n], a, pointers[n])
            self.check(getattr(self.c, "tsr_" + op)(context, args))
            written = {n: a for n, a in arrays.items() if call.fields[n].is_written}
            for n, a in written.items():
                self.to_host(context, a, pointers[n])
            self.check(self.c.tsr_context_synchronize(context))
            return written
        finally:
            for p in pointers.values() if self.device[0] else ():
                self.c.tsr_memory_free(context, p)

    def to_device(self, context, array):
        if not self.device[0]:
            return array.ctypes.data
        pointer = ctypes.c_void_p()
        self.check(self.c.tsr_memory_alloc(context, ctypes.c_size_t(array.nbytes), ctypes.byref(pointer)))
        self.check(self.c.tsr_memory_copy(context, pointer, array.ctypes.data, array.nbytes))
        return pointer.value

    def to_host(self, context, array, pointer):
        if self.device[0]:
            self.check(self.c.tsr_memory_copy(context, array.ctypes.data, pointer, array.nbytes))
