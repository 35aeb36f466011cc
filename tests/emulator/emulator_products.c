// SPDX-License-Identifier: Apache-2.0
// The tensor cores: fragments in PTX's layout, sums in fp32. Each warp of a warpgroup computes its own 16 rows, when a
// product is issued or when it is waited for.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "emulator_device.h"
#include "emulator_formats.h"

enum { MAX_COLUMNS = 256, MAX_DEPTH = 32, ROWS = 16 };

static float widen(const unsigned char *at, int format) {
    unsigned bits;
    unsigned short half;
    switch (format) {
    case EMULATOR_E4M3: return emulator_of_e4m3(*at);
    case EMULATOR_E5M2: return emulator_of_e5m2(*at);
    case EMULATOR_TF32: memcpy(&bits, at, sizeof bits); return emulator_float(bits & ~0x1fffu);
    default:
        memcpy(&half, at, sizeof half);
        return format == EMULATOR_BF16 ? emulator_of_bf16(half) : emulator_of_f16(half);
    }
}

static int bytes_of(int format) {
    return format == EMULATOR_TF32 ? 4 : format == EMULATOR_BF16 || format == EMULATOR_F16 ? 2 : 1;
}

// ---- Matrices of 8 x 8 elements of 16 bits ----------------------------------------------------

static struct emulator_matrices *lane_of(struct warp *warp, int lane) {
    return warp->lanes[lane]->lane;
}

static void load_matrix(struct warp *warp, int m) {
    unsigned short x[8][8];
    for (int row = 0; row < 8; row++) {
        unsigned address = lane_of(warp, m * 8 + row)->address;
        if (address % 16 != 0)
            emulator_fail("ldmatrix of address 0x%x, no multiple of 16", address);
        memcpy(x[row], emulator_shared(address, 16), 16);
    }
    for (int lane = 0; lane < EMULATOR_WARP; lane++) {
        struct emulator_matrices *mine = lane_of(warp, lane);
        int g = lane / 4, t = lane % 4 * 2;
        *mine->x[m] = mine->is_transposed ? x[t][g] | (unsigned)x[t + 1][g] << 16
                                          : x[g][t] | (unsigned)x[g][t + 1] << 16;
    }
}

static void gather_matrix(struct warp *warp, int m, unsigned short x[8][8]) {
    for (int lane = 0; lane < EMULATOR_WARP; lane++) {
        struct emulator_matrices *mine = lane_of(warp, lane);
        int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < 2; i++)
            *(mine->is_transposed ? &x[t + i][g] : &x[g][t + i]) =
                (unsigned short)(*mine->x[m] >> 16 * i);
    }
}

static void store_matrix(struct warp *warp, int m) {
    unsigned short x[8][8];
    gather_matrix(warp, m, x);
    for (int row = 0; row < 8; row++) {
        unsigned address = lane_of(warp, m * 8 + row)->address;
        if (address % 16 != 0)
            emulator_fail("stmatrix to address 0x%x, no multiple of 16", address);
        memcpy(emulator_shared(address, 16), x[row], 16);
    }
}

void emulator_do_matrices(struct warp *warp, int instruction) {
    int count = lane_of(warp, 0)->count;
    for (int m = 0; m < count; m++) {
        unsigned short x[8][8];
        if (instruction == EMULATOR_LOAD_MATRICES) {
            load_matrix(warp, m);
        } else if (instruction == EMULATOR_STORE_MATRICES) {
            store_matrix(warp, m);
        } else {
            gather_matrix(warp, m, x);
            for (int lane = 0; lane < EMULATOR_WARP; lane++) {
                int g = lane / 4, t = lane % 4 * 2;
                *lane_of(warp, lane)->x[0] = x[g][t] | (unsigned)x[g][t + 1] << 16;
            }
        }
    }
}

// ---- Products of a warp -----------------------------------------------------------------------

// Register r of a (rows g, then g + 8; then the second half of k) holds neighbouring elements along k.
static void gather_a(float a[ROWS][MAX_DEPTH], const unsigned *const registers[EMULATOR_WARP],
                     int format, int depth) {
    int bytes = bytes_of(format), each = 4 / bytes, count = depth * bytes / 8;
    for (int lane = 0; lane < EMULATOR_WARP; lane++)
        for (int r = 0; r < count; r++)
            for (int i = 0; i < each; i++) {
                int k = lane % 4 * each + r / 2 * 4 * each + i;
                a[lane / 4 + r % 2 * 8][k] =
                    widen((const unsigned char *)&registers[lane][r] + i * bytes, format);
            }
}

