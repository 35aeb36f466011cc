// SPDX-License-Identifier: Apache-2.0
// Enumerates the library's operations and variants, and creates contexts that know all of them.
#include <string.h>

#include "context/context_internal.h"
#include "core/core_status.h"
#include "library/op_list.h"

int tsr_op_count(void) { return tsri_num_ops; }

const char *tsr_op_name(int op) { return op >= 0 && op < tsri_num_ops ? tsri_ops[op]->name : NULL; }

const struct tsri_op *tsri_op_find(const char *name) {
    for (int i = 0; name != NULL && i < tsri_num_ops; i++)
        if (strcmp(tsri_ops[i]->name, name) == 0) return tsri_ops[i];
    return NULL;
}

int tsr_variant_count(const char *op_name) {
    const struct tsri_op *op = tsri_op_find(op_name);
    return op != NULL ? op->num_variants : 0;
}

tsr_status tsr_variant_info_get(const char *op_name, int index, tsr_variant_info *info) {
    const struct tsri_op *op = tsri_op_find(op_name);
    if (op == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "variant_info_get: op is '%s', expected a name that tsr_op_name gives",
                         op_name != NULL ? op_name : "NULL");
    if (index < 0 || index >= op->num_variants || info == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "variant_info_get: index is %d and info %s, expected 0 to %d and an "
                         "address",
                         index, info != NULL ? "given" : "NULL", op->num_variants - 1);
    const struct tsri_variant *v = &op->variants[index];
    *info = (tsr_variant_info){v->name, v->summary, v->flags};
    return TSR_OK;
}

tsr_status tsr_context_create(const tsr_context_options *options, tsr_context **context) {
    return tsri_context_create(options, tsri_op_find, context);
}
