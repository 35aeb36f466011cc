// SPDX-License-Identifier: Apache-2.0
#include "args_build.h"

#include <math.h>

struct head { // the start of every args struct
    TSR_CALL_FIELDS;
};

static const char letters[] = "bqkgdersncmvpRx"; // x: h / g
static const int defaults[] = {2, 3, 5, 1, 8, 8, 3, 2, 4, 17, 16, 7, 6, 4, 2};

struct sizes {
    int64_t of[128]; // by letter
};

// ---- Sizes ------------------------------------------------------------------------------------

static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

// One in thirty of the changed sizes may have any value. Such a call ends after its _prepare.
static void choose_sizes(struct fuzz_bytes *in, int form, struct sizes *sizes) {
    static const int64_t rare[] = {0, 64, 128, 255, 256, 257};
    int64_t *of = sizes->of;
    memset(sizes, 0, sizeof *sizes);
    uint16_t changed = (uint16_t)fuzz_word(in, 2);
    for (int i = 0; letters[i] != 0; i++) {
        uint8_t byte = changed >> i & 1 ? fuzz_byte(in) : 0;
        of[(int)letters[i]] = byte == 0     ? defaults[i]
                              : byte <= 200 ? byte % 10
                              : byte < 241  ? byte - 190
                              : byte < 247  ? rare[byte - 241]
                                            : fuzz_wild(in);
    }
    of['1'] = 1;
    of['t'] = form == 3; // both operands are transposed
    of['h'] = times(of['g'], of['x']);
    of['B'] = of['b'] < INT64_MAX ? of['b'] + 1 : of['b'];
    of['V'] = of['v'] < INT64_MAX ? of['v'] + 1 : of['v'];
    of['D'] = times(of['x'] >= 0 && of['x'] < INT32_MAX ? of['x'] + 2 : 2, times(of['g'], of['d']));
    of['O'] = times(of['h'], of['d']);
    of['T'] = times(2, of['R']);
    of['A'] = times(of['q'], of['s']);
    of['N'] = times(2, of['n']);
    of['M'] = times(2, of['m']);
    of['F'] = (int64_t[]){TSR_QUANT_INT8, TSR_QUANT_INT4, TSR_QUANT_Q8_0, TSR_QUANT_MXFP4}[form];
    of['H'] = of['c'] - of['c'] / 2;
    of['Q'] = times(34, of['m']);
    of['U'] = times(16, of['m']);
    of['W'] = times(32, of['m']);
}

// Returns the letters of one form, such as the second of "bqhd|qhd": at most TSR_MAX_DIMS.
static int find_form(const char *forms, int form, const char **first) {
    *first = forms;
    for (; form > 0 && strchr(*first, '|') != NULL; form--) *first = strchr(*first, '|') + 1;
    return (int)strcspn(*first, "|");
}

// ---- Tensors ----------------------------------------------------------------------------------

static void lay_out(tsr_tensor *t, const int order[TSR_MAX_DIMS], int64_t pad) {
    int64_t stride = 1;
    for (int n = t->ndim - 1; n >= 0 && t->ndim <= TSR_MAX_DIMS; n--) {
        t->stride[order[n]] = stride;
        int64_t count = t->shape[order[n]] > 0 ? t->shape[order[n]] : 1;
        if (__builtin_mul_overflow(stride, count, &stride)) stride = INT64_MAX;
        if (n == t->ndim - 1 && stride < INT64_MAX - pad) stride += pad;
    }
}

// The dtypes of a call's tensors.
struct types {
    tsr_dtype main;
    bool is_fp8, is_weight_f32;
};

static struct types types_of(const struct args_op *op, tsr_dtype main, bool is_weight_f32) {
    struct types types = {main, main == TSR_E4M3, is_weight_f32};
    for (const struct args_field *field = op->fields; field->name != NULL; field++)
        if (field->type == 'e' && types.is_fp8) types.main = TSR_BF16;
    return types;
}

