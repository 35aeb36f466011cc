// SPDX-License-Identifier: Apache-2.0
// The choice of a row's token on the CPU. Filters look only at groups that may hold the last token to remain: a bound from the
// groups' maxima (top-k) or from the sum of weights (top-p) leaves few of a row with few probable tokens. A selection by radix
// finds that token (the rest of it in sample_select.c). Nothing is sorted.
#include "ops/sample/sample_row.h"

static const struct sample_filter no_filter = {-INFINITY, 0, -1};

static float float_of_key(uint32_t key) { return tsri_float_of_bits(sample_bits_of_key(key)); }

// ---- Filters ----------------------------------------------------------------------------------

// The weights of a group's tokens that the filter leaves; without is_weighed 1.
static void weigh(const struct sample_row *row, int64_t group, bool is_weighed,
                  const struct sample_filter *filter, float *w) {
    if (is_weighed)
        sample_weigh_group(row, &row->z, group, filter, w, NULL);
    else
        for (int i = 0; i < SAMPLE_GROUP; i++) w[i] = 1;
}

// Leaves of the filter's tokens those up to the one at which their weights in falling order sum to `needed`. Only groups with a z
// of at least `least` are looked at; if the token is not among those z, nothing changes, and the result is false. Weights are
// summed by the first digit of the key; only tokens with the digit at which the sum is reached become candidates.
static bool cut(const struct sample_row *row, float least, bool is_weighed, uint64_t needed,
                struct sample_filter *filter) {
    const uint32_t least_digit = sample_key_of(fmaxf(least, -SAMPLE_LARGEST)) >> SAMPLE_FIRST_SHIFT;
    enum {
        NUM_SUMS = 4
    }; // neighbours often have one digit, and an addition waits for the one before
    uint64_t sums[NUM_SUMS][SAMPLE_NUM_DIGITS] = {0};
    uint32_t keys[SAMPLE_WEIGHTS], digit = SAMPLE_NUM_DIGITS - 1, key, index;
    float w[SAMPLE_WEIGHTS];
    struct sample_candidates c = row->candidates;
    for (int64_t g = 0; g < row->num_groups; g++) {
        const int64_t first = g * SAMPLE_GROUP, count = sample_group_end(row, g) - first;
        if (row->z.groups.max[g] < least) continue;
        row->kernels->keys(row->z.dtype, row->z.x, first, first + count, keys);
        weigh(row, g, is_weighed, filter, w);
        for (int64_t i = 0; i < count; i++)
            sums[i % NUM_SUMS][keys[i] >> SAMPLE_FIRST_SHIFT] += (uint64_t)(int64_t)w[i];
    }
    for (int d = 0; d < SAMPLE_NUM_DIGITS; d++)
        for (int j = 1; j < NUM_SUMS; j++) sums[0][d] += sums[j][d];
    for (; sums[0][digit] < needed; digit--) {
        if (digit == least_digit) return false;
        needed -= sums[0][digit];
    }
    c.count = 0;
    for (int64_t g = 0; g < row->num_groups; g++) {
        const int64_t first = g * SAMPLE_GROUP, count = sample_group_end(row, g) - first;
        const int64_t before = c.count;
        if (row->z.groups.max[g] < least ||
            sample_key_of(row->z.groups.max[g]) >> SAMPLE_FIRST_SHIFT < digit)
            continue;
        row->kernels->keys(row->z.dtype, row->z.x, first, first + count, keys);
        for (int64_t i = 0; i < count; i++) {
            c.index[c.count] = (uint32_t)(first + i);
            c.count += keys[i] >> SAMPLE_FIRST_SHIFT == digit;
        }
        if (c.count > before) weigh(row, g, is_weighed, filter, w);
        for (int64_t i = before; i < c.count; i++) {
            c.key[i] = keys[c.index[i] - first];
            c.weight[i] = w[c.index[i] - first];
        }
    }
    if (!sample_select(&c, needed, &key, &index) || float_of_key(key) < least) return false;
    filter->least = float_of_key(key);
    filter->last = index;
    return true;
}

// k tokens are at least as large as the k-th largest maximum of groups.
static void cut_to_top_k(const struct sample_row *row, struct sample_filter *filter) {
    const uint64_t k = (uint64_t)row->options.top_k;
    struct sample_candidates maxima = row->candidates;
    uint32_t key = sample_key_of(-INFINITY), group;
    maxima.count = row->num_groups;
    for (int64_t g = 0; g < row->num_groups; g++) {
        maxima.key[g] = sample_key_of(row->z.groups.max[g]);
        maxima.index[g] = (uint32_t)g;
        maxima.weight[g] = 1;
    }
    sample_select(&maxima, k, &key, &group); // false: fewer groups than k
    cut(row, float_of_key(key), false, k, filter);
}

// Where tokens begin that weigh at least the num-th part of what top_p leaves out of `sum`.
static float least_of_share(const struct sample_row *row, uint64_t sum, double num) {
    const struct sample_options *o = &row->options;
    const double weight = (1 - (double)o->top_p) * (double)sum / num;
    return (float)((double)row->z.max + (double)o->temperature * log(weight / (double)SAMPLE_ONE));
}

