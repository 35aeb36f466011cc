// SPDX-License-Identifier: Apache-2.0
// Matmul by quantised weights for verify, bench, apply and report. Its bound is matmul's, for the numbers that b's bytes hold.
#include <math.h>
#include <stdlib.h>

#include "specs/matmul/spec_matmul.h"
#include "specs/spec_quant.h"
#include "system/heap.h"

enum { QUANT = 3, GROUP, QUANT_ACTIVATION, QUANT_ACCUMULATE, QUANT_ALPHA };
enum {
    OF_A,
    OF_B,
    OF_B_SCALE,
    OF_B_ZERO,
    OF_B_MINIMUM,
    OF_UP,
    OF_UP_SCALE,
    OF_UP_ZERO,
    OF_UP_MINIMUM,
    OF_BIAS,
    OF_BIAS_UP,
    OF_RESIDUAL,
    OF_C
};

static const struct param_spec params[] = {
    {"rows", "rows of a and c", PARAM_SIZE, 1, NULL},
    {"n", "rows of b, columns of c", PARAM_SIZE, 4096, NULL},
    {"k", "depth: columns of a, numbers of a row of b", PARAM_SIZE, 4096, NULL},
    {"quant", "how bytes hold the numbers of a row of b", PARAM_CHOICE, 0, spec_quant_names},
    {"group", "with int8 and int4: columns of a scale, a multiple of 32; 0: all", PARAM_INT, 0,
     NULL, .most = INT32_MAX},
    {"activation", "epilogue: the function of a b + bias", PARAM_CHOICE, 0, matmul_activations},
    {"accumulate", "add to c, which is f32", PARAM_FLAG, 0, NULL},
    {"alpha", "factor of the product", PARAM_REAL, 1, NULL, PARAM_FLOAT},
    {0},
};

#define BESIDE(name)                                                                               \
    { name, SLOT_IN, SLOT_SMALL, true, .is_flat = true }

static const struct slot_spec slots[] = {
    {"a", SLOT_IN, SLOT_MAIN, false},
    {"b", SLOT_IN, SLOT_U8, false, .is_flat = true},
    BESIDE("b_scale"),
    BESIDE("b_zero"),
    BESIDE("b_minimum"),
    {"b_up", SLOT_IN, SLOT_U8, true, .is_flat = true},
    BESIDE("b_up_scale"),
    BESIDE("b_up_zero"),
    BESIDE("b_up_minimum"),
    {"bias", SLOT_IN, SLOT_SMALL, true, .is_flat = true},
    {"bias_up", SLOT_IN, SLOT_SMALL, true, .is_flat = true},
    {"residual", SLOT_IN, SLOT_SMALL, true},
    {"c", SLOT_INOUT, SLOT_SMALL, false},
    {0},
};

static tsr_quant_format format_of(const struct op_case *c) {
    return (tsr_quant_format)(TSR_QUANT_Q8_0 + (int)c->param[QUANT]);
}

static bool is_beside(int slot) {
    return (slot > OF_B && slot < OF_UP) || (slot > OF_UP && slot < OF_BIAS);
}

static enum slot_kind kind(const struct op_case *c, int slot) {
    const bool is_scale = slot == OF_B_SCALE || slot == OF_UP_SCALE;
    return is_scale && format_of(c) == TSR_QUANT_MXFP4 ? SLOT_U8 : slots[slot].kind;
}

static tsr_dtype dtype(const struct op_case *c, int slot) {
    const enum slot_kind of = kind(c, slot);
    if (of == SLOT_U8) return TSR_U8;
    if (slot == OF_C && is(c, QUANT_ACCUMULATE)) return c->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    return of == SLOT_SMALL ? c->small_dtype : c->dtype;
}

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    const double groups = spec_quant_groups(format_of(c), c->param[K], c->param[GROUP]);
    const int64_t bytes = tsr_quant_row_bytes(format_of(c), (int64_t)c->param[K]);
    const bool is_of_rows = slot == OF_A || slot == OF_C || slot == OF_RESIDUAL;
    shape[0] = (int64_t)c->param[is_of_rows ? M : N];
    shape[1] = slot == OF_A      ? (int64_t)c->param[K]
               : is_of_rows      ? (int64_t)c->param[N]
               : is_beside(slot) ? (int64_t)groups
                                 : (bytes < 0 ? 0 : bytes);
    return slot == OF_BIAS || slot == OF_BIAS_UP ? 1 : 2;
}

