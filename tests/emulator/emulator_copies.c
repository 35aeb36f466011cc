// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory, and asynchronous copies. A copy is done at once, or when a thread waits for it or nothing
// else can run (EMULATOR_COPIES): a kernel must be right in both cases. A store has two steps, reading shared memory
// and writing global memory, because there are two waits.
#include <stdlib.h>
#include <string.h>

#include "emulator_device.h"
#include "emulator_tensor_map.h"

// ---- Barriers in shared memory ----------------------------------------------------------------

// The 8 bytes of a barrier. Memory that is not an initialised barrier has another mark.
struct mbarrier {
    unsigned expected : 20, mark : 11, phase : 1;
    unsigned pending : 12;
    unsigned bytes : 20; // announced minus arrived, in units of 16, plus NO_BYTES
};
enum { MARK = 0x2d3, NO_BYTES = 1 << 19 };
_Static_assert(sizeof(struct mbarrier) == 8, "8 bytes");

static struct mbarrier *find_mbarrier(struct block *block, unsigned address) {
    if (address % 8 != 0) emulator_fail("a barrier at address 0x%x, no multiple of 8", address);
    struct mbarrier *b = emulator_shared_of(block, address, 8);
    if (b->mark != MARK) emulator_fail("at address 0x%x is no barrier that was started", address);
    return b;
}

static void complete(struct mbarrier *b) {
    if (b->pending != 0 || b->bytes != NO_BYTES) return;
    b->phase = (b->phase ^ 1u) & 1u;
    b->pending = (unsigned)b->expected & 0xfffu;
}

static void mbarrier_start(unsigned address, unsigned arrivals) {
    if (arrivals == 0 || arrivals > 0xfff) emulator_fail("a barrier of %u arrivals", arrivals);
    if (address % 8 != 0) emulator_fail("a barrier at address 0x%x, no multiple of 8", address);
    struct mbarrier *b = emulator_shared(address, 8);
    *b = (struct mbarrier){.expected = arrivals & 0xfffff,
                           .mark = MARK,
                           .pending = arrivals & 0xfff,
                           .bytes = NO_BYTES};
}

static void mbarrier_end(unsigned address) {
    memset(find_mbarrier(emulator_device.fiber->block, address), 0xff, 8);
}

static void add_bytes(struct mbarrier *b, long bytes) {
    long sum = (long)b->bytes - NO_BYTES + bytes / 16;
    if (bytes % 16 != 0) emulator_fail("a barrier counts %ld bytes, no multiple of 16", bytes);
    if (sum > 65535 || sum < -65535) emulator_fail("a barrier counts more than 2^20 - 1 bytes");
    b->bytes = (unsigned)(sum + NO_BYTES) & 0xfffffu;
}

static void mbarrier_arrive(unsigned address, unsigned arrivals, unsigned bytes) {
    struct mbarrier *b = find_mbarrier(emulator_device.fiber->block, address);
    add_bytes(b, (long)bytes);
    if (b->pending < arrivals)
        emulator_fail("barrier 0x%x has more arrivals than the %u of a phase", address,
                      b->expected);
    b->pending = (b->pending - arrivals) & 0xfff;
    complete(b);
}

bool emulator_mbarrier_is_done(const struct fiber *f) {
    return find_mbarrier(f->block, f->mbarrier)->phase != (f->parity & 1);
}

static int mbarrier_test(unsigned address, unsigned parity, int may_wait) {
    struct fiber *f = emulator_device.fiber;
    if (parity > 1) emulator_fail("a barrier's parity is %u", parity);
    if (address >> SHARED_RANK != 0) emulator_fail("a wait at a barrier of another block");
    f->mbarrier = address;
    f->parity = parity;
    if (emulator_mbarrier_is_done(f)) return 1;
    emulator_wait_in(may_wait ? AT_MBARRIER : POLLING);
    return emulator_mbarrier_is_done(f);
}

