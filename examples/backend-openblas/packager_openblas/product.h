/*
 * Products of row-major float32 matrices, by the kernels inside OpenBLAS. The file that includes this one defines the
 * kernels' names (OPENBLAS_*); their arguments have not changed since GotoBLAS.
 *
 * OpenBLAS stores columns first: to it our c = a * b is c^T = b^T * a^T. Both factors are packed: a in panels of 4
 * rows, b in panels of 8 or 16 columns, and smaller ones at the end. The panels of row or column i begin at i * depth.
 */
#include <stdint.h>
#include <string.h>

int OPENBLAS_PACK_ROWS(long depth, long rows, const float *a, long stride, float *packed);
int OPENBLAS_PACK_COLUMNS(long depth, long columns, const float *b, long stride, float *packed);
int OPENBLAS_MULTIPLY(long columns, long rows, long depth, float factor, const float *packed_b, const float *packed_a,
                      float *c, long stride);

/* ``batch`` products [rows, depth] * [depth, columns]. */
typedef struct {
  int64_t batch, rows, depth, columns;
} product_t;

static int64_t tiles(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }

static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }

/* Pack tiles [begin, end) of the rows of all a. */
static inline int32_t pack_rows(product_t p, const float *a, float *packed, int64_t begin, int64_t end) {
  for (int64_t tile = begin; tile < end; ++tile) {
    int64_t row = tile % tiles(p.rows, HIGH) * HIGH;
    int64_t offset = (tile / tiles(p.rows, HIGH) * p.rows + row) * p.depth;
    OPENBLAS_PACK_ROWS(p.depth, at_most(p.rows - row, HIGH), a + offset, p.depth, packed + offset);
  }
  return 0;
}

/* Pack tiles [begin, end) of the columns of all b. */
static inline int32_t pack_columns(product_t p, const float *b, float *packed, int64_t begin, int64_t end) {
  for (int64_t tile = begin; tile < end; ++tile) {
    int64_t column = tile % tiles(p.columns, WIDE) * WIDE;
    int64_t matrix = tile / tiles(p.columns, WIDE) * p.columns * p.depth;
    OPENBLAS_PACK_COLUMNS(p.depth, at_most(p.columns - column, WIDE), b + matrix + column, p.columns,
                          packed + matrix + column * p.depth);
  }
  return 0;
}

/* Compute tiles [begin, end) of all c. Each begins as the bias, or zeros; the kernel adds the product to that. */
static inline int32_t multiply(product_t p, const float *packed_a, const float *packed_b, const float *bias, float *c,
                               int64_t begin, int64_t end) {
  for (int64_t tile = begin; tile < end; ++tile) {
    int64_t row = tile % tiles(p.rows, HIGH) * HIGH;
    int64_t column = tile / tiles(p.rows, HIGH) % tiles(p.columns, WIDE) * WIDE;
    int64_t matrix = tile / tiles(p.rows, HIGH) / tiles(p.columns, WIDE);
    int64_t high = at_most(p.rows - row, HIGH);
    int64_t wide = at_most(p.columns - column, WIDE);
    float *corner = c + (matrix * p.rows + row) * p.columns + column;
    for (int64_t i = 0; i < high; ++i) {
      if (bias) {
        memcpy(corner + i * p.columns, bias + column, (size_t)wide * sizeof(float));
      } else {
        memset(corner + i * p.columns, 0, (size_t)wide * sizeof(float));
      }
    }
    OPENBLAS_MULTIPLY(wide, high, p.depth, 1.0f, packed_b + (matrix * p.columns + column) * p.depth,
                      packed_a + (matrix * p.rows + row) * p.depth, corner, p.columns);
  }
  return 0;
}
