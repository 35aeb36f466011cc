// SPDX-License-Identifier: Apache-2.0
// A case of any operation with filled tensors and a copy of every byte, for tests that go through the tool's
// descriptions. It is header-only, so that nothing of it is built without the tool.
#ifndef TOOL_CASE_H
#define TOOL_CASE_H

#include "test_support.h"

#include "specs/spec.h"
#include "verify/tensors.h"

struct tool_case {
    struct tensors tensors;
    void *before[SPEC_MAX_SLOTS]; // every byte of the buffers, including guards and gaps
};

static inline bool tool_is_output(const struct op_case *c, int s) {
    return c->is_present[s] && case_role(c, s) != SLOT_IN;
}

static inline struct op_case tool_draw(const struct op_spec *spec, tsr_dtype dtype,
                                       struct rng *rng) {
    struct op_case c = case_default(spec);
    c.dtype = dtype;
    c.small_dtype = rng_chance(rng, 0.5) ? dtype : TSR_F32;
    spec->randomize(rng, &c);
    return c;
}

static inline void tool_case_create(struct tool_case *tc, const struct op_case *c,
                                    enum edge_layout layout, struct rng *rng) {
    struct tensors wide;
    *tc = (struct tool_case){0};
    assert_true(tensors_create_f64(&wide, c));
    assert_true(tensors_create(&tc->tensors, c, layout, rng));
    assert_true(tensors_fill_f64(&wide, c, rng, FILL_NORMAL, layout));
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        if (!c->is_present[s]) continue;
        if (case_role(c, s) != SLOT_OUT) tensor_copy(&wide.c.tensor[s], &tc->tensors.c.tensor[s]);
        const struct buffer *buffer = &tc->tensors.buffer[s];
        tc->before[s] = malloc(buffer->bytes);
        assert_non_null(tc->before[s]);
        memcpy(tc->before[s], buffer->base, buffer->bytes);
    }
    tensors_release(&wide);
}

static inline void tool_case_release(struct tool_case *tc) {
    tensors_release(&tc->tensors);
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) free(tc->before[s]);
}

static inline void tool_case_reset(struct tool_case *tc) {
    for (int s = 0; s < SPEC_MAX_SLOTS; s++)
        if (tc->before[s] != NULL)
            memcpy(tc->tensors.buffer[s].base, tc->before[s], tc->tensors.buffer[s].bytes);
}

static inline bool tool_case_is_unchanged(const struct tool_case *tc) {
    for (int s = 0; s < SPEC_MAX_SLOTS; s++)
        if (tc->before[s] != NULL &&
            memcmp(tc->tensors.buffer[s].base, tc->before[s], tc->tensors.buffer[s].bytes) != 0)
            return false;
    return true;
}

// Runs the case's call with another set of views of its tensors.
static inline tsr_status tool_call(tsr_context *ctx, const struct op_case *c, const char *variant) {
    return c->spec->call(ctx, c, variant, NULL, 0, NULL);
}

#endif
