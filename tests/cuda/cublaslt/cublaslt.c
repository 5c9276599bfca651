/* cublaslt.c: a stand-in for libcublasLt.so.13 that computes on the host, in the memory of the recorder's GPU, just
 * what its descriptions say: column-major matrices, transposition, strides of batches, epilogue. A mistake in these
 * shows as wrong numbers, without a GPU. Where the stream is captured it enqueues two copies of the result onto itself.
 *
 * Environment: FAKE_ANSWERS (8), how many algorithms there are; FAKE_REFUSES (0), a depth that has none.
 * What the library would refuse or crash on aborts. */
#define STAND_IN "cublaslt"
#include <math.h>

#include "../recorder/stand_in.h"

#define WORKSPACE(rank) (4096u * ((unsigned)(rank) + 1))

typedef struct {
  int type;
  uint64_t rows, columns;
  int64_t leading, stride;
  int32_t batch;
} layout_t;

typedef struct {
  int32_t compute, transposed[2], epilogue, bias_type, scale_modes[2];
  const void *bias;
  const float *scales[2]; /* of a's rows and of b's columns */
} desc_t;

typedef struct {
  uint64_t workspace;
  uint32_t reductions, alignment[4];
} preference_t;

typedef struct {
  uint64_t data[8];
} algo_t;

typedef struct {
  algo_t algo;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} result_t;

static int handles, objects, asked, products, last_rank;

/* "handles objects asked products rank": how many live, how often what was called, the rank of the last product. */
EXPORT const char *fake_state(void);
EXPORT const char *fake_state(void) {
  static char text[128];
  snprintf(text, sizeof text, "%d %d %d %d %d", handles, objects, asked, products, last_rank);
  return text;
}

EXPORT size_t cublasLtGetVersion(void) { return 130100; }

EXPORT int cublasLtCreate(void **handle) {
  ++handles;
  return (*handle = malloc(1)) ? 0 : 3;
}

EXPORT int cublasLtDestroy(void *handle) {
  free(handle);
  --handles;
  return 0;
}

static void *make(size_t bytes) {
  void *made = calloc(1, bytes);
  if (!made) DIE("no memory");
  ++objects;
  return made;
}

static int destroy(void *object) {
  free(object);
  --objects;
  return 0;
}

EXPORT int cublasLtMatrixLayoutCreate(layout_t **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = make(sizeof **layout);
  **layout = (layout_t){type, rows, columns, leading, 0, 1};
  return 0;
}
EXPORT int cublasLtMatrixLayoutDestroy(layout_t *layout) { return destroy(layout); }

static void take(void *target, const void *value, size_t bytes, size_t wanted) {
  if (bytes != wanted) DIE("an attribute of %zu bytes, expected %zu", bytes, wanted);
  memcpy(target, value, bytes);
}

EXPORT int cublasLtMatrixLayoutSetAttribute(layout_t *layout, int attribute, const void *value, size_t bytes) {
  if (attribute == 5)
    take(&layout->batch, value, bytes, 4);
  else if (attribute == 6)
    take(&layout->stride, value, bytes, 8);
  else
    DIE("attribute %d of a layout", attribute);
  return 0;
}

EXPORT int cublasLtMatmulDescCreate(desc_t **desc, int compute, int scale) {
  if ((compute != 68 || scale != 0) && (compute != 72 || scale != 10)) DIE("types %d and %d", compute, scale);
  *desc = make(sizeof **desc);
  (*desc)->compute = compute;
  (*desc)->epilogue = 1;
  (*desc)->bias_type = -1;
  return 0;
}
EXPORT int cublasLtMatmulDescDestroy(desc_t *desc) { return destroy(desc); }

EXPORT int cublasLtMatmulDescSetAttribute(desc_t *desc, int attribute, const void *value, size_t bytes) {
  if (attribute == 3)
    take(&desc->transposed[0], value, bytes, 4);
  else if (attribute == 4)
    take(&desc->transposed[1], value, bytes, 4);
  else if (attribute == 7)
    take(&desc->epilogue, value, bytes, 4);
  else if (attribute == 8)
    take(&desc->bias, value, bytes, 8);
  else if (attribute == 17 || attribute == 18)
    take(&desc->scales[attribute - 17], value, bytes, 8);
  else if (attribute == 31 || attribute == 32)
    take(&desc->scale_modes[attribute - 31], value, bytes, 4);
  else if (attribute == 26)
    take(&desc->bias_type, value, bytes, 4);
  else
    DIE("attribute %d of a product", attribute);
  return 0;
}