static bool infer(struct op_case *c) {
    const tsr_tensor *a = &c->tensor[OF_A], *b = &c->tensor[OF_B];
    if (a->ndim != 2 || b->ndim != 2) return false;
    c->param[M] = (double)a->shape[0];
    c->param[K] = (double)a->shape[1];
    c->param[N] = (double)b->shape[0];
    return true;
}

static void complete(struct op_case *c) {
    c->is_present[OF_B_SCALE] = spec_quant_has_scales(format_of(c));
    c->is_present[OF_UP_SCALE] = c->is_present[OF_B_SCALE] && c->is_present[OF_UP];
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_matmul_quant_args args =
        TSR_MATMUL_QUANT_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                              .workspace_bytes = given_bytes, .a = c->tensor[OF_A],
                              .b = c->tensor[OF_B], .b_scale = c->tensor[OF_B_SCALE],
                              .b_zero = c->tensor[OF_B_ZERO], .b_minimum = c->tensor[OF_B_MINIMUM],
                              .b_up = c->tensor[OF_UP], .b_up_scale = c->tensor[OF_UP_SCALE],
                              .b_up_zero = c->tensor[OF_UP_ZERO],
                              .b_up_minimum = c->tensor[OF_UP_MINIMUM], .bias = c->tensor[OF_BIAS],
                              .bias_up = c->tensor[OF_BIAS_UP], .residual = c->tensor[OF_RESIDUAL],
                              .c = c->tensor[OF_C], .quant = format_of(c),
                              .group = (int32_t)c->param[GROUP],
                              .activation = (tsr_activation)c->param[QUANT_ACTIVATION],
                              .accumulate = is(c, QUANT_ACCUMULATE),
                              .alpha = (float)c->param[QUANT_ALPHA], .has_alpha = 1);
    return workspace_bytes != NULL ? tsr_matmul_quant_prepare(ctx, &args, workspace_bytes)
                                   : tsr_matmul_quant(ctx, &args);
}

static double flops(const struct op_case *c) {
    return 2 * c->param[M] * c->param[N] * c->param[K] * (c->is_present[OF_UP] ? 2 : 1);
}

static double bytes(const struct op_case *c) {
    double sum = 0;
    for (int s = OF_A; s <= OF_C; s++)
        if (c->is_present[s])
            sum += (double)case_numel(c, s) * (double)tsr_dtype_bytes(dtype(c, s)) *
                   (s == OF_C && is(c, QUANT_ACCUMULATE) ? 2 : 1);
    return sum;
}

// ---- Cases ------------------------------------------------------------------------------------

static void randomize(struct rng *rng, struct op_case *c) {
    enum { MOST = 400000 }; // multiplications, because the oracle is slow
    c->param[QUANT] = (double)rng_int(rng, 0, TSR_QUANT_COUNT - 2);
    const bool has_groups = spec_quant_has_groups(format_of(c));
    const double unit = has_groups ? 1 : (double)spec_quant_unit(format_of(c));
    do {
        c->param[M] = (double)rng_dim(rng, rng_chance(rng, 0.5) ? 8 : 150);
        c->param[N] = (double)rng_dim(rng, 200);
        c->param[K] = unit * ceil((double)rng_dim(rng, 1400) / unit);
    } while (c->param[M] * c->param[N] * c->param[K] > MOST);
    if (has_groups) c->param[GROUP] = rng_chance(rng, 0.2) ? 0 : 32 * (double)rng_int(rng, 1, 5);
    c->is_present[OF_UP] = rng_chance(rng, 0.3);
    for (int up = 0; up < (c->is_present[OF_UP] ? 2 : 1); up++) {
        c->is_present[up ? OF_UP_ZERO : OF_B_ZERO] = has_groups && rng_chance(rng, 0.5);
        c->is_present[up ? OF_UP_MINIMUM : OF_B_MINIMUM] = has_groups && rng_chance(rng, 0.4);
    }
    complete(c);
    c->param[QUANT_ACTIVATION] =
        rng_chance(rng, 0.5) ? 0 : (double)rng_int(rng, 1, TSR_ACTIVATION_RELU2);
    c->param[QUANT_ACCUMULATE] = rng_chance(rng, 0.2);
    c->param[QUANT_ALPHA] = rng_chance(rng, 0.8) ? 1 : 0.375 * (double)rng_int(rng, -2, 2);
    c->is_present[OF_BIAS] = rng_chance(rng, 0.3);
    c->is_present[OF_BIAS_UP] = c->is_present[OF_UP] && rng_chance(rng, 0.4);
    c->is_present[OF_RESIDUAL] = rng_chance(rng, 0.2);
}