static tsr_tensor plain_tensor(const struct args_field *field, int form, const struct sizes *sizes,
                               const struct types *types) {
    static const int order[TSR_MAX_DIMS] = {0, 1, 2, 3, 4};
    tsr_tensor t = {0};
    const char *letter;
    int ndim = find_form(field->form, form, &letter);
    if (ndim == 0 || (field->type == 'q' && !types->is_fp8)) return t;
    const bool is_scale_u8 = field->type == 'S' && sizes->of['F'] == TSR_QUANT_MXFP4;
    const bool is_wide = field->type == 's' || field->type == 'S';
    t.dtype = field->type == 'i'                           ? TSR_I32
              : field->type == 'u' || is_scale_u8          ? TSR_U8
              : field->type == 'q'                         ? TSR_F32
              : field->type == '8'                         ? TSR_E4M3
              : field->type == 'e' && types->is_fp8        ? TSR_E4M3
              : is_wide && types->main != TSR_F64          ? TSR_F32
              : field->type == 'w' && types->is_weight_f32 ? TSR_F32
                                                           : types->main;
    t.ndim = ndim;
    for (int i = 0; i < ndim; i++) t.shape[i] = sizes->of[(int)letter[i]];
    lay_out(&t, order, 0);
    return t;
}

// Makes one change. others: the tensors before this one.
static void bend(struct fuzz_bytes *in, int kind, tsr_tensor *t, const tsr_tensor *others,
                 int num_others) {
    int order[TSR_MAX_DIMS] = {0, 1, 2, 3, 4};
    int axis = kind > 4 ? fuzz_byte(in) % TSR_MAX_DIMS : 0;
    uint8_t byte;
    switch (kind) {
    case 1: *t = (tsr_tensor){0}; break;
    case 2:
        if (num_others > 0) *t = others[fuzz_byte(in) % num_others];
        break;
    case 3:
        if (num_others > 0) t->data = others[fuzz_byte(in) % num_others].data;
        break;
    case 4:
        byte = fuzz_byte(in);
        t->dtype = byte < 200 ? (tsr_dtype)(byte % (TSR_DTYPE_COUNT + 1))
                              : (tsr_dtype)(int32_t)fuzz_wild(in);
        break;
    case 5: t->device = (tsr_device){(tsr_device_type)(axis - 1), (int32_t)fuzz_wild(in)}; break;
    case 6:
        byte = fuzz_byte(in);
        t->ndim = byte < 200 ? byte % (TSR_MAX_DIMS + 3) - 1 : (int32_t)fuzz_wild(in);
        break;
    case 7: t->shape[axis] = fuzz_wild(in); break;
    case 8: t->stride[axis] = fuzz_wild(in); break;
    case 9: t->shape[axis] = fuzz_byte(in) % 64; break;
    case 10: t->stride[axis] = fuzz_byte(in); break;
    case 11: lay_out(t, order, axis + 1); break;
    case 12:
        if (t->ndim < 2 || t->ndim > TSR_MAX_DIMS) break;
        byte = fuzz_byte(in);
        axis %= t->ndim;
        order[axis] = byte % t->ndim;
        order[byte % t->ndim] = axis;
        lay_out(t, order, byte / 64);
        break;
    case 13: t->data = args_arena + fuzz_word(in, 2) / 4 * 4; break;
    case 14: t->data = args_arena + fuzz_word(in, 2); break;
    default: t->data = (void *)(uintptr_t)(axis == 0 ? 0 : (uint64_t)fuzz_wild(in));
    }
}

// Places the tensor after the earlier ones in the arena while there is room.
static void find_room(tsr_tensor *t, int64_t *used) {
    int64_t begin, end;
    t->data = args_arena + *used;
    if (!args_extent(t, &begin, &end) || begin == end) return;
    if (begin < *used) // negative strides
        t->data = (void *)((uintptr_t)t->data + (uintptr_t)(*used - begin));
    int64_t next = (*used + end - begin + 63) / 64 * 64 + 64;
    if (next < ARENA_BYTES) *used = next;
}