// Counts the bytes of a copy to a block at its barrier.
static void count_bytes(struct block *block, unsigned barrier, unsigned bytes) {
    struct mbarrier *b = find_mbarrier(block, barrier);
    add_bytes(b, -(long)bytes);
    complete(b);
}

// ---- cp.async ---------------------------------------------------------------------------------

static void do_copy(const struct copy *copy) {
    memcpy(copy->to, copy->from, (size_t)copy->bytes);
    memset((char *)copy->to + copy->bytes, 0, (size_t)(copy->size - copy->bytes));
}

static void copy(unsigned to, const void *from, int bytes, int size) {
    struct fiber *f = emulator_device.fiber;
    if (to % (unsigned)size != 0 || (bytes > 0 && (uintptr_t)from % (unsigned)size != 0))
        emulator_fail("a copy of %d bytes from %p to 0x%x, no multiples of it", size, from, to);
    if (bytes < 0 || bytes > size) emulator_fail("a copy of %d of %d bytes", bytes, size);
    struct copy mine = {emulator_shared(to, (unsigned)size), from, bytes, size, f->copy_group};
    if (f->num_copies == 0 && !emulator_is_late()) {
        do_copy(&mine);
        return;
    }
    if (f->num_copies == f->room) {
        f->room = 2 * f->room + 16;
        f->copies = realloc(f->copies, (size_t)f->room * sizeof *f->copies);
    }
    f->copies[f->num_copies++] = mine;
}

static void copy_commit(void) { emulator_device.fiber->copy_group++; }

// Waits for all but the newest `groups` groups; -1: also for copies without a group.
static void copy_wait(int groups) {
    struct fiber *f = emulator_device.fiber;
    int done = 0;
    if (groups < 0) copy_commit();
    while (done < f->num_copies &&
           f->copy_group - f->copies[done].group > (unsigned)(groups < 0 ? 0 : groups))
        do_copy(&f->copies[done++]);
    f->num_copies -= done;
    memmove(f->copies, f->copies + done, (size_t)f->num_copies * sizeof *f->copies);
}

// ---- Bulk copies ------------------------------------------------------------------------------

enum kind { LOAD_BULK, SEND_BULK, LOAD_TENSOR, STORE_BULK, STORE_TENSOR };

struct bulk {
    struct bulk *next;
    enum kind kind;
    struct fiber *owner; // NULL after its block has ended, when its stores have been read
    struct block *block;
    unsigned group;
    struct emulator_map map;
    int at[MAP_RANK], is_sum;
    unsigned char *memory;
    unsigned shared, to, bytes, barrier, blocks;
    unsigned char *data; // what a store has read
};

static struct bulk *first, **last = &first;

static void put_tensor(const struct bulk *b, struct block *block, const unsigned char *data) {
    for (unsigned i = 0; i < b->bytes; i += 16) {
        unsigned at = b->shared + i;
        if (b->map.is_swizzled) at ^= (at >> 7 & 7) << 4;
        memcpy(emulator_shared_of(block, at, 16), data + i, 16);
    }
}

static void do_load(const struct bulk *b) {
    unsigned char *data = malloc(b->bytes);
    if (b->kind == LOAD_BULK) {
        memcpy(emulator_shared_of(b->block, b->shared, b->bytes), b->memory, b->bytes);
        count_bytes(b->block, b->barrier, b->bytes);
    } else if (b->kind == SEND_BULK) {
        memcpy(emulator_shared_of(b->block, b->to, b->bytes),
               emulator_shared_of(b->block, b->shared, b->bytes), b->bytes);
        count_bytes(b->block, b->barrier, b->bytes);
    } else {
        emulator_map_read(&b->map, b->at, data);
        for (unsigned i = 0; i < MAX_CLUSTER; i++) {
            if ((b->blocks >> i & 1) == 0) continue;
            struct block *there = emulator_block_of(b->block, (i + 1) << SHARED_RANK);
            put_tensor(b, there, data);
            count_bytes(there, b->barrier, b->bytes);
        }
    }
    free(data);
}

