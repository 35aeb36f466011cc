// SPDX-License-Identifier: Apache-2.0
// RoPE, tables and rotation, for verify, bench, apply and report.
#include <math.h>

#include "specs/spec.h"

static const double u32 = 0x1p-24; // unit roundoff of fp32

// ---- Tables: [inv_freq] -> cos, sin -----------------------------------------------------------

static const char *const scalings[] = {"none", "llama3", NULL};

static const struct param_spec table_params[] = {
    {"num_positions", "positions, from 0", PARAM_SIZE, 131072, NULL, SOURCE_OPTION},
    {"rotary_dim", "rotated elements of a head; even", PARAM_SIZE, 128, NULL, SOURCE_OPTION},
    {"base", "base of the frequencies", PARAM_REAL, 10000, NULL},
    {"scaling", "frequency scaling, with the next four parameters", PARAM_CHOICE, 0, scalings},
    {"attention_factor", "factor of both tables", PARAM_REAL, 1, NULL},
    {"factor", "scaling: growth of long wavelengths", PARAM_REAL, 8, NULL},
    {"low_freq_factor", "of scaling", PARAM_REAL, 1, NULL},
    {"high_freq_factor", "of scaling", PARAM_REAL, 4, NULL},
    {"original_max_position", "of scaling", PARAM_REAL, 8192, NULL},
    {0},
};

enum { TABLE_INV_FREQ, TABLE_COS, TABLE_SIN };
static const struct slot_spec table_slots[] = {
    {"inv_freq", SLOT_IN, SLOT_F32, true, NULL, false},
    {"cos", SLOT_OUT, SLOT_F32, false, NULL, false},
    {"sin", SLOT_OUT, SLOT_F32, false, NULL, false},
    {0},
};

static int table_shape(const struct op_case *c, int slot, int64_t *shape) {
    int64_t half = case_int(c, "rotary_dim") / 2;
    shape[0] = slot == TABLE_INV_FREQ ? half : case_int(c, "num_positions");
    shape[1] = half;
    return slot == TABLE_INV_FREQ ? 1 : 2;
}

// inv_freq gives rotary_dim; without it an option does.
static bool table_infer(struct op_case *c) {
    if (!c->is_present[TABLE_INV_FREQ]) return true;
    const tsr_tensor *inv_freq = &c->tensor[TABLE_INV_FREQ];
    if (inv_freq->ndim != 1) return false;
    c->param[spec_param(c->spec, "rotary_dim")] = 2 * (double)inv_freq->shape[0];
    return true;
}

static tsr_status table_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                             void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_rope_table_args args =
        TSR_ROPE_TABLE_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                            .workspace_bytes = given_bytes, .inv_freq = c->tensor[TABLE_INV_FREQ],
                            .cos = c->tensor[TABLE_COS], .sin = c->tensor[TABLE_SIN],
                            .base = case_real(c, "base"), .has_base = 1,
                            .has_scaling = case_int(c, "scaling") == 1,
                            .scaling = {case_real(c, "factor"), case_real(c, "low_freq_factor"),
                                        case_real(c, "high_freq_factor"),
                                        case_real(c, "original_max_position")},
                            .attention_factor = case_real(c, "attention_factor"));
    return workspace_bytes != NULL ? tsr_rope_table_prepare(ctx, &args, workspace_bytes)
                                   : tsr_rope_table(ctx, &args);
}

// A sine and a cosine as one rotation: four multiplications, two additions.
static double table_flops(const struct op_case *c) {
    return 6 * case_real(c, "num_positions") * floor(case_real(c, "rotary_dim") / 2);
}

static void table_randomize(struct rng *rng, struct op_case *c) {
    int64_t half = rng_dim(rng, 130);
    c->param[0] = (double)rng_dim(rng, 100000 / (half + 1));
    c->param[1] = (double)(2 * half);
    c->param[2] = rng_chance(rng, 0.5) ? 10000 : exp(16 * rng_uniform(rng));
    c->param[3] = (double)rng_chance(rng, 0.3);
    c->param[4] = rng_chance(rng, 0.8) ? 1 : 0.5 + rng_uniform(rng);
    c->is_present[TABLE_INV_FREQ] = rng_chance(rng, 0.4);
    if (c->param[3] == 0 || rng_chance(rng, 0.5)) return;
    c->param[5] = 1 + 15 * rng_uniform(rng);
    c->param[6] = 0.5 + rng_uniform(rng);
    c->param[7] = c->param[6] + 0.5 + 4 * rng_uniform(rng);
    c->param[8] = exp(4 + 6 * rng_uniform(rng));
}

// Frequencies of any size up to 1.
static bool table_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                       double *values) {
    (void)fill;
    for (int64_t i = 0; i < case_numel(c, slot); i++) values[i] = exp(-12 * rng_uniform(rng));
    return true;
}