// Tokens below a vocab-th part weigh less than what top_p leaves out, so the last token that remains is above. In rows with few
// probable tokens it is above a much larger part, too. A bound that is wrong, if only by rounding, makes cut fail.
static void cut_to_top_p(const struct sample_row *row, uint64_t sum, struct sample_filter *filter) {
    enum { FEW = 1024 };
    const uint64_t needed = sample_needed(row->options.top_p, sum);
    const int64_t vocab = row->problem->logits.cols;
    const float few = least_of_share(row, sum, FEW), all = least_of_share(row, sum, (double)vocab);
    int64_t num_few = 0; // groups
    for (int64_t g = 0; g < row->num_groups; g++) num_few += row->z.groups.max[g] >= few;
    if ((4 * num_few < row->num_groups && few > filter->least &&
         cut(row, few, true, needed, filter)) ||
        (all > filter->least && cut(row, all, true, needed, filter)))
        return;
    cut(row, filter->least, true, needed, filter);
}

// Sums of the groups' weights that the filter leaves. Returns all.
static uint64_t filter_sums(const struct sample_row *row, const struct sample_filter *filter,
                            int64_t *kept) {
    float w[SAMPLE_WEIGHTS];
    uint64_t sum = 0;
    for (int64_t g = 0; g < row->num_groups; g++) {
        uint64_t *of_group = &row->z.groups.sums[g];
        *of_group = row->z.groups.max[g] < filter->least
                        ? 0
                        : sample_weigh_group(row, &row->z, g, filter, w, kept);
        sum += *of_group;
    }
    return sum;
}

// ---- The token --------------------------------------------------------------------------------

// The first token at which the sum of weights exceeds target.
static int64_t token_at(const struct sample_row *row, const struct sample_filter *filter,
                        uint64_t target) {
    float w[SAMPLE_WEIGHTS];
    int64_t g = 0, i = 0;
    while (target >= row->z.groups.sums[g]) target -= row->z.groups.sums[g++];
    sample_weigh_group(row, &row->z, g, filter, w, NULL);
    while (target >= (uint64_t)(int64_t)w[i]) target -= (uint64_t)(int64_t)w[i++];
    return g * SAMPLE_GROUP + i;
}

static int64_t greatest(const struct sample_row *row) {
    float z[SAMPLE_WEIGHTS];
    int64_t g = 0, i = 0;
    while (row->z.groups.max[g] != row->z.max) g++;
    row->kernels->add(row->z.dtype, row->z.x, NULL, g * SAMPLE_GROUP, sample_group_end(row, g), z);
    while (z[i] != row->z.max) i++;
    return g * SAMPLE_GROUP + i;
}

static float number_at(const struct sample_side *side, int64_t v) {
    return sample_bounded((float)tsri_load(side->dtype, side->x, v));
}

// sum: of all weights of z that remain; raw_sum: of the logits'.
static double logprob_of(const struct sample_row *row, int64_t id, uint64_t sum, uint64_t raw_sum) {
    const bool is_raw = row->problem->is_logprob_raw;
    const struct sample_side *side = is_raw ? &row->raw : &row->z;
    if (!is_raw && row->options.temperature == 0) return 0;
    if (side->max == -INFINITY) return -INFINITY;
    const double difference = (double)(number_at(side, id) - side->max);
    return difference / (is_raw ? 1.0 : (double)row->options.temperature) -
           log((double)(is_raw ? raw_sum : sum) / (double)SAMPLE_ONE);
}

static int64_t draw(const struct sample_row *row, uint64_t *sum, int64_t *kept) {
    const struct sample_problem *p = row->problem;
    const struct sample_options *o = &row->options;
    const bool has_top_k = sample_has_top_k(p, o), has_top_p = o->top_p < 1;
    struct sample_filter filter = no_filter;
    int64_t unused = 0;
    if (has_top_k) cut_to_top_k(row, &filter);
    if (has_top_p) {
        if (has_top_k) *sum = filter_sums(row, &filter, &unused);
        cut_to_top_p(row, *sum, &filter);
    }
    filter.least_weight = o->min_p * SAMPLE_ONE;
    if (has_top_k || has_top_p || o->min_p > 0 || p->kept != NULL)
        *sum = filter_sums(row, &filter, kept);
    return token_at(row, &filter, sample_row_target(p, row->index, *sum));
}

void sample_row_choose(const struct sample_row *row, struct sample_result *result) {
    const struct sample_problem *p = row->problem;
    int64_t kept = 1, id;
    *result = (struct sample_result){.is_nan = row->is_nan,
                                     .logprob = row->is_nan ? (double)NAN : -INFINITY};
    if (row->is_nan || row->z.max == -INFINITY) return;
    uint64_t sum = sample_has_sums(row) ? sample_sum_of(row, &row->z) : 0, raw_sum = sum;
    if (sample_has_raw_sums(row)) raw_sum = sample_sum_of(row, &row->raw);
    if (row->options.temperature > 0) {
        kept = 0;
        id = draw(row, &sum, &kept);
    } else {
        id = greatest(row);
    }
    result->id = (int32_t)id;
    result->kept = (int32_t)kept;
    if (p->logprobs != NULL) result->logprob = logprob_of(row, id, sum, raw_sum);
}
