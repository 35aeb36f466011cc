// SPDX-License-Identifier: Apache-2.0
// The interface between emulated kernels and the emulated device. Both compilers, C and C++, read this file. A kernel's
// shared object has a pointer `emulator` to the device's only table, through which it does everything that a thread
// cannot do alone.
#ifndef EMULATOR_API_H
#define EMULATOR_API_H

enum { EMULATOR_WARP = 32 };

struct emulator_index {
    unsigned x, y, z;
};

// The running thread, as its code sees it.
struct emulator_seen {
    struct emulator_index thread, block, block_size, grid;
    int lane;
    unsigned cluster_rank, cluster_size, cluster_number;
    unsigned char *static_shared, *dynamic_shared;
    const char *file; // of the last PTX instruction
    int line;
};

// A lane's inputs and outputs of an instruction of its warp.
enum emulator_instruction {
    EMULATOR_SYNC,
    EMULATOR_SHUFFLE,
    EMULATOR_VOTE,
    EMULATOR_LOAD_MATRICES,
    EMULATOR_STORE_MATRICES,
    EMULATOR_MOVE_MATRIX,
    EMULATOR_MMA,
    EMULATOR_WGMMA,
    EMULATOR_WGMMA_FENCE,
    EMULATOR_WGMMA_COMMIT,
    EMULATOR_WGMMA_WAIT,
};

enum { EMULATOR_IDX, EMULATOR_UP, EMULATOR_DOWN, EMULATOR_XOR };
struct emulator_shuffle {
    unsigned long long value, result;
    unsigned number; // a lane, a distance or a mask
    int width, kind;
};

enum { EMULATOR_BALLOT, EMULATOR_MATCH, EMULATOR_ADD, EMULATOR_MIN, EMULATOR_MAX };
struct emulator_vote {
    unsigned value, result;
    int kind;
};

struct emulator_matrices {
    unsigned address; // of a row
    unsigned *x[4];
    int count, is_transposed;
};

// Formats of the tensor cores' operands.
enum { EMULATOR_BF16, EMULATOR_F16, EMULATOR_E4M3, EMULATOR_E5M2, EMULATOR_TF32 };
struct emulator_mma {
    float *d[4];
    float c[4];
    unsigned a[4], b[2];
    int format_a, format_b, depth; // depth: elements along k
};

struct emulator_wgmma {
    float *const *d;
    unsigned a[4];
    unsigned long long a_tile, b_tile; // descriptors
    int columns, format_a, format_b, depth;
    int a_is_in_registers, is_more, a_is_mn, b_is_mn, a_sign, b_sign;
};

struct emulator_wait {
    int number;
};

enum { EMULATOR_MEET, EMULATOR_ARRIVE, EMULATOR_OR, EMULATOR_AND, EMULATOR_COUNT };

struct emulator {
    struct emulator_seen *now;
    void (*fail)(const char *sentence); // ends the launch
    void (*poll)(void);                 // other threads run first
    void (*warp)(unsigned mask, int instruction, void *lane);
    // threads: 0 means all threads of the block.
    int (*barrier)(unsigned number, unsigned threads, int kind, int predicate);
    // Returns the bytes of shared memory at a PTX address. shared_address() is the inverse for this block.
    void *(*shared)(unsigned address, unsigned bytes);
    unsigned (*shared_address)(const void *place);
    unsigned (*map_shared)(unsigned address, unsigned rank);
    void (*cluster_arrive)(void);
    void (*cluster_wait)(void);
    void (*mbarrier_start)(unsigned address, unsigned arrivals);
    void (*mbarrier_end)(unsigned address);
    // Announces bytes, then arrives `arrivals` times.
    void (*mbarrier_arrive)(unsigned address, unsigned arrivals, unsigned bytes);
    int (*mbarrier_test)(unsigned address, unsigned parity, int may_wait);
    // cp.async: reads `bytes` and writes `size`.
    void (*copy)(unsigned to, const void *from, int bytes, int size);
    void (*copy_commit)(void);
    void (*copy_wait)(int groups);
    // Bulk copies. blocks: a mask of the cluster's blocks; 0: only this block.
    void (*load_bulk)(unsigned to, const void *from, unsigned bytes, unsigned barrier);
    void (*send_bulk)(unsigned to, unsigned from, unsigned bytes, unsigned barrier);
    void (*send)(unsigned to, const void *from, unsigned bytes, unsigned barrier); // from registers
    void (*load_tensor)(unsigned to, const void *map, const int *at, int rank, unsigned barrier,
                        unsigned blocks);
    void (*store_bulk)(void *to, unsigned from, unsigned bytes, int is_sum);
    void (*store_tensor)(const void *map, const int *at, int rank, unsigned from, int is_sum);
    void (*bulk_commit)(void);
    void (*bulk_wait)(int groups, int is_read);
};

// Describes one kernel of a shared object, as symbol emulator_of_<name>.
struct emulator_kernel {
    void (*call)(void **params);
    const unsigned *param_bytes;
    int num_params;
};

#endif