// 2^-50 (64 + angle) times the factor. The angle is at most the position, because frequencies are at most 1, unless base
// or scaling factor is below 1.
static void table_bound(const struct op_case *c, int slot, double *bound) {
    int64_t half = case_int(c, "rotary_dim") / 2;
    double factor = fabs(case_real(c, "attention_factor")), base = case_real(c, "base");
    double grown = case_int(c, "scaling") != 0 ? fmax(1, 1 / case_real(c, "factor")) : 1;
    if (factor == 0) factor = 1;
    (void)slot;
    for (int64_t p = 0; p < case_int(c, "num_positions"); p++)
        for (int64_t i = 0; i < half; i++) {
            double frequency = grown * fmax(1, pow(base, -(double)i / (double)half));
            *bound++ = factor * 0x1p-50 * (64 + (double)p * frequency);
        }
}

static const struct edge_case table_edges[] = {
    {"no positions", "num_positions=0 rotary_dim=64", FILL_NORMAL, LAYOUT_RANDOM},
    {"no frequencies", "num_positions=5 rotary_dim=0", FILL_NORMAL, LAYOUT_RANDOM},
    {"one pair", "num_positions=1000 rotary_dim=2", FILL_NORMAL, LAYOUT_RANDOM},
    {"position 1,000,000", "num_positions=1000002 rotary_dim=2", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"around an anchor", "num_positions=65 rotary_dim=34", FILL_NORMAL, LAYOUT_RANDOM},
    {"Llama 3.1", "num_positions=777 rotary_dim=128 base=500000 scaling=llama3", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"given frequencies, scaled", "num_positions=99 rotary_dim=66 scaling=llama3 +inv_freq",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"base 1", "num_positions=99 rotary_dim=6 base=1", FILL_NORMAL, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "num_positions=3 rotary_dim=66", FILL_NORMAL, LAYOUT_FAR},
    {0},
};

static const char *const table_standard[] = {"num_positions=8192 rotary_dim=128",
                                             "num_positions=131072 rotary_dim=128",
                                             "num_positions=1048576 rotary_dim=64", NULL};

const struct op_spec rope_table_spec = {
    .op = "rope_table",
    .command = "rope-table",
    .pass = "forward",
    .params = table_params,
    .slots = table_slots,
    .shape = table_shape,
    .infer = table_infer,
    .call = table_call,
    .flops = table_flops,
    .randomize = table_randomize,
    .fill = table_fill,
    .bound = table_bound,
    .edges = table_edges,
    .standard = table_standard,
    .baseline = "reference",
};

// ---- Rotation: x, cos, sin, [positions] -> y --------------------------------------------------

static const struct param_spec params[] = {
    {"batch", "sequences", PARAM_SIZE, 4, NULL},
    {"seqlen", "tokens of a sequence; packed: of all", PARAM_SIZE, 4096, NULL},
    {"num_heads", "heads of a token", PARAM_SIZE, 32, NULL},
    {"head_dim", "elements of a head", PARAM_SIZE, 128, NULL},
    {"rotary_dim", "rotated elements of a head; 0: all", PARAM_INT, 0, NULL},
    {"num_positions", "rows of the tables; 0: seqlen", PARAM_INT, 0, NULL, SOURCE_TENSORS},
    {"interleaved", "pairs (2i, 2i + 1)", PARAM_FLAG, 0, NULL},
    {"packed", "x is (total, num_heads, head_dim)", PARAM_FLAG, 0, NULL, SOURCE_TENSORS},
    {0},
};

enum { X, COS, SIN, POSITIONS, Y };
static const struct slot_spec forward_slots[] = {
    {"x", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"cos", SLOT_IN, SLOT_F32, false, NULL, false},
    {"sin", SLOT_IN, SLOT_F32, false, NULL, false},
    {"positions", SLOT_IN, SLOT_I32, true, NULL, false},
    {"y", SLOT_OUT, SLOT_MAIN, false, NULL, false},
    {0},
};
static const struct slot_spec backward_slots[] = {
    {"dy", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"cos", SLOT_IN, SLOT_F32, false, NULL, false},
    {"sin", SLOT_IN, SLOT_F32, false, NULL, false},
    {"positions", SLOT_IN, SLOT_I32, true, NULL, false},
    {"dx", SLOT_OUT, SLOT_MAIN, false, NULL, false, "x"},
    {0},
};

static bool is_packed(const struct op_case *c) { return case_int(c, "packed") != 0; }

static int64_t rotary_dim(const struct op_case *c) {
    int64_t dim = case_int(c, "rotary_dim");
    return dim != 0 ? dim : case_int(c, "head_dim");
}