// c (16 x columns) += a b^T. b has a line per k.
static void multiply(float *c, const float a[ROWS][MAX_DEPTH], const float b[][MAX_COLUMNS],
                     int columns, int depth) {
    for (int row = 0; row < ROWS; row++)
        for (int k = 0; k < depth; k++) {
            float x = a[row][k];
            float *restrict to = c + row * columns;
            for (int n = 0; n < columns; n++) to[n] += x * b[k][n];
        }
}

void emulator_do_mma(struct warp *warp) {
    const struct emulator_mma *first = warp->lanes[0]->lane;
    float a[ROWS][MAX_DEPTH], b[MAX_DEPTH][8], c[ROWS][8];
    const unsigned *registers[EMULATOR_WARP];
    int bytes = bytes_of(first->format_b), each = 4 / bytes, depth = first->depth;
    for (int lane = 0; lane < EMULATOR_WARP; lane++) {
        const struct emulator_mma *mine = warp->lanes[lane]->lane;
        registers[lane] = mine->a;
        for (int r = 0; r < depth * bytes / 16; r++)
            for (int i = 0; i < each; i++)
                b[lane % 4 * each + r * 4 * each + i][lane / 4] =
                    widen((const unsigned char *)&mine->b[r] + i * bytes, mine->format_b);
        for (int i = 0; i < 4; i++) c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = mine->c[i];
    }
    gather_a(a, registers, first->format_a, depth);
    for (int row = 0; row < ROWS; row++)
        for (int k = 0; k < depth; k++)
            for (int n = 0; n < 8; n++) c[row][n] += a[row][k] * b[k][n];
    for (int lane = 0; lane < EMULATOR_WARP; lane++) {
        const struct emulator_mma *mine = warp->lanes[lane]->lane;
        for (int i = 0; i < 4; i++) *mine->d[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}

// ---- Tiles in shared memory, by their descriptors ---------------------------------------------

struct tile {
    unsigned start, leading, stride; // in bytes
    int swizzle;                     // bytes per permuted line: 16 (none), 32, 64 or 128
};

static struct tile read_descriptor(unsigned long long d) {
    static const int swizzles[] = {16, 128, 64, 32};
    if ((d >> 49 & 7) != 0) emulator_fail("a descriptor with a base offset, which is not emulated");
    return (struct tile){(unsigned)(d & 0x3fff) << 4, (unsigned)(d >> 16 & 0x3fff) << 4,
                         (unsigned)(d >> 32 & 0x3fff) << 4, swizzles[d >> 62]};
}

// The offset of byte `at` of a tile after address bits from 7 on permute the 16-byte pieces of its lines.
static unsigned permuted(unsigned at, int swizzle) {
    unsigned pieces = (unsigned)swizzle / 16;
    return at ^ ((at >> 7 & (pieces - 1)) << 4);
}

// The offset of element (mn, k). Lines along k: a group is 8 lines of `swizzle` bytes, and the next eight of mn are
// `stride` further. Without permutation the next 16 bytes of k are `leading` further. Lines along mn: a line has
// `swizzle` bytes of mn, a group has eight k, the next eight k are `stride` further, and the next line of mn is
// `leading` further.
static unsigned place_of(const struct tile *t, int is_mn, int mn, int k, int bytes) {
    unsigned width = (unsigned)t->swizzle, at;
    if (!is_mn) {
        unsigned along = (unsigned)(k * bytes);
        at = t->start + (unsigned)(mn / 8) * t->stride + (unsigned)(mn % 8) * width + along % width;
        if (width == 16)
            at += along / width * t->leading;
        else if (along >= width)
            emulator_fail("a product's depth is beyond its permuted line");
    } else {
        unsigned along = (unsigned)(mn * bytes);
        if (width == 16)
            emulator_fail("a tile with lines along m or n that are not permuted is not emulated");
        at = t->start + along / width * t->leading + (unsigned)(k / 8) * t->stride +
             (unsigned)(k % 8) * width + along % width;
    }
    return permuted(at, t->swizzle);
}

// Widens the 16 bytes at `from` and stores them `step` floats apart.
static void widen_piece(float *to, int step, const unsigned char *from, int format) {
    const int bytes = bytes_of(format);
    for (int i = 0; i < 16 / bytes; i++) to[i * step] = widen(from + i * bytes, format);
}

// Stores to[k][mn], with `line` floats per k.
static void load_tile(float *to, int line, struct tile t, int is_mn, int first, int count,
                      int depth, int format) {
    const int bytes = bytes_of(format), piece = 16 / bytes;
    if (is_mn && bytes != 2)
        emulator_fail("a tile with lines along m or n and elements of %d bytes", bytes);
    for (int k = 0; k < depth; k += is_mn ? 1 : piece)
        for (int mn = 0; mn < count; mn += is_mn ? piece : 1)
            widen_piece(to + k * line + mn, is_mn ? 1 : line,
                        emulator_shared(place_of(&t, is_mn, first + mn, k, bytes), 16), format);
}

// ---- Products of a warpgroup ------------------------------------------------------------------

static void do_product(struct warp *warp, const struct emulator_wgmma lanes[EMULATOR_WARP],
                       float *const *const results[EMULATOR_WARP]) {
    static float a[ROWS][MAX_DEPTH], across[MAX_DEPTH][ROWS], b[MAX_DEPTH][MAX_COLUMNS];
    static float c[ROWS * MAX_COLUMNS];
    const struct emulator_wgmma *first = &lanes[0];
    int columns = first->columns, row = warp->first_thread / EMULATOR_WARP % 4 * ROWS;
    if (first->a_is_in_registers) {
        const unsigned *registers[EMULATOR_WARP];
        for (int lane = 0; lane < EMULATOR_WARP; lane++) registers[lane] = lanes[lane].a;
        gather_a(a, registers, first->format_a, first->depth);
    } else {
        load_tile(across[0], ROWS, read_descriptor(first->a_tile), first->a_is_mn, row, ROWS,
                  first->depth, first->format_a);
        for (int m = 0; m < ROWS; m++)
            for (int k = 0; k < first->depth; k++) a[m][k] = across[k][m];
    }
    load_tile(b[0], MAX_COLUMNS, read_descriptor(first->b_tile), first->b_is_mn, 0, columns,
              first->depth, first->format_b);
    if (first->a_sign * first->b_sign != 1)
        for (int m = 0; m < ROWS; m++)
            for (int k = 0; k < first->depth; k++) a[m][k] = -a[m][k];
    for (int lane = 0; lane < EMULATOR_WARP; lane++)
        for (int i = 0; i < columns / 2; i++)
            c[(lane / 4 + i / 2 % 2 * 8) * columns + i / 4 * 8 + lane % 4 * 2 + i % 2] =
                first->is_more ? *results[lane][i] : 0;
    multiply(c, a, b, columns, first->depth);
    for (int lane = 0; lane < EMULATOR_WARP; lane++)
        for (int i = 0; i < columns / 2; i++)
            *results[lane][i] =
                c[(lane / 4 + i / 2 % 2 * 8) * columns + i / 4 * 8 + lane % 4 * 2 + i % 2];
}

static void check_product(const struct emulator_wgmma *x, const struct warp *warp) {
    if (!warp->is_fenced) emulator_fail("wgmma without a wgmma.fence before it");
    if (x->columns % 8 != 0 || x->columns > MAX_COLUMNS || x->depth * bytes_of(x->format_a) != 32)
        emulator_fail("wgmma of the shape m64n%dk%d", x->columns, x->depth);
}

// Products run in order: if one is pending, the following ones wait too.
void emulator_do_wgmma(struct warp *warp) {
    float *const *results[EMULATOR_WARP];
    const struct emulator_wgmma *first = warp->lanes[0]->lane;
    struct product *product = calloc(1, sizeof *product);
    size_t count = (size_t)first->columns / 2;
    check_product(first, warp);
    for (int i = 0; i < EMULATOR_WARP; i++) {
        product->lanes[i] = *(const struct emulator_wgmma *)warp->lanes[i]->lane;
        results[i] = product->lanes[i].d;
        if (product->lanes[i].b_tile != first->b_tile || product->lanes[i].a_tile != first->a_tile)
            emulator_fail("wgmma whose lanes have different descriptors");
    }
    if (warp->products == NULL && !emulator_is_late()) {
        do_product(warp, product->lanes, results);
        free(product);
        return;
    }
    product->results = malloc(EMULATOR_WARP * count * sizeof *product->results);
    for (int i = 0; i < EMULATOR_WARP; i++)
        memcpy(product->results + (size_t)i * count, results[i], count * sizeof *product->results);
    product->group = warp->product_group;
    *warp->last_product = product;
    warp->last_product = &product->next;
}

static void remove_first(struct warp *warp) {
    struct product *product = warp->products;
    warp->products = product->next;
    if (warp->products == NULL) warp->last_product = &warp->products;
    free(product->results);
    free(product);
}

void emulator_do_wgmma_wait(struct warp *warp, int groups) {
    while (warp->products != NULL &&
           warp->product_group - warp->products->group > (unsigned)groups) {
        struct product *product = warp->products;
        float *const *results[EMULATOR_WARP];
        for (int i = 0; i < EMULATOR_WARP; i++)
            results[i] = product->results + i * (product->lanes[0].columns / 2);
        do_product(warp, product->lanes, results);
        remove_first(warp);
    }
}

void emulator_products_drop(struct warp *warp) {
    while (warp->products != NULL) remove_first(warp);
}
