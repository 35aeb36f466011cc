// SPDX-License-Identifier: Apache-2.0
// The tables of the report, in order.
#include "report/report.h"

void report_tables_build(const struct report *report, struct report_tables *tables) {
    *tables = (struct report_tables){0};
    tables_build_guides(report, tables);
    tables_build_attention(report, tables);
    tables_build_moe(report, tables);
    tables_build_scaling(report, tables);
    tables_build_checks(report, tables);
}
