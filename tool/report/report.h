// SPDX-License-Identifier: Apache-2.0
// The report: the measured data (struct report), the tables and charts made from it, and the four
// forms in which they are written. Only collecting measures, the rest reads struct report. A new table
// is a function in report_tables*.c; page and markdown then show it.
#ifndef TOOL_REPORT_H
#define TOOL_REPORT_H

#include "files/result.h"
#include "measure/traffic.h"
#include "verify/verify.h"

// ---- The measured data ------------------------------------------------------------------------

struct report_options {
    const char *save_dir;
    const char *theme; // "auto", "light", "dark"
    const char *dtype; // NULL: all
    const char *isa;   // NULL: the best
    tsr_device device;
    int num_threads; // 0: all
    int rep;         // 0: the tool chooses
    int warmup;      // -1: the tool chooses
    bool is_quick;
    double seconds; // time limit of the measuring; 0: that of quick or full
    bool has_plots;
    bool is_non_causal; // attention's sweeps without the causal mask
    // Sizes of attention's sweeps by length; 0: as published.
    int max_seq_len, batch_size, num_heads, head_dim;
    int argc;
    char **argv; // the command line, shown under "Reproduce it"
};

enum { REPORT_MAX_LEVELS = 6 };

// Bandwidth at one working-set size.
struct report_level {
    char name[24];         // "L2", "memory"
    double capacity_bytes; // this level holds cases up to this size
    double working_set_bytes, read_gb_s, write_gb_s, copy_gb_s;
};

struct report_machine {
    char host[128], cpu[128], isa[16], system[512], started[32];
    bool is_gpu; // cpu then has the GPU's name, isa its architecture
    int num_sms;
    int num_threads, num_cpus; // 0 threads on a GPU
    double l1_bytes, l2_bytes, l3_bytes, memory_bytes;
    double peak_gflops; // fp32 FMA in registers
    struct report_level levels[REPORT_MAX_LEVELS];
    int num_levels;
};

// What the router of a mixture of experts does with random tokens.
struct report_routing {
    double tokens, load_balance_loss, usage_variance;
};
enum { REPORT_MAX_ROUTINGS = 4 };

struct report {
    const struct report_options *options;
    struct report_machine machine;
    struct result_list results; // one row for each measured variant
    struct verify_report verify;
    struct report_routing routings[REPORT_MAX_ROUTINGS];
    int num_routings;
    double seconds;
    bool is_stopped_early; // the time limit ended the measuring before the last shape
    char left_out[512];    // operations without a variant for the device, with commas between
};

// Measures everything; progress on stderr. Returns an exit code.
int report_collect(const struct report_options *options, struct report *report);
void report_free(struct report *report);

// ---- Derived figures --------------------------------------------------------------------------

// Whether a result belongs into the tables of operations: it is no peer's, has all threads of the report, and is
// not part of a sweep with its own table.
bool report_is_plain(const struct report *report, const struct result *result);
bool result_is_baseline(const struct result *result);
// Whether a result of attention is this variant, by the variant's name on the CPU; "tuned" is the library's choice.
bool result_is_variant(const struct result *result, const char *name);
// "16 threads", "132 multiprocessors".
const char *report_units(const struct report *report, char *buffer, size_t bytes);
// Whether the operation's baseline is its unfused form (matmul's baseline is three plain loops).
bool result_has_unfused(const struct result *result);
// The row of the baseline for the same case; NULL if there is none.
const struct result *report_baseline_of(const struct report *report, const struct result *result);
double result_flops(const struct result *result);
double result_bytes(const struct result *result);
// The peak of the unit that computes this row's products; result_flops divided by it is the floor of its arithmetic.
double report_peak_gflops(const struct report *report, const struct result *result);
bool result_is_compute_bound(const struct report *report, const struct result *result);
// Bandwidth of the smallest level that holds the case.
const struct report_level *result_level(const struct report *report, const struct result *result);
// The dtype of the tables of row operations: f32, or that of --dtype.
tsr_dtype report_row_dtype(const struct report *report);
char report_grade(double share); // 'A' ... 'F', '-' if unknown

// The largest plain shape of each operation and dtype, without baselines, in the order of op_specs.
int report_representatives(const struct report *report, const struct result **rows, int capacity);
// "rows 4096 x cols 4096", "512 x 512 x 512 +bias".
const char *result_shape(const struct result *result, char *buffer, size_t bytes);

struct report_summary {
    double peak_gflops, memory_gb_s;
    double median_share; // of these
    int num_shares;
    const struct result *best_share;
    const struct result *best_fusion;              // largest speed-up over its baseline
    double best_fusion_speedup, best_fusion_saved; // saved: share of the traffic; NAN if unknown
    double worst_err_over_bound;
    int64_t num_configs, num_failed;
};
struct report_summary report_summarize(const struct report *report);

// BERT-base: 24 layer norms of 768 per inference, seqlen 128. Zero if hidden size 768 was not
// measured.
enum { BERT_NORMS = 24, BERT_SEQLEN = 128, BERT_HIDDEN = 768 };
struct report_bert {
    double fused_ms, unfused_ms;                   // for the norms of one inference
    double fused_hours_a_day, unfused_hours_a_day; // CPU-hours (all threads) at 1000 inferences/s
};
bool report_bert_estimate(const struct report *report, struct report_bert *bert);

// ---- Tables -----------------------------------------------------------------------------------