static void read_store(struct bulk *b) {
    if (b->data != NULL) return;
    b->data = malloc(b->bytes);
    if (b->kind == STORE_BULK) {
        memcpy(b->data, emulator_shared_of(b->block, b->shared, b->bytes), b->bytes);
        return;
    }
    for (unsigned i = 0; i < b->bytes; i += 16) {
        unsigned at = b->shared + i;
        if (b->map.is_swizzled) at ^= (at >> 7 & 7) << 4;
        memcpy(b->data + i, emulator_shared_of(b->block, at, 16), 16);
    }
}

static void write_store(struct bulk *b) {
    read_store(b);
    if (b->kind == STORE_TENSOR)
        emulator_map_write(&b->map, b->at, b->data, b->is_sum);
    else if (b->is_sum)
        for (unsigned i = 0; i < b->bytes; i += 4)
            *(float *)(void *)(b->memory + i) += *(const float *)(const void *)(b->data + i);
    else
        memcpy(b->memory, b->data, b->bytes);
}

static void perform(struct bulk *b) {
    if (b->kind <= LOAD_TENSOR)
        do_load(b);
    else
        write_store(b);
    free(b->data);
    free(b);
}

// Copies have no order, but stores of one thread keep theirs.
static void order(const struct bulk *given) {
    struct bulk *b = malloc(sizeof *b);
    *b = *given;
    b->owner = emulator_device.fiber;
    b->group = b->owner->bulk_group;
    if (!emulator_is_late()) {
        bool has_earlier = false;
        for (struct bulk *p = first; p != NULL; p = p->next) has_earlier |= p->owner == b->owner;
        if (b->kind <= LOAD_TENSOR || !has_earlier) {
            perform(b);
            return;
        }
    }
    *last = b;
    last = &b->next;
}

static void remove_bulk(struct bulk **at) {
    struct bulk *gone = *at;
    *at = gone->next;
    if (gone->next == NULL) last = at;
    gone->next = NULL;
}

bool emulator_copies_step(void) {
    if (first == NULL) return false;
    struct bulk *b = first;
    remove_bulk(&first);
    perform(b);
    return true;
}

void emulator_copies_finish(void) {
    while (emulator_copies_step()) continue;
}

void emulator_copies_drop(void) {
    while (first != NULL) {
        struct bulk *b = first;
        remove_bulk(&first);
        free(b->data);
        free(b);
    }
}

// A block's shared memory is freed when it ends.
void emulator_copies_check(const struct block *block) {
    for (struct bulk *b = first; b != NULL; b = b->next) {
        if (b->block != block) continue;
        if (b->kind <= LOAD_TENSOR || b->data == NULL)
            emulator_fail("a block ends with a copy on its way %s its shared memory",
                          b->kind <= LOAD_TENSOR ? "to" : "from");
        b->owner = NULL;
        b->block = NULL;
    }
}

// ---- Requests of threads ----------------------------------------------------------------------

static void check_bulk(uintptr_t memory, unsigned shared, unsigned bytes) {
    if (memory % 16 != 0 || shared % 16 != 0 || bytes % 16 != 0 || bytes == 0)
        emulator_fail("a copy of %u bytes between 0x%lx and 0x%x, expected multiples of 16", bytes,
                      (unsigned long)memory, shared);
}

static void load_bulk(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    check_bulk((uintptr_t)from, to, bytes);
    order(&(struct bulk){.kind = LOAD_BULK,
                         .block = emulator_device.fiber->block,
                         .memory = (unsigned char *)(uintptr_t)from,
                         .shared = to,
                         .bytes = bytes,
                         .barrier = barrier});
}

static void send_bulk(unsigned to, unsigned from, unsigned bytes, unsigned barrier) {
    check_bulk(to, from, bytes);
    if (to >> SHARED_RANK != barrier >> SHARED_RANK)
        emulator_fail("a copy to another block than its barrier's");
    order(&(struct bulk){.kind = SEND_BULK,
                         .block = emulator_device.fiber->block,
                         .to = to,
                         .shared = from,
                         .bytes = bytes,
                         .barrier = barrier});
}

