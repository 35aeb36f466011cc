# SPDX-License-Identifier: Apache-2.0
"""Rows of quantised weights in random cases: the columns, bytes and scales of a row in each tsr_quant_format."""

# Columns and bytes of a block of a row, in the order of tsr_quant_format; from INT8 on rows have scales beside them.
BLOCKS = {1: (32, 34), 2: (32, 18), 3: (32, 20), 4: (256, 144), 5: (256, 210), 6: (32, 17), 7: (1, 1), 8: (2, 1), 9: (32, 16)}
INT8, MXFP4 = 7, 9


def is_quant(case):
    return "quant" in case.calls[0].fields


def set_row(case):
    """Sizes of a row of the drawn format."""
    s, kind, size = case.sizes, case.scalars["quant"], "cols" if case.calls[0].op == "dequantize" else "k"
    columns, block = BLOCKS[kind]
    s[size] = -(-s[size] // columns) * columns
    s["row_bytes"] = s[size] // columns * block
    group = 32 if kind == MXFP4 else case.scalars.get("group", 0) or max(s[size], 1)
    s["groups"] = -(-s[size] // group)


def is_bytes(case, name):
    if not is_quant(case):
        return False
    return name in ("x", "b", "b_up") or name.endswith("scale") and case.scalars["quant"] == MXFP4


def is_beside(case, name):
    return is_quant(case) and name.endswith(("scale", "zero", "minimum"))


def is_there(rng, case, name):
    """Whether the case gives this tensor of scales."""
    is_scale = name.endswith("scale")
    of_groups = range(INT8, MXFP4 + is_scale)
    if name.startswith("b_up") and "b_up" not in case.tensors:
        return False
    return case.scalars["quant"] in of_groups and rng.random() < (0.97 if is_scale else 0.5)
