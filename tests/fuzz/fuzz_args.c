// SPDX-License-Identifier: Apache-2.0
// Any args struct of any operation. The plainest input is a legal call. Every further byte changes it: sizes, strides,
// types, devices, addresses, overlap, options, the struct's own size, the workspace.
//
// A call must return a known status. If it fails, it must give a sentence and write nothing. If it succeeds, it may
// only write to elements of its outputs, no two of which share a byte. Calls whose tensors reach beyond our memory are
// not made unless _prepare refused them.
#include "args_build.h"

enum { MAX_WORKSPACE = 64 << 20, FIXED_WORKSPACE = 8 << 20 };

// ---- Contexts ---------------------------------------------------------------------------------

static bool was_refused; // an allocation was refused, so OUT_OF_MEMORY is legal

static void *bounded_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    void *block = NULL;
    was_refused = bytes > MAX_WORKSPACE || posix_memalign(&block, alignment, bytes + !bytes) != 0;
    return was_refused ? NULL : block;
}

static void plain_free(void *user, void *block, size_t bytes) {
    (void)user;
    (void)bytes;
    free(block);
}

static void one_by_one(void *user, int num_tasks, void (*task)(void *arg, int index), void *arg) {
    (void)user;
    for (int i = num_tasks - 1; i >= 0; i--) task(arg, i);
}

// Calls run on one thread, so that an input always does the same. Plans are made for several.
static tsr_context *context_of(int kind) {
    static tsr_context *contexts[TSR_ISA_COUNT];
    static const int32_t num_threads[TSR_ISA_COUNT] = {2, 1, 3, 1};
    if (kind >= TSR_ISA_COUNT) return NULL;
    tsr_isa isa = tsr_isa_is_supported((tsr_isa)kind) ? (tsr_isa)kind : TSR_ISA_AUTO;
    if (contexts[kind] == NULL)
        fuzz_require(
            tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = num_threads[kind],
                                                    .parallel_for = one_by_one,
                                                    .allocator = {bounded_alloc, plain_free, NULL}),
                               &contexts[kind]) == TSR_OK);
    return contexts[kind];
}

// ---- The call ---------------------------------------------------------------------------------

static void check_failure(const struct args_case *c, tsr_status status) {
    fuzz_require(status == TSR_INVALID_ARGUMENT || status == TSR_UNSUPPORTED ||
                 status == TSR_WORKSPACE || (status == TSR_OUT_OF_MEMORY && was_refused));
    const char *sentence = tsr_last_error();
    fuzz_require(strchr(sentence, ':') != NULL);
    (void)c;
}

static tsr_status prepare(const struct args_case *c, tsr_context *ctx, size_t *bytes) {
    *bytes = 0;
    tsr_fail(TSR_OK, "");
    tsr_status status = c->op->prepare(ctx, c->args, bytes);
    if (status != TSR_OK) check_failure(c, status);
    fuzz_require(status != TSR_WORKSPACE);
    return status;
}

static tsr_status call(const struct args_case *c, tsr_context *ctx) {
    tsr_fail(TSR_OK, "");
    was_refused = false;
    args_remember();
    args_hide();
    for (int i = 0; i < c->num_tensors; i++)
        if (c->is_known[i]) args_show(c->begin[i], c->end[i]);
    tsr_status status = c->op->call(ctx, c->args);
    args_show_all();
    if (status != TSR_OK)
        check_failure(c, status);
    else
        for (int i = 0; i < c->num_tensors; i++)
            if (c->roles[i] == 'o') args_accept(&c->tensors[i]);
    fuzz_require(args_is_as_remembered());
    return status;
}

// Allocates a block of exactly this size, or one that must be refused.
static void *give_workspace(struct args_case *c, int kind, size_t need, bool *is_bad) {
    size_t given = need, shift = 0;
    *is_bad = false;
    if (kind == 2 && need > 0) {
        given--;
        *is_bad = true;
    } else if (kind == 3) {
        shift = 4;
        *is_bad = need > 0;
    } else if (kind == 4) {
        given += 100;
    }
    void *block = NULL;
    fuzz_require(posix_memalign(&block, 64, given + shift + 1) == 0);
    memset(block, 0xff, given + shift < 4096 ? given + shift : 4096);
    args_set_workspace(c, (char *)block + shift, given);
    return block;
}

// Calls with tensors that lie in our memory.
static void run_known(struct args_case *c, tsr_context *ctx, tsr_status planned, size_t need) {
    void *block = NULL;
    bool is_bad = false;
    if (c->workspace != 0 && planned == TSR_OK && need <= MAX_WORKSPACE)
        block = give_workspace(c, c->workspace, need, &is_bad);
    tsr_status status = call(c, ctx);
    fuzz_require(planned == TSR_OK || status == planned ||
                 (planned == TSR_UNSUPPORTED && status == TSR_INVALID_ARGUMENT));
    fuzz_require(planned != TSR_OK || status == TSR_OK || status == TSR_INVALID_ARGUMENT ||
                 status == TSR_OUT_OF_MEMORY || (status == TSR_WORKSPACE && is_bad));
    fuzz_require(!is_bad || status != TSR_OK);
    if (status == TSR_OK) {
        fuzz_require(ctx != NULL && !c->is_illegal);
        fuzz_require(args_are_apart(c->tensors, c->roles, c->num_tensors));
        int64_t bytes = 0;
        for (int i = 0; i < c->num_tensors; i++) bytes += c->end[i] - c->begin[i];
        fuzz_require(need <= 64 * (size_t)bytes + FIXED_WORKSPACE);
    }
    free(block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct args_case c;
    args_build(&c, data, bytes);
    tsr_context *ctx = context_of(c.context);
    size_t need;
    tsr_status planned = prepare(&c, ctx, &need);
    fuzz_require(planned != TSR_OK || (ctx != NULL && !c.is_illegal));
    if (c.is_all_known)
        run_known(&c, ctx, planned, need);
    else if (planned == TSR_INVALID_ARGUMENT && c.are_indices_known)
        fuzz_require(call(&c, ctx) == TSR_INVALID_ARGUMENT);
    args_release(&c);
    return 0;
}