// st.async: registers are read at once, and the data arrive at once.
static void send(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    if (to % bytes != 0) emulator_fail("st.async to 0x%x, no multiple of %u", to, bytes);
    if (to >> SHARED_RANK != barrier >> SHARED_RANK)
        emulator_fail("st.async to another block than its barrier's");
    memcpy(emulator_shared(to, bytes), from, bytes);
    count_bytes(emulator_device.fiber->block, barrier, bytes);
}

static struct bulk tensor_copy(enum kind kind, const void *map, const int *at, int rank,
                               unsigned shared) {
    struct bulk b = {.kind = kind, .block = emulator_device.fiber->block, .shared = shared};
    const char *rule = emulator_map_unpack(map, rank, &b.map);
    if (rule != NULL) emulator_fail("%s", rule);
    for (int i = 0; i < rank; i++) b.at[i] = at[i];
    b.bytes = emulator_map_bytes(&b.map);
    if (shared % 128 != 0) emulator_fail("a tile at address 0x%x, no multiple of 128", shared);
    return b;
}

static void load_tensor(unsigned to, const void *map, const int *at, int rank, unsigned barrier,
                        unsigned blocks) {
    struct bulk b = tensor_copy(LOAD_TENSOR, map, at, rank, to);
    struct block *block = b.block;
    unsigned mine = to >> SHARED_RANK;
    if (mine != barrier >> SHARED_RANK || (blocks != 0 && mine != 0))
        emulator_fail("a copy to another block than its barrier's");
    b.blocks = blocks != 0 ? blocks : 1u << (mine != 0 ? mine - 1 : block->rank);
    if (b.blocks >> block->cluster->size != 0)
        emulator_fail("a copy to blocks 0x%x of a cluster of %d", b.blocks, block->cluster->size);
    b.shared &= (1u << SHARED_RANK) - 1;
    b.barrier = barrier & ((1u << SHARED_RANK) - 1);
    order(&b);
}

static void store_bulk(void *to, unsigned from, unsigned bytes, int is_sum) {
    check_bulk((uintptr_t)to, from, bytes);
    order(&(struct bulk){.kind = STORE_BULK,
                         .block = emulator_device.fiber->block,
                         .memory = to,
                         .shared = from,
                         .bytes = bytes,
                         .is_sum = is_sum});
}

static void store_tensor(const void *map, const int *at, int rank, unsigned from, int is_sum) {
    struct bulk b = tensor_copy(STORE_TENSOR, map, at, rank, from);
    b.is_sum = is_sum;
    if (is_sum && !b.map.is_f32) emulator_fail("a sum into a tensor map that is not of floats");
    order(&b);
}

static void bulk_commit(void) { emulator_device.fiber->bulk_group++; }

static void bulk_wait(int groups, int is_read) {
    struct fiber *f = emulator_device.fiber;
    for (struct bulk **at = &first; *at != NULL;) {
        struct bulk *b = *at;
        if (b->owner != f || b->kind < STORE_BULK || f->bulk_group - b->group <= (unsigned)groups) {
            at = &b->next;
        } else if (is_read) {
            read_store(b);
            at = &b->next;
        } else {
            remove_bulk(at);
            perform(b);
        }
    }
}

void emulator_copies_install(struct emulator *t) {
    t->mbarrier_start = mbarrier_start;
    t->mbarrier_end = mbarrier_end;
    t->mbarrier_arrive = mbarrier_arrive;
    t->mbarrier_test = mbarrier_test;
    t->copy = copy;
    t->copy_commit = copy_commit;
    t->copy_wait = copy_wait;
    t->load_bulk = load_bulk;
    t->send_bulk = send_bulk;
    t->send = send;
    t->load_tensor = load_tensor;
    t->store_bulk = store_bulk;
    t->store_tensor = store_tensor;
    t->bulk_commit = bulk_commit;
    t->bulk_wait = bulk_wait;
}