EXPORT int cublasLtMatmulPreferenceCreate(preference_t **preference) {
  *preference = make(sizeof **preference);
  return 0;
}
EXPORT int cublasLtMatmulPreferenceDestroy(preference_t *preference) { return destroy(preference); }

EXPORT int cublasLtMatmulPreferenceSetAttribute(preference_t *preference, int attribute, const void *value,
                                                size_t bytes) {
  if (attribute == 1)
    take(&preference->workspace, value, bytes, 8);
  else if (attribute == 3)
    take(&preference->reductions, value, bytes, 4);
  else if (attribute >= 5 && attribute <= 8)
    take(&preference->alignment[attribute - 5], value, bytes, 4);
  else
    DIE("attribute %d of a preference", attribute);
  return 0;
}

/* What an algorithm is for: all but addresses. */
static uint64_t signature(const desc_t *desc, const layout_t *a, const layout_t *b, const layout_t *d) {
  uint64_t hash = (uint64_t)desc->epilogue * 31 + (uint64_t)desc->transposed[0] + (uint64_t)desc->scale_modes[0] * 17;
  const layout_t *layouts[] = {a, b, d};
  for (int i = 0; i < 3; ++i) {
    const layout_t *l = layouts[i];
    hash = hash * 1000003 + (uint64_t)l->type + l->rows * 7 + l->columns * 1009 + (uint64_t)l->stride * 77 +
           (uint64_t)l->batch * 13;
  }
  return hash;
}

/* Those of 8 bits: e4m3 with results of half precision or float, int8 with int32. */
static void check_narrow(const desc_t *desc, const layout_t *a, const layout_t *b, const layout_t *d) {
  if (a->type == 3 ? d->type != 10 || desc->compute != 72 : (d->type && d->type != 2 && d->type != 14)) DIE("types");
  if (!desc->transposed[0]) DIE("a has to be transposed");
  if (a->rows % 16 || a->columns % (a->type == 3 ? 4 : 16) || b->rows % 16) DIE("sizes of 8 bits");
  if (a->type == 3 && (desc->epilogue != 1 || desc->scale_modes[0])) DIE("integers have no epilogue and no scales");
  if (desc->scale_modes[0] != desc->scale_modes[1] || desc->scale_modes[0] % 3) DIE("modes of scales");
  if (desc->scale_modes[0] && (!desc->scales[0] || !desc->scales[1])) DIE("modes of scales without scales");
}

static int is_narrow(const layout_t *layout) { return layout->type == 3 || layout->type == 28; }

static void check(const desc_t *desc, const layout_t *a, const layout_t *b, const layout_t *c, const layout_t *d) {
  uint64_t m = desc->transposed[0] ? a->columns : a->rows, k = desc->transposed[0] ? a->rows : a->columns;
  if (desc->transposed[1] || b->rows != k || d->rows != m || d->columns != b->columns) DIE("sizes do not fit");
  if (memcmp(c, d, sizeof *c)) DIE("c and d differ");
  if (is_narrow(a) && a->type == b->type)
    check_narrow(desc, a, b, d);
  else if (a->type != b->type || (a->type != 2 && a->type != 14) || (d->type != a->type && d->type != 0))
    DIE("types");
  if (a->batch != d->batch || b->batch != d->batch || d->batch < 1) DIE("batches");
  if (a->leading < (int64_t)a->rows || b->leading < (int64_t)b->rows || d->leading < (int64_t)d->rows) DIE("leading");
  if (!(desc->epilogue & 4) != !desc->bias) DIE("a bias without its epilogue, or the epilogue without a bias");
  if (desc->bias && desc->bias_type != d->type) DIE("a bias of type %d", desc->bias_type);
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, const desc_t *desc, const layout_t *a, const layout_t *b,
                                          const layout_t *c, const layout_t *d, const preference_t *preference,
                                          int requested, result_t *results, int *count) {
  if (!handle) DIE("no handle");
  check(desc, a, b, c, d);
  if (preference->reductions != 6) DIE("reductions in place are allowed");
  for (int i = 0; i < 4; ++i) {
    if (preference->alignment[i] != 16) DIE("alignment %u", preference->alignment[i]);
  }
  ++asked;
  *count = 0;
  if (b->rows == (uint64_t)setting("FAKE_REFUSES", 0)) return 15;
  for (int rank = 0; rank < requested && rank < setting("FAKE_ANSWERS", 8); ++rank) {
    if (WORKSPACE(rank) > preference->workspace) continue;
    results[*count] = (result_t){.algo = {{(uint64_t)rank, signature(desc, a, b, d)}}, .workspace = WORKSPACE(rank)};
    ++*count;
  }
  return *count ? 0 : 15;
}

