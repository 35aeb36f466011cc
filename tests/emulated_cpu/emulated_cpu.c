// SPDX-License-Identifier: Apache-2.0
// The emulated processor: its cpuid, in place of src/cpu/cpu_cpuid.c, and its tiles. EMULATED_CPU names it:
//
//   skylake            only AVX-512
//   zen4               also vdpbf16ps, twice as fast as FMA, as on AMD
//   sapphire_rapids    also vdpbf16ps, no faster than FMA, and AMX; the default
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>

#include "cpu/cpu_detect.h"

static bool is_cpu(const char *name) {
    const char *wanted = getenv("EMULATED_CPU");
    return strcmp(wanted != NULL && *wanted != '\0' ? wanted : "sapphire_rapids", name) == 0;
}

struct tsri_cpuid tsri_read_cpuid(void) {
    // The bits of cpuid that are checked, and the registers of AVX, AVX-512 and AMX in XCR0.
    struct tsri_cpuid id = {.leaf1_c = TSRI_CPUID_OSXSAVE | 1u << 28 | 1u << 12 | 1u << 29,
                            .leaf7_b = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31,
                            .xcr0 = 0xe7};
    if (is_cpu("skylake")) return id;
    id.leaf7_1_a = 1u << 5;
    id.is_amd = is_cpu("zen4");
    if (id.is_amd) return id;
    if (!is_cpu("sapphire_rapids")) {
        fprintf(stderr, "EMULATED_CPU is skylake, zen4 or sapphire_rapids\n");
        abort();
    }
    id.leaf7_d = 1u << 22 | 1u << 24;
    id.xcr0 |= 0x60000;
    return id;
}

bool tsri_ask_for_tiles(void) { return true; }

// ---- Tiles ---------------------------------------------------------------------------------------

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

// The layout that ldtilecfg reads.
struct config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static _Thread_local struct {
    struct config config;
    struct {
        char row[ROWS][ROW_BYTES];
    } tile[TILES];
} state;

static void fault(const char *what) {
    fprintf(stderr, "emulated AMX: %s\n", what);
    abort();
}

static void check_tile(int tile) {
    if (tile < 0 || tile >= TILES) fault("no such tile");
    if (state.config.palette == 0) fault("tiles that are not configured");
    if (state.config.rows[tile] == 0 || state.config.row_bytes[tile] == 0) fault("an empty tile");
}

void emulated_tile_configure(const void *config) {
    memset(&state, 0, sizeof state);
    memcpy(&state.config, config, sizeof state.config);
    if (state.config.palette > 1 || state.config.start_row != 0) fault("an unknown configuration");
    for (int i = 0; i < TILES; i++)
        if (state.config.rows[i] > ROWS || state.config.row_bytes[i] > ROW_BYTES)
            fault("a tile that is too large");
        else if ((state.config.rows[i] == 0) != (state.config.row_bytes[i] == 0))
            fault("a tile with rows or columns alone");
    static const char zeros[32];
    // Bytes 2 to 15, 32 to 47 (sizes of tiles 8 to 15) and 56 to 63 (their rows) are reserved.
    const char *bytes = config;
    if (memcmp(bytes + 2, zeros, 14) != 0 || memcmp(bytes + 32, zeros, 16) != 0 ||
        memcmp(bytes + 56, zeros, 8) != 0)
        fault("reserved bytes of a configuration");
}

void emulated_tile_release(void) { memset(&state, 0, sizeof state); }

void emulated_tile_zero(int tile) {
    check_tile(tile);
    memset(&state.tile[tile], 0, sizeof state.tile[tile]);
}

void emulated_tile_load(int tile, const void *base, int64_t stride) {
    emulated_tile_zero(tile);
    for (int i = 0; i < state.config.rows[tile]; i++)
        memcpy(state.tile[tile].row[i], (const char *)base + i * stride,
               state.config.row_bytes[tile]);
}

void emulated_tile_store(int tile, void *base, int64_t stride) {
    check_tile(tile);
    for (int i = 0; i < state.config.rows[tile]; i++)
        memcpy((char *)base + i * stride, state.tile[tile].row[i], state.config.row_bytes[tile]);
}

// tdpbf16ps: a row of sums has 16 floats. Pairs of a's row are multiplied with rows of pairs of b and added up
// separately from the old sums. All tiles here are full.
void emulated_tile_product(int sums, int a, int b) {
    check_tile(sums), check_tile(a), check_tile(b);
    if (sums == a || sums == b || a == b) fault("a product of one tile with itself");
    if (state.config.row_bytes[sums] != state.config.row_bytes[b] ||
        state.config.rows[a] != state.config.rows[sums] ||
        state.config.row_bytes[a] != 4 * state.config.rows[b])
        fault("tiles that do not match");
    for (int m = 0; m < state.config.rows[sums]; m++) {
        emulated_floats even = {0}, odd = {0}, sum;
        for (int k = 0; k < state.config.rows[b]; k++) {
            int32_t pair;
            memcpy(&pair, state.tile[a].row[m] + 4 * k, sizeof pair);
            __m512i x = _mm512_set1_epi32(pair), y = _mm512_loadu_si512(state.tile[b].row[k]);
            even = emulated_add_product(even, emulated_even(x), emulated_even(y));
            odd = emulated_add_product(odd, emulated_odd(x), emulated_odd(y));
        }
        memcpy(&sum, state.tile[sums].row[m], sizeof sum);
        sum = emulated_flush(emulated_flush(sum) + emulated_flush(even + odd));
        memcpy(state.tile[sums].row[m], &sum, sizeof sum);
    }
}