static int64_t num_positions(const struct op_case *c) {
    int64_t count = case_int(c, "num_positions");
    return count != 0 ? count : case_int(c, "seqlen");
}

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    int n = 0;
    if (slot == COS || slot == SIN) {
        shape[n++] = num_positions(c);
        shape[n++] = rotary_dim(c) / 2;
        return n;
    }
    if (!is_packed(c)) shape[n++] = case_int(c, "batch");
    shape[n++] = case_int(c, "seqlen");
    if (slot == POSITIONS) return n;
    shape[n++] = case_int(c, "num_heads");
    shape[n++] = case_int(c, "head_dim");
    return n;
}

static bool infer(struct op_case *c) {
    const tsr_tensor *x = &c->tensor[X], *cosines = &c->tensor[COS];
    if ((x->ndim != 3 && x->ndim != 4) || cosines->ndim != 2) return false;
    int first = x->ndim - 3;
    c->param[0] = first == 1 ? (double)x->shape[0] : 1;
    for (int i = 0; i < 3; i++) c->param[1 + i] = (double)x->shape[first + i];
    c->param[4] = 2 * (double)cosines->shape[1];
    c->param[5] = (double)cosines->shape[0];
    c->param[7] = first == 0;
    return true;
}

static tsr_status forward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                               void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_rope_forward_args args =
        TSR_ROPE_FORWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                              .workspace_bytes = given_bytes, .x = c->tensor[X],
                              .cos = c->tensor[COS], .sin = c->tensor[SIN],
                              .positions = c->tensor[POSITIONS], .y = c->tensor[Y],
                              .rotary_dim = case_int(c, "rotary_dim"),
                              .interleaved = case_int(c, "interleaved") != 0);
    return workspace_bytes != NULL ? tsr_rope_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_rope_forward(ctx, &args);
}

static tsr_status backward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                                void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_rope_backward_args args =
        TSR_ROPE_BACKWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                               .workspace_bytes = given_bytes, .dy = c->tensor[X],
                               .cos = c->tensor[COS], .sin = c->tensor[SIN],
                               .positions = c->tensor[POSITIONS], .dx = c->tensor[Y],
                               .rotary_dim = case_int(c, "rotary_dim"),
                               .interleaved = case_int(c, "interleaved") != 0);
    return workspace_bytes != NULL ? tsr_rope_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_rope_backward(ctx, &args);
}

static double num_tokens(const struct op_case *c) {
    return case_real(c, "seqlen") * (is_packed(c) ? 1 : case_real(c, "batch"));
}

// Four multiplications and two additions per two elements.
static double flops(const struct op_case *c) {
    return 3 * num_tokens(c) * case_real(c, "num_heads") * (double)rotary_dim(c);
}

static void randomize(struct rng *rng, struct op_case *c) {
    int64_t head_dim = rng_chance(rng, 0.9) ? rng_int(rng, 2, 256) : rng_dim(rng, 600);
    if (head_dim == 1) head_dim = 2;
    c->param[0] = (double)rng_int(rng, rng_chance(rng, 0.03) ? 0 : 1, 4);
    c->param[1] = (double)rng_dim(rng, 60);
    c->param[2] = (double)rng_int(rng, rng_chance(rng, 0.03) ? 0 : 1, 6);
    c->param[3] = (double)head_dim;
    bool is_partial = head_dim % 2 != 0 || rng_chance(rng, 0.4);
    c->param[4] = is_partial && head_dim > 1 ? (double)(2 * rng_int(rng, 1, head_dim / 2)) : 0;
    c->is_present[POSITIONS] = rng_chance(rng, 0.5);
    int64_t least = c->is_present[POSITIONS] ? 1 : (int64_t)c->param[1];
    c->param[5] = rng_chance(rng, 0.5) ? (double)(least + rng_int(rng, 0, 50)) : 0;
    c->param[6] = (double)rng_chance(rng, 0.5);
    c->param[7] = (double)rng_chance(rng, 0.3);
}

// The tables have cosines and sines of random angles; positions lie within the tables.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    (void)fill;
    if (slot == X) return false;
    int64_t last = num_positions(c) - 1;
    for (int64_t i = 0; i < case_numel(c, slot); i++)
        values[i] = slot == POSITIONS ? (double)rng_int(rng, 0, last) : sin(100 * rng_uniform(rng));
    return true;
}

static int64_t position_of(const struct op_case *c, int64_t token) {
    if (!c->is_present[POSITIONS]) return token % case_int(c, "seqlen");
    return (int64_t)tsr_load(TSR_I32, c->tensor[POSITIONS].data, token);
}