enum { TABLE_MAX_COLUMNS = 14 };
enum cell_kind { CELL_TEXT, CELL_NUMBER, CELL_ABSENT };
enum cell_tone { TONE_PLAIN, TONE_GOOD, TONE_FAIR, TONE_BAD, TONE_QUIET };

struct report_cell {
    enum cell_kind kind;
    enum cell_tone tone;
    double number;
    int digits; // significant digits; 0 for a whole number
    char text[112];
    double heat; // 0 to 1: how strongly a page shades it
};

struct report_table {
    const char *id, *title;
    char note[1400]; // explanation for the reader, plain text
    const char *columns[TABLE_MAX_COLUMNS];
    bool is_number[TABLE_MAX_COLUMNS];
    int num_columns, num_rows, capacity;
    struct report_cell *cells; // row-major
};

enum { REPORT_MAX_TABLES = 24 };
struct report_tables {
    struct report_table table[REPORT_MAX_TABLES];
    int count;
};
void report_tables_build(const struct report *report, struct report_tables *tables);
void report_tables_free(struct report_tables *tables);
const struct report_table *report_table_find(const struct report_tables *tables, const char *id);

// The text of a cell, the same in every form. The text of a number can be parsed.
const char *report_cell_text(const struct report_cell *cell, char *buffer, size_t bytes);

// To build a table: columns end with NULL; a name that begins with '#' is a column of numbers.
struct report_table *table_begin(struct report_tables *tables, const char *id, const char *title,
                                 const char *const *columns);
void table_row(struct report_table *table); // then add its cells, left to right
void table_text(struct report_table *table, enum cell_tone tone, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void table_number(struct report_table *table, enum cell_tone tone, double number, int digits);
void table_heat(struct report_table *table, double number, int digits,
                double share); // share of the best
void table_count(struct report_table *table, enum cell_tone tone, double number); // a whole number
void table_note(struct report_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void tables_build_guides(const struct report *report, struct report_tables *tables);
void tables_build_moe(const struct report *report, struct report_tables *tables);
void tables_build_attention(const struct report *report, struct report_tables *tables);
void tables_build_scaling(const struct report *report, struct report_tables *tables);
void tables_build_checks(const struct report *report, struct report_tables *tables);

// ---- Charts -----------------------------------------------------------------------------------

enum { CHART_MAX_SERIES = 8, REPORT_MAX_CHARTS = 20 };
enum chart_kind { CHART_BARS, CHART_LINES, CHART_SCATTER };
enum series_style { STYLE_SOLID, STYLE_CEILING, STYLE_QUIET };

struct chart_point {
    double x, y;
    char label[112]; // of a bar or a dot
};
struct chart_series {
    char name[64];
    enum series_style style;
    struct chart_point *points;
    int count, capacity;
};
struct report_chart {
    const char *id, *title, *x_title, *y_title;
    char note[600]; // the chart in words: caption and text alternative
    enum chart_kind kind;
    bool is_log_x, is_log_y;
    struct chart_series series[CHART_MAX_SERIES];
    int num_series;
};
struct report_charts {
    struct report_chart chart[REPORT_MAX_CHARTS];
    int count;
};
void report_charts_build(const struct report *report, struct report_charts *charts);
// To build a chart; one without a point at its end is dropped.
struct report_chart *chart_begin(struct report_charts *charts, enum chart_kind kind, const char *id,
                                 const char *title, const char *x_title, const char *y_title,
                                 const char *note);
// The series of this name; a new one if there is none, NULL if there are too many.
struct chart_series *chart_series_of(struct report_chart *chart, const char *name,
                                     enum series_style style);
void chart_add(struct chart_series *series, double x, double y, const char *label);
void chart_end(struct report_charts *charts, struct report_chart *chart);

void charts_build_attention(const struct report *report, struct report_charts *charts);
void charts_build_scaling(const struct report *report, struct report_charts *charts);
void report_charts_free(struct report_charts *charts);

// ---- The four forms ---------------------------------------------------------------------------

// Functions that write into an open file leave errors to report_close.
struct report_text {
    char *bytes;
    size_t length;
};

// Writes plots/*.gp and .dat into the folder and lets gnuplot make .png and .svg. svg[i] receives
// the picture of chart i, or NULL bytes. *has_gnuplot: gnuplot could be run.
bool report_write_plots(const char *folder, const struct report_charts *charts,
                        struct report_text *svg, bool *has_gnuplot, char *error,
                        size_t error_bytes);
void report_write_html(FILE *out, const struct report *report, const struct report_tables *tables,
                       const struct report_charts *charts, const struct report_text *svg,
                       bool has_gnuplot);
void report_write_markdown(FILE *out, const struct report *report,
                           const struct report_tables *tables, const struct report_charts *charts,
                           bool has_pictures);

// ---- The folder -------------------------------------------------------------------------------

// A report is written into a hidden folder within save_dir. report_folder_publish then puts each file
// in place by a rename; until then the previous report stays unchanged.
struct report_folder {
    char target[1024], partial[1100];
    bool made_target;
    int note; // the temporary folder's number for temporary_forget
};
bool report_folder_begin(struct report_folder *folder, const char *save_dir, char *error,
                         size_t error_bytes);
bool report_folder_publish(struct report_folder *folder, char *error, size_t error_bytes);
void report_folder_discard(struct report_folder *folder); // safe after a signal too

FILE *report_open(const char *folder, const char *name, char *error, size_t error_bytes);
// Closes the file; false if any write or the close failed.
bool report_close(FILE *file, const char *name, char *error, size_t error_bytes);

#endif