// c has NaN before the call, which must not matter, unless the call adds to c.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    const int64_t numel = case_numel(c, slot);
    if (slot == OF_B || slot == OF_UP) {
        spec_quant_fill(rng, format_of(c), FILL_NORMAL, numel, values);
        return true;
    }
    if (kind(c, slot) == SLOT_U8) {
        spec_quant_fill_powers(rng, FILL_NORMAL, numel, values);
        return true;
    }
    (void)fill;
    if (slot != OF_C || is(c, QUANT_ACCUMULATE)) return false;
    for (int64_t i = 0; i < numel; i++) values[i] = NAN;
    return true;
}

// ---- The bound ----------------------------------------------------------------------------------

// The numbers of b, or of b_up, as the oracle has them. The caller frees their data.
static tsr_tensor numbers_of(const struct op_case *c, int slot) {
    static tsr_context *ctx; // used by one thread at a time
    const int64_t n = (int64_t)c->param[N], k = (int64_t)c->param[K];
    double *data = calloc((size_t)(n * k) + 1, sizeof *data);
    const tsr_tensor y = TSR_TENSOR(data, TSR_F64, n, k);
    const tsr_dequantize_args args =
        TSR_DEQUANTIZE_ARGS(.variant = "reference", .x = c->tensor[slot], .y = y,
                            .scale = c->tensor[slot + 1], .zero = c->tensor[slot + 2],
                            .minimum = c->tensor[slot + 3], .quant = format_of(c),
                            .group = (int32_t)c->param[GROUP]);
    if (ctx == NULL &&
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 1, .isa = TSR_ISA_SCALAR), &ctx) !=
            TSR_OK)
        abort();
    if (data == NULL || tsr_dequantize(ctx, &args) != TSR_OK) abort();
    return y;
}

static void bound(const struct op_case *c, int slot, double *bound) {
    static const int of[] = {[A] = OF_A,
                             [B] = OF_B,
                             [B_UP] = OF_UP,
                             [BIAS] = OF_BIAS,
                             [BIAS_UP] = OF_BIAS_UP,
                             [RESIDUAL] = OF_RESIDUAL,
                             [C] = OF_C};
    struct op_case f = case_default(&matmul_forward_spec);
    (void)slot;
    f.dtype = c->dtype;
    f.small_dtype = c->small_dtype;
    f.flags = c->flags;
    f.param[M] = c->param[M];
    f.param[N] = c->param[N];
    f.param[K] = c->param[K];
    f.param[TRANSPOSE_B] = 1;
    f.param[ACTIVATION] = c->param[QUANT_ACTIVATION];
    f.param[ACCUMULATE] = c->param[QUANT_ACCUMULATE];
    f.param[ALPHA] = c->param[QUANT_ALPHA];
    for (int s = A; s <= C; s++) {
        f.is_present[s] = c->is_present[of[s]];
        f.tensor[s] = c->tensor[of[s]];
    }
    f.tensor[B] = numbers_of(c, OF_B);
    if (c->is_present[OF_UP]) f.tensor[B_UP] = numbers_of(c, OF_UP);
    const bool is_f16 = c->dtype == TSR_F16; // on CUDA b has a's dtype
    struct matmul_rounding rounding = {.b_unit = is_f16                 ? 0x1p-11
                                                 : c->dtype == TSR_BF16 ? 0x1p-8
                                                                        : 0,
                                       .b_least = is_f16 ? 0x1p-25 : 0};
    const bool has_offset = format_of(c) == TSR_QUANT_Q4_1 || format_of(c) == TSR_QUANT_Q4_K ||
                            c->is_present[OF_B_ZERO] || c->is_present[OF_B_MINIMUM] ||
                            c->is_present[OF_UP_ZERO] || c->is_present[OF_UP_MINIMUM];
    if (!has_offset) rounding.a_unit = 0x1.02p-15; // in integers, on the CPU
    matmul_bound_of_rounded(&f, C, rounding, bound);
    free(f.tensor[B].data);
    if (c->is_present[OF_UP]) free(f.tensor[B_UP].data);
}

