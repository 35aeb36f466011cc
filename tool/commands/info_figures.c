// SPDX-License-Identifier: Apache-2.0
// Figures of `tessera info`, as text and as JSON.
#include "commands/info_figures.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

const char *info_bytes(double bytes, char *buffer, size_t room) {
    bool is_mib = bytes >= 1 << 20;
    snprintf(buffer, room, "%.10g %s", bytes / (is_mib ? 1 << 20 : 1 << 10),
             is_mib ? "MiB" : "KiB");
    return buffer;
}

json_t *info_number(double number) { return isfinite(number) ? json_real(number) : json_null(); }

json_t *info_bandwidth(const char *level, const struct bandwidth *b) {
    return json_pack("{s:s, s:I, s:o, s:o, s:o, s:o}", "level", level, "working_set_bytes",
                     (json_int_t)b->working_set, "read_gb_s", info_number(1e-9 * b->read),
                     "write_gb_s", info_number(1e-9 * b->write), "copy_gb_s",
                     info_number(1e-9 * b->copy), "update_gb_s", info_number(1e-9 * b->update));
}
