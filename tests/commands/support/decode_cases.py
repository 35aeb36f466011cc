# SPDX-License-Identifier: Apache-2.0
"""Random cases of attention over a cache for calls_cases.py: where its caches lie, and what its indices refer to."""
import math

import numpy as np

CACHES, SCALES = {"k_cache", "v_cache"}, {"k_scale", "v_scale"}
INDICES = {"cache_seqlens", "page_table", "cache_batch_idx", "leftpad_k"}


def draw_sizes(rng, main, forced):
    """Whether caches are of e4m3, and the dimensions of their scales."""
    is_e4m3 = bool(SCALES & set(forced)) or rng.random() < 0.3
    return {"e4m3_caches": main != "f64" and is_e4m3, "scale_dims": rng.randint(0, 2)}


def cache_form(case, form):
    """The dimensions of a cache: contiguous, in pages, in slots."""
    if "page_table" in case.tensors:
        return ["num_pages", "page_size", *form[2:]]
    return ["num_pages", *form[1:]] if "cache_batch_idx" in case.tensors else form


def indices(rng, case, name, shape):
    s = case.sizes
    if name in ("page_table", "cache_batch_idx"):
        pages = list(range(s["num_pages"]))
        rng.shuffle(pages)
        return np.array(pages[:math.prod(shape)], np.int32).reshape(shape)
    most = s["max_pages"] * s["page_size"] if "page_table" in case.tensors else s["capacity"]
    if name == "leftpad_k" and rng.random() < 0.8:
        most = 2  # at most cache_seqlens, mostly
    return np.array([rng.randint(0, most) for _ in range(shape[0])], np.int32)