#define EDGE(name, params)                                                                         \
    { name, params, FILL_NORMAL, LAYOUT_RANDOM }
#define OF_FORMAT(format, k, rest, up)                                                             \
    EDGE(format, "rows=1 n=70 k=" k " quant=" format rest),                                        \
        EDGE(format ", rows", "rows=40 n=33 k=" k " quant=" format rest " +bias +residual"),       \
        EDGE(format ", a gate",                                                                    \
             "rows=7 n=40 k=" k " activation=silu quant=" format rest " +b_up" up)

static const struct edge_case edges[] = {
    OF_FORMAT("q8_0", "544", "", ""),
    OF_FORMAT("q4_0", "544", "", ""),
    OF_FORMAT("q4_1", "544", "", ""),
    OF_FORMAT("q4_k", "768", "", ""),
    OF_FORMAT("q6_k", "768", "", ""),
    OF_FORMAT("mxfp4_gguf", "544", "", ""),
    OF_FORMAT("mxfp4", "544", " +b_scale", " +b_up_scale"),
    OF_FORMAT("int8", "533", " group=64 +b_scale +b_zero", " +b_up_scale +b_up_zero"),
    OF_FORMAT("int4", "533", " group=128 +b_scale +b_minimum", " +b_up_scale +b_up_minimum"),
    EDGE("no rows", "rows=0 n=5 k=64"),
    EDGE("no columns", "rows=5 n=0 k=64"),
    EDGE("k = 0", "rows=5 n=7 k=0 quant=q4_0 +bias"),
    EDGE("k = 0, adds to c", "rows=5 n=7 k=0 quant=int4 accumulate=1 +b_scale"),
    EDGE("one of everything", "rows=1 n=1 k=1 quant=int4 +b_scale"),
    EDGE("one scale a row", "rows=9 n=40 k=301 quant=int8 +b_scale"),
    EDGE("adds to c", "rows=40 n=33 k=544 quant=q4_0 accumulate=1 alpha=0.375"),
    EDGE("gpt-oss's gate",
         "rows=7 n=40 k=544 quant=mxfp4 activation=swiglu_clamped +b_scale +b_up +b_up_scale +bias "
         "+bias_up"),
    EDGE("many rows", "rows=300 n=70 k=288 quant=q4_0"),
    EDGE("deep", "rows=3 n=9 k=8192 quant=q4_k"),
    {"NaN in some rows", "rows=40 n=33 k=64 quant=q4_0", FILL_NAN, LAYOUT_CONTIGUOUS},
    {"beyond 2^31 elements", "rows=70 n=48 k=64 quant=q8_0", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "rows=17 n=70 k=160 quant=q8_0", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {
    "rows=1 n=4096 k=4096 quant=q8_0", "rows=1 n=4096 k=4096 quant=q4_0",
    "rows=1 n=14336 k=4096 quant=q4_0", "rows=512 n=4096 k=4096 quant=q4_0", NULL};

const struct op_spec matmul_quant_spec = {
    .op = "matmul_quant",
    .command = "matmul-quant",
    .pass = "forward", // the only one
    .params = params,
    .slots = slots,
    .shape = shape,
    .kind = kind,
    .slot_dtype = dtype,
    .infer = infer,
    .complete = complete,
    .call = call,
    .flops = flops,
    .bytes = bytes,
    .randomize = randomize,
    .fill = fill,
    .bound = bound,
    .edges = edges,
    .standard = standard,
    .baseline = "local",
};