// Two products, one of which is rounded, and their sum: 4 u (|a cos| + |b sin|).
static void bound(const struct op_case *c, int slot, double *bound) {
    (void)slot;
    int64_t turning = rotary_dim(c), half = turning / 2, dim = case_int(c, "head_dim");
    int64_t num_heads = case_int(c, "num_heads");
    bool is_interleaved = case_int(c, "interleaved") != 0;
    const double *x = c->tensor[X].data, *cosines = c->tensor[COS].data,
                 *sines = c->tensor[SIN].data;
    for (int64_t t = 0; t < (int64_t)num_tokens(c); t++) {
        const double *cosine = cosines + position_of(c, t) * half;
        const double *sine = sines + position_of(c, t) * half;
        for (int64_t h = 0; h < num_heads; h++, x += dim, bound += dim) {
            for (int64_t i = 0; i < half; i++) {
                int64_t first = is_interleaved ? 2 * i : i;
                int64_t second = is_interleaved ? 2 * i + 1 : i + half;
                double a = fabs(x[first]), b = fabs(x[second]);
                bound[first] = 4 * u32 * (a * fabs(cosine[i]) + b * fabs(sine[i])) + 0x1p-147;
                bound[second] = 4 * u32 * (b * fabs(cosine[i]) + a * fabs(sine[i])) + 0x1p-147;
            }
            for (int64_t i = turning; i < dim; i++) bound[i] = 0; // copied
        }
    }
}

static const struct edge_case edges[] = {
    {"no tokens", "batch=2 seqlen=0 num_heads=3 head_dim=64", FILL_NORMAL, LAYOUT_RANDOM},
    {"no batch", "batch=0 seqlen=5 num_heads=3 head_dim=64", FILL_NORMAL, LAYOUT_RANDOM},
    {"no heads", "batch=2 seqlen=5 num_heads=0 head_dim=64", FILL_NORMAL, LAYOUT_RANDOM},
    {"head_dim 0", "batch=2 seqlen=5 num_heads=3 head_dim=0", FILL_NORMAL, LAYOUT_RANDOM},
    {"one pair", "batch=2 seqlen=5 num_heads=3 head_dim=2", FILL_NORMAL, LAYOUT_RANDOM},
    {"one pair of three", "batch=2 seqlen=5 num_heads=3 head_dim=3 rotary_dim=2 interleaved=1",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"odd head_dim", "batch=1 seqlen=9 num_heads=3 head_dim=255 rotary_dim=254", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"head_dim 96", "batch=2 seqlen=7 num_heads=4 head_dim=96", FILL_NORMAL, LAYOUT_RANDOM},
    {"head_dim 256 interleaved", "batch=2 seqlen=7 num_heads=2 head_dim=256 interleaved=1",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"half of the head", "batch=2 seqlen=7 num_heads=2 head_dim=80 rotary_dim=32", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"packed", "seqlen=37 num_heads=3 head_dim=64 packed=1 +positions num_positions=9", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"large tables", "batch=1 seqlen=3 num_heads=2 head_dim=8 num_positions=20000 +positions",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"decode", "batch=17 seqlen=1 num_heads=8 head_dim=128 num_positions=512 +positions",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"huge", "batch=2 seqlen=7 num_heads=2 head_dim=40", FILL_HUGE, LAYOUT_RANDOM},
    {"infinite", "batch=2 seqlen=30 num_heads=2 head_dim=40", FILL_INFINITE, LAYOUT_RANDOM},
    {"NaN in places", "batch=2 seqlen=30 num_heads=2 head_dim=40 interleaved=1", FILL_NAN,
     LAYOUT_RANDOM},
    {"beyond 2^31 elements", "batch=3 seqlen=4 num_heads=2 head_dim=34", FILL_NORMAL, LAYOUT_FAR},
    {"one sequence for all", "batch=3 seqlen=5 num_heads=2 head_dim=34 +positions", FILL_NORMAL,
     LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {
    "batch=4 seqlen=4096 num_heads=32 head_dim=128",
    "batch=16 seqlen=2048 num_heads=16 head_dim=64",
    "batch=4 seqlen=4096 num_heads=32 head_dim=128 interleaved=1",
    "batch=4 seqlen=4096 num_heads=32 head_dim=80 rotary_dim=32", NULL};

const struct op_spec rope_forward_spec = {
    .op = "rope_forward",
    .command = "rope",
    .pass = "forward",
    .params = params,
    .slots = forward_slots,
    .shape = shape,
    .infer = infer,
    .call = forward_call,
    .flops = flops,
    .randomize = randomize,
    .fill = fill,
    .bound = bound,
    .edges = edges,
    .standard = standard,
    .baseline = "unfused",
};

const struct op_spec rope_backward_spec = {
    .op = "rope_backward",
    .command = "rope",
    .pass = "backward",
    .params = params,
    .slots = backward_slots,
    .shape = shape,
    .infer = infer,
    .call = backward_call,
    .flops = flops,
    .randomize = randomize,
    .fill = fill,
    .bound = bound,
    .edges = edges,
    .standard = standard,
    .baseline = "unfused",
};