static double apply(int epilogue, double x) {
  if (epilogue & 2) x = x > 0 ? x : 0;
  if (epilogue & 32) x = 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  return x;
}

typedef struct {
  const desc_t *desc;
  float alpha, beta;
  const void *a, *b, *c;
  void *d;
  const layout_t *la, *lb, *ld;
} product_t;

static double load_any(int type, const void *data, int64_t index) {
  if (type == 3) return ((const int8_t *)data)[index];
  if (type != 28) return load(type, data, index);
  const uint8_t bits = ((const uint8_t *)data)[index];
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
  return bits & 0x80 ? -value : value;
}

static double dot(const product_t *p, int64_t n, int64_t row, int64_t column) {
  double sum = 0;
  for (int64_t k = 0; k < (int64_t)p->lb->rows; ++k) {
    int64_t at = p->desc->transposed[0] ? k + row * p->la->leading : row + k * p->la->leading;
    sum += load_any(p->la->type, p->a, n * p->la->stride + at) *
           load_any(p->lb->type, p->b, n * p->lb->stride + k + column * p->lb->leading);
  }
  return sum;
}

static void compute(const product_t *p) {
  const layout_t *ld = p->ld;
  for (int64_t n = 0; n < ld->batch; ++n) {
    for (int64_t column = 0; column < (int64_t)ld->columns; ++column) {
      for (int64_t row = 0; row < (int64_t)ld->rows; ++row) {
        int64_t at = n * ld->stride + row + column * ld->leading;
        double value = p->alpha * dot(p, n, row, column);
        if (p->desc->scale_modes[0]) value *= (double)p->desc->scales[0][row] * p->desc->scales[1][column];
        if (p->beta != 0) value += p->beta * load(ld->type, p->c, at);
        if (p->desc->bias) value += load(ld->type, p->desc->bias, row);
        if (ld->type == 10)
          ((int32_t *)p->d)[at] = (int32_t)value;
        else
          store(ld->type, p->d, at, apply(p->desc->epilogue, value));
      }
    }
  }
}

EXPORT int cublasLtMatmul(void *handle, const desc_t *desc, const void *alpha, const void *a, const layout_t *la,
                          const void *b, const layout_t *lb, const void *beta, const void *c, const layout_t *lc,
                          void *d, const layout_t *ld, const algo_t *algo, void *workspace, size_t bytes,
                          void *stream) {
  if (!handle) DIE("no handle");
  check(desc, la, lb, lc, ld);
  if (algo->data[1] != signature(desc, la, lb, ld)) DIE("the algorithm is for another problem");
  if (bytes != WORKSPACE(algo->data[0]) || !workspace || (uintptr_t)workspace % 16) DIE("the workspace");
  const int whole = desc->compute == 72; /* whose scales are integers */
  const float by = whole ? (float)*(const int32_t *)alpha : *(const float *)alpha;
  const float beside = whole ? (float)*(const int32_t *)beta : *(const float *)beta;
  if (beside == 0 && c != d) DIE("c is not needed");
  ++products;
  last_rank = (int)algo->data[0];
  if (is_capturing(stream)) {
    return enqueue_copies(stream, d, (size_t)(ld->rows * ld->columns) * (ld->type % 10 ? 2 : 4)) ? 13 : 0;
  }
  memset(workspace, 0xff, bytes);
  const product_t product = {desc, by, beside, a, b, c, d, la, lb, ld};
  compute(&product);
  return 0;
}
