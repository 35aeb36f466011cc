// SPDX-License-Identifier: Apache-2.0
// Tensors of the layer's passes: places in the workspace, and views.
#include "compose/moe/moe_problem.h"

// ---- Places -----------------------------------------------------------------------------------

// Whole lines of the second-level cache: rows that begin elsewhere cost the copy engine half of its rate.
enum { PLACE_BYTES = 256 };

tsr_tensor moe_place(struct moe_pass *pass, tsr_dtype dtype, int64_t rows, int64_t cols) {
    const int64_t shape[2] = {rows, cols};
    tsr_tensor t = tsr_tensor_contiguous(pass->at, dtype, cols >= 0 ? 2 : 1, shape);
    t.device = pass->p->x.device;
    pass->at += tsri_round_up((size_t)tsr_tensor_numel(&t) * tsr_dtype_bytes(dtype), PLACE_BYTES);
    return t;
}

tsr_tensor moe_place_absent(struct moe_pass *pass, const tsr_tensor *t, tsr_dtype dtype,
                            int64_t rows, int64_t cols) {
    return tsri_is_present(t) ? *t : moe_place(pass, dtype, rows, cols);
}

struct moe_rows moe_place_rows(struct moe_pass *pass, tsr_dtype dtype, int64_t rows, int64_t cols) {
    enum { BLOCK = 128 }; // columns of a scale
    enum { LINE = 16 };   // bytes: rows that begin elsewhere have no tensor map
    if (dtype != TSR_E4M3) return (struct moe_rows){.t = moe_place(pass, dtype, rows, cols)};
    struct moe_rows placed = {
        .t = moe_place(pass, dtype, rows, (int64_t)tsri_round_up((size_t)cols, LINE)),
        .scale = moe_place(pass, TSR_F32, rows, tsri_ceil_div(cols, BLOCK)),
    };
    placed.t.shape[1] = cols;
    return placed;
}

// ---- Views ------------------------------------------------------------------------------------

tsr_tensor moe_cols(const tsr_tensor *t, int64_t first, int64_t count) {
    tsr_tensor cols = *t;
    if (t->data != NULL) cols.data = (char *)t->data + first * (int64_t)tsr_dtype_bytes(t->dtype);
    cols.shape[t->ndim - 1] = count;
    return cols;
}

void moe_split(const struct moe_problem *p, const tsr_tensor *preact, tsr_tensor *gate,
               tsr_tensor *up) {
    const int64_t cols = preact->shape[1];
    *gate = (tsr_tensor){0};
    *up = *preact;
    if (!moe_is_gated(p)) return;
    *gate = moe_cols(preact, 0, cols / 2);
    *up = moe_cols(preact, cols / 2, cols / 2);
}

bool moe_join(const tsr_tensor *first, const tsr_tensor *second, tsr_tensor *both) {
    const int dim = first->ndim - 2;
    if (dim < 0 || first->ndim != second->ndim) return false;
    if (!tsri_is_present(first) || !tsri_is_present(second) || first->data == NULL) return false;
    for (int i = 0; i < first->ndim; i++)
        if (first->shape[i] != second->shape[i] || first->stride[i] != second->stride[i])
            return false;
    const int64_t bytes =
        first->shape[dim] * first->stride[dim] * (int64_t)tsr_dtype_bytes(first->dtype);
    if (first->dtype != second->dtype || (char *)first->data + bytes != (char *)second->data)
        return false;
    *both = *first;
    both->shape[dim] *= 2;
    return true;
}

tsr_activation moe_activation(const struct moe_problem *p) {
    if (p->options.activation != TSR_ACTIVATION_NONE) return p->options.activation;
    return moe_is_gated(p) ? TSR_ACTIVATION_SILU : TSR_ACTIVATION_GELU;
}

// ---- Rows -------------------------------------------------------------------------------------

// Hopper's copy engine cannot gather rows. Where products and not memory decide, those that read rows by a list take 5/4 of the
// time, gradients of weights 3/2 to 7/4 (docs/kernels/moe_layer.md). A copy moves 4 bytes an element; a column of a product
// takes 2 FLOPs.
bool moe_copies_rows(const struct moe_pass *pass, int64_t columns, int64_t columns_of_gradients) {
    const struct moe_problem *p = pass->p;
    enum { BALANCE = 150, LIST_TIME = 4 }; // FLOPs in the time of a byte; a list takes a quarter
    const struct tsri_limits *limits = tsri_context_limits(p->ctx);
    if (limits->device.type != TSR_CUDA || limits->cuda_arch != 90) return false;
    if (p->x.dtype != TSR_BF16 && p->x.dtype != TSR_F16) return false;
    // With few rows the weights' bytes decide. But copies may go to another variant than lists: rows must not decide then.
    const bool is_invariant = (pass->flags & TSR_BATCH_INVARIANT) != 0;
    if (!is_invariant && p->num_rows / BALANCE < p->num_experts) columns = 0;
    return 2 * (columns + 2 * columns_of_gradients) >= 4 * BALANCE * LIST_TIME;
}
