// SPDX-License-Identifier: Apache-2.0
// Tensor maps: the 128 bytes that cuTensorMapEncodeTiled writes, and the boxes that they describe.
#ifndef EMULATOR_TENSOR_MAP_H
#define EMULATOR_TENSOR_MAP_H

#include <stdint.h>

enum { MAP_RANK = 5, MAP_BYTES = 128 };

struct emulator_map {
    unsigned char *data;
    uint64_t size[MAP_RANK], stride[MAP_RANK]; // strides in bytes
    uint32_t box[MAP_RANK];
    int rank, element_bytes, is_f32, is_tf32, is_swizzled;
};

// Returns 0 if the driver would refuse it.
int emulator_map_pack(void *to, const struct emulator_map *map);
// Returns NULL, or what is wrong with it.
const char *emulator_map_unpack(const void *from, int rank, struct emulator_map *map);
unsigned emulator_map_bytes(const struct emulator_map *map); // per box
// The box at `at`. Elements beyond the tensor read as zero and are not written, except for the rest of a 16-byte piece
// that begins inside it.
void emulator_map_read(const struct emulator_map *map, const int *at, unsigned char *data);
void emulator_map_write(const struct emulator_map *map, const int *at, const unsigned char *data,
                        int is_sum);

#endif