static tsr_tensor choose_tensor(struct fuzz_bytes *in, tsr_tensor t, const tsr_tensor *others,
                                int num_others, int64_t *used) {
    static uint8_t unset[1];
    t.data = unset;
    for (int n = 0; n < 4; n++) {
        uint8_t control = fuzz_byte(in);
        if (control % 16 != 0) bend(in, control % 16, &t, others, num_others);
        if (control < 128) break;
    }
    if (t.data == unset) find_room(&t, used);
    return t;
}

static void fill_indices(const tsr_tensor *t, int kind, struct fuzz_bytes *in) {
    int64_t begin, end;
    if (t->dtype != TSR_I32 || !args_extent(t, &begin, &end)) return;
    for (int64_t at = begin, i = 0; at + 4 <= end; at += 4, i++) {
        int32_t value = kind == 0   ? (int32_t)(i % 3)
                        : kind == 1 ? (int32_t)(2 * i)
                                    : (int32_t)fuzz_wild(in);
        memcpy(args_arena + at, &value, sizeof value);
    }
}

// ---- Numbers ----------------------------------------------------------------------------------

static double choose_real(struct fuzz_bytes *in) {
    static const double values[] = {0,    1,    -1,       0.5,       1e-5,        0.999, 3,
                                    1e30, -1e3, HUGE_VAL, -HUGE_VAL, (double)NAN, 1e-42, 1e300};
    uint8_t kind = fuzz_byte(in);
    if (kind < 8 * sizeof values / sizeof *values) return values[kind / 8];
    uint64_t bits = fuzz_word(in, 8);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void set_number(struct fuzz_bytes *in, const struct args_field *field,
                       const struct sizes *sizes, char *args) {
    char *to = args + field->offset;
    uint8_t control = fuzz_byte(in);
    int64_t plain = field->form != NULL ? sizes->of[(int)*field->form] : 0;
    int64_t whole = control < 64 && plain < INT32_MAX ? plain + control : fuzz_wild(in);
    int32_t small = (int32_t)whole;
    if (field->kind == ARGS_DOUBLE || field->kind == ARGS_FLOAT) {
        double real = control < 64 ? 0 : choose_real(in);
        float single = fabs(real) < 3e38 || !isfinite(real) ? (float)real : 3e38f;
        if (field->kind == ARGS_DOUBLE)
            memcpy(to, &real, sizeof real);
        else
            memcpy(to, &single, sizeof single);
    } else if (field->kind == ARGS_INT64) {
        memcpy(to, &whole, sizeof whole);
    } else {
        memcpy(to, &small, sizeof small);
    }
}

// ---- The struct -------------------------------------------------------------------------------

// 0 is the struct in its known size. Other bytes truncate it, extend it with or without content, or set any size.
static void choose_bytes(struct fuzz_bytes *in, struct args_case *c, const char *plain) {
    enum { MOST = 65536 };
    uint8_t kind = fuzz_byte(in);
    size_t size = c->op->bytes;
    if (kind >= 128 && kind < 192)
        size = fuzz_word(in, 2) % (size + 1);
    else if (kind >= 192 && kind < 240)
        size += fuzz_byte(in);
    else if (kind >= 240)
        size = (size_t)fuzz_wild(in);
    bool is_readable = size >= sizeof(size_t) && size <= MOST;
    c->args_bytes = is_readable ? size : sizeof(size_t);
    c->args = malloc(c->args_bytes);
    fuzz_require(c->args != NULL);
    memset(c->args, 0, c->args_bytes);
    memcpy(c->args, plain, c->args_bytes < c->op->bytes ? c->args_bytes : c->op->bytes);
    memcpy(c->args, &size, sizeof size);
    c->is_illegal |= !is_readable || size % sizeof(size_t) != 0;
    if (c->args_bytes > c->op->bytes && kind % 2 == 1) {
        ((char *)c->args)[c->op->bytes + fuzz_byte(in) % (c->args_bytes - c->op->bytes)] = 1;
        c->is_illegal = true;
    }
}

static const char *choose_variant(struct fuzz_bytes *in, struct args_case *c) {
    static const char *const wrong[] = {"", "no such", "%s%n"};
    int index = fuzz_byte(in) % 16;
    tsr_variant_info info;
    if (index == 0) return NULL;
    if (index <= tsr_variant_count(c->op->name)) {
        fuzz_require(tsr_variant_info_get(c->op->name, index - 1, &info) == TSR_OK);
        return info.name;
    }
    if (index < 13) return NULL;
    c->is_illegal = true;
    return wrong[index - 13];
}

void args_set_workspace(struct args_case *c, void *workspace, size_t bytes) {
    struct head head = {0};
    size_t count = c->args_bytes < sizeof head ? c->args_bytes : sizeof head;
    memcpy(&head, c->args, count);
    head.workspace = workspace;
    head.workspace_bytes = bytes;
    memcpy(c->args, &head, count);
}

void args_build(struct args_case *c, const uint8_t *data, size_t bytes) {
    struct fuzz_bytes in_bytes = {data, data + bytes}, *in = &in_bytes;
    *c = (struct args_case){.op = args_op_named(tsr_op_name(fuzz_byte(in) % tsr_op_count()))};
    fuzz_require(c->op != NULL); // the operation needs a row in args_table.c
    int form = fuzz_byte(in), type_byte = fuzz_byte(in);
    c->context = form / ARGS_FORMS % (TSR_ISA_COUNT + 1);
    form %= ARGS_FORMS;
    static const tsr_dtype types[] = {TSR_F32,  TSR_BF16, TSR_F16, TSR_F64,
                                      TSR_E4M3, TSR_F32,  TSR_I32, TSR_BF16};
    const struct types of_call = types_of(c->op, types[type_byte % 8], type_byte & 8);

    struct head head = {.variant = choose_variant(in, c)};
    uint8_t options = fuzz_byte(in);
    head.flags = options & 64 ? (uint32_t)fuzz_wild(in) : options & 3u;
    c->is_illegal |= (head.flags & ~3u) != 0;
    c->workspace = options / 4 % 8;
    if (c->workspace > 4) c->workspace = 0;
    if (options & 128) head.workspace_bytes = (size_t)fuzz_wild(in); // with a NULL workspace

    struct sizes sizes;
    choose_sizes(in, form, &sizes);
    _Alignas(16) char plain[4096] = {0};
    fuzz_require(c->op->bytes <= sizeof plain);
    memcpy(plain, &head, sizeof head);
    int64_t used = 64;
    uint8_t contents = fuzz_byte(in);
    args_fill(contents % 4 % 3);
    tsr_tensor built[ARGS_MAX_TENSORS];
    for (const struct args_field *field = c->op->fields; field->name != NULL; field++) {
        if (field->kind != ARGS_INPUT && field->kind != ARGS_OUTPUT) {
            set_number(in, field, &sizes, plain);
            continue;
        }
        tsr_tensor t = plain_tensor(field, form, &sizes, &of_call);
        fuzz_require(c->num_tensors < ARGS_MAX_TENSORS);
        t = choose_tensor(in, t, built, c->num_tensors, &used);
        if (field->type == 'i') fill_indices(&t, contents / 4 % 8, in);
        memcpy(plain + field->offset, &t, sizeof t);
        built[c->num_tensors++] = t;
    }
    choose_bytes(in, c, plain);

    // Reads the struct as the library does: fields beyond its size are absent.
    memset(plain, 0, sizeof plain);
    memcpy(plain, c->args, c->args_bytes < c->op->bytes ? c->args_bytes : c->op->bytes);
    memcpy(&head, plain, sizeof head);
    c->is_all_known = c->are_indices_known = true;
    int n = 0;
    for (const struct args_field *field = c->op->fields; field->name != NULL; field++) {
        if (field->kind != ARGS_INPUT && field->kind != ARGS_OUTPUT) continue;
        tsr_tensor *t = &c->tensors[n];
        memcpy(t, plain + field->offset, sizeof *t);
        c->roles[n] = field->kind == ARGS_OUTPUT ? 'o' : 'i';
        c->is_known[n] = args_extent(t, &c->begin[n], &c->end[n]);
        c->is_all_known &= c->is_known[n];
        if (field->type == 'i') c->are_indices_known &= c->is_known[n];
        n++;
    }
}

void args_release(struct args_case *c) { free(c->args); }
