// SPDX-License-Identifier: Apache-2.0
#include "emulator_tensor_map.h"

#include <string.h>

static const char magic[8] = "EMUL-MAP";

struct packed {
    char magic[8];
    uint64_t data;
    uint32_t most[MAP_RANK]; // sizes minus 1
    uint64_t stride[MAP_RANK];
    uint8_t box[MAP_RANK]; // minus 1
    uint8_t rank, element_bytes, is_f32, is_tf32, is_swizzled;
};
_Static_assert(sizeof(struct packed) <= MAP_BYTES, "it fits");

int emulator_map_pack(void *to, const struct emulator_map *map) {
    struct packed p = {.data = (uintptr_t)map->data,
                       .rank = (uint8_t)map->rank,
                       .element_bytes = (uint8_t)map->element_bytes,
                       .is_f32 = (uint8_t)map->is_f32,
                       .is_tf32 = (uint8_t)map->is_tf32,
                       .is_swizzled = (uint8_t)map->is_swizzled};
    memcpy(p.magic, magic, sizeof magic);
    uint64_t line = (uint64_t)map->box[0] * (uint64_t)map->element_bytes;
    if ((uintptr_t)map->data % 16 != 0 || (uintptr_t)to % 64 != 0 || line % 16 != 0 ||
        (map->is_swizzled && line > 128))
        return 0;
    for (int i = 0; i < map->rank; i++) {
        if (map->size[i] == 0 || map->size[i] > UINT64_C(1) << 32) return 0;
        if (map->box[i] == 0 || map->box[i] > 256) return 0;
        if (i > 0 && (map->stride[i] % 16 != 0 || map->stride[i] >> 40 != 0)) return 0;
        p.most[i] = (uint32_t)(map->size[i] - 1);
        p.stride[i] = map->stride[i];
        p.box[i] = (uint8_t)(map->box[i] - 1);
    }
    memset(to, 0, MAP_BYTES);
    memcpy(to, &p, sizeof p);
    return 1;
}

const char *emulator_map_unpack(const void *from, int rank, struct emulator_map *map) {
    struct packed p;
    if ((uintptr_t)from % 64 != 0) return "a tensor map at an address that is no multiple of 64";
    memcpy(&p, from, sizeof p);
    if (memcmp(p.magic, magic, sizeof magic) != 0) return "a copy without a tensor map";
    if (p.rank != rank) return "a copy of another rank than its tensor map's";
    *map = (struct emulator_map){.data = (unsigned char *)(uintptr_t)p.data,
                                 .rank = p.rank,
                                 .element_bytes = p.element_bytes,
                                 .is_f32 = p.is_f32,
                                 .is_tf32 = p.is_tf32,
                                 .is_swizzled = p.is_swizzled};
    for (int i = 0; i < rank; i++) {
        map->size[i] = (uint64_t)p.most[i] + 1;
        map->stride[i] = p.stride[i];
        map->box[i] = p.box[i] + 1u;
    }
    return 0;
}

unsigned emulator_map_bytes(const struct emulator_map *map) {
    unsigned bytes = (unsigned)map->element_bytes;
    for (int i = 0; i < map->rank; i++) bytes *= map->box[i];
    return bytes;
}

// The address of a line of the box in memory, at the tensor's column 0; NULL outside the tensor.
static unsigned char *find_line(const struct emulator_map *map, const int *at, unsigned line) {
    unsigned char *place = map->data;
    for (int i = 1; i < map->rank; i++) {
        int64_t index = at[i] + (int64_t)(line % map->box[i]);
        line /= map->box[i];
        if (index < 0 || (uint64_t)index >= map->size[i]) return 0;
        place += (uint64_t)index * map->stride[i];
    }
    return place;
}

// Rounds to the nearest 11-bit number, ties to even. Infinities and NaN stay.
static void round_line(unsigned char *line, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t x;
        memcpy(&x, line + i * 4, sizeof x);
        if ((x & 0x7f800000) == 0x7f800000) continue;
        x = (x + 0xfff + (x >> 13 & 1)) & 0xffffe000;
        memcpy(line + i * 4, &x, sizeof x);
    }
}

void emulator_map_read(const struct emulator_map *map, const int *at, unsigned char *data) {
    const size_t bytes = (size_t)map->element_bytes, width = map->box[0] * bytes;
    const unsigned lines = emulator_map_bytes(map) / (unsigned)width;
    memset(data, 0, lines * width);
    for (unsigned line = 0; line < lines; line++) {
        const unsigned char *from = find_line(map, at, line);
        int64_t first = at[0] < 0 ? -(int64_t)at[0] : 0, end = (int64_t)map->size[0] - at[0];
        if (end > map->box[0]) end = map->box[0];
        if (from == 0 || end <= first) continue;
        memcpy(data + line * width + (size_t)first * bytes, from + (size_t)(at[0] + first) * bytes,
               (size_t)(end - first) * bytes);
        if (map->is_tf32) round_line(data + line * width, end);
    }
}

void emulator_map_write(const struct emulator_map *map, const int *at, const unsigned char *data,
                        int is_sum) {
    const int64_t bytes = map->element_bytes, width = map->box[0] * bytes;
    const unsigned lines = emulator_map_bytes(map) / (unsigned)width;
    for (unsigned line = 0; line < lines; line++) {
        unsigned char *to = find_line(map, at, line);
        if (to == 0) continue;
        for (int64_t i = 0; i < width; i += 16) {
            int64_t there = at[0] * bytes + i;
            if (there < 0 || there >= (int64_t)map->size[0] * bytes) continue;
            const unsigned char *from = data + line * width + i;
            for (int j = 0; is_sum && j < 16; j += 4) {
                float sum, more;
                memcpy(&sum, to + there + j, 4);
                memcpy(&more, from + j, 4);
                sum += more;
                memcpy(to + there + j, &sum, 4);
            }
            if (!is_sum) memcpy(to + there, from, 16);
        }
    }
}
