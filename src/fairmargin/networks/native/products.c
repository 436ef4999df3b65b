// Products of complex matrices, for convolution.py. A complex product takes three real ones (Gauss):
//
//   A·B = (t + a2·b2) + i (t + a3·b3)   with t = ar·b1,
//   a2 = −(ar + ai), a3 = ai − ar,   b1 = br + bi, b2 = bi, b3 = br

#include <stdlib.h>

#include "vectors.h"

// Rows of a result that are held in registers.
#define ROWS (W / 2)

// C [ROWS, NV vectors] = A·B, plus `to_begin` where that is not null. Rows of A are sm apart, columns
// sk, rows of C sc vectors. A last sum is written past the cache.
#define TILE(name, NV)                                                                            \
  static inline void name(const float *a, long sm, long sk, const V *b, long k,                   \
                          const V *to_begin, V *c, long sc) {                                     \
    V sum[ROWS][NV];                                                                              \
    for (int i = 0; i < ROWS; i++)                                                                \
      for (int j = 0; j < NV; j++) sum[i][j] = to_begin ? to_begin[i * NV + j] : (V){0};          \
    for (long l = 0; l < k; l++, b += NV, a += sk) {                                              \
      V held[NV];                                                                                 \
      for (int j = 0; j < NV; j++) {                                                              \
        held[j] = b[j];                                                                           \
        HOLD(held[j]);                                                                            \
      }                                                                                           \
      _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) {                                    \
        _Pragma("GCC unroll 8") for (int j = 0; j < NV; j++) sum[i][j] += a[i * sm] * held[j];    \
      }                                                                                           \
    }                                                                                             \
    for (int i = 0; i < ROWS; i++)                                                                \
      for (int j = 0; j < NV; j++) {                                                              \
        if (to_begin)                                                                             \
          put(c + i * sc + j, sum[i][j]);                                                         \
        else                                                                                      \
          c[i * sc + j] = sum[i][j];                                                              \
      }                                                                                           \
  }
TILE(tile1, 1)
TILE(tile2, 2)

// W rows of W numbers, `from` numbers apart → their columns.
static inline void transpose(const float *x, long from, V *y) {
  ALIGNED V a[W], b[W];
  I low, high;
  for (int i = 0; i < W; i++) {
    low[i] = i % 2 * W + i / 2;
    high[i] = low[i] + W / 2;
    a[i] = *(const V *)(x + i * from);
  }
  for (int step = 1; step < W; step *= 2) {
    for (int i = 0; i < W / 2; i++) {
      b[2 * i] = __builtin_shuffle(a[i], a[i + W / 2], low);
      b[2 * i + 1] = __builtin_shuffle(a[i], a[i + W / 2], high);
    }
    for (int i = 0; i < W; i++) a[i] = b[i];
  }
  for (int i = 0; i < W; i++) y[i] = a[i];
}

// Fetch a part of the next 2·W columns of B, `part` of `parts`.
static inline void fetch_columns(const float *b, long k, long n, int turned, long part,
                                 long parts) {
  for (long l = part * k / parts; l < (part + 1) * k / parts; l++)
    for (int half = 0; half < 2; half++)
      fetch((const V *)(b + (turned ? (2 * l + half) * W : l * n + half * W)));
}

// C = A·B for f complex matrices: A [m, k], B [k, n], C [m, n].
// a_turned: A lies in memory as [k, m], conjugated; b_turned: B as [n, k], conjugated.
// m must be a multiple of ROWS, n of W, and k too if b_turned. Returns 0, or 1 without memory.
int multiply(long f, long m, long k, long n, const float *ar, const float *ai, int a_turned,
             const float *br, const float *bi, int b_turned, float *cr, float *ci) {
  float *const a2 = aligned_alloc(64, (2 * m * k * 4 + 63) / 64 * 64), *const a3 = a2 + m * k;
  V *const b = aligned_alloc(64, (k + W) * 6 * sizeof(V));
  if (!a2 || !b) {
    free(a2);
    free(b);
    return 1;
  }
  const long sm = a_turned ? 1 : k, sk = a_turned ? m : 1;
  const float sign_a = a_turned ? -1 : 1, sign_b = b_turned ? -1 : 1;
  for (long e = 0; e < f; e++, ar += m * k, ai += m * k, br += k * n, bi += k * n) {
    for (long i = 0; i < m * k; i++) {
      a2[i] = -ar[i] - sign_a * ai[i];
      a3[i] = sign_a * ai[i] - ar[i];
    }
    for (long from = 0; from < n;) {
      const int wide = n - from >= 2 * W ? 2 : 1;
      V *const b1 = b, *const b2 = b1 + k * wide, *const b3 = b2 + k * wide;
      for (int j = 0; j < wide; j++) {
        for (long l = 0; l < k; l += W) {
          ALIGNED V re[W], im[W];
          const long some = k - l < W ? k - l : W;
          if (b_turned) {
            transpose(br + (from + j * W) * k + l, k, re);
            transpose(bi + (from + j * W) * k + l, k, im);
          } else {
            for (long i = 0; i < some; i++) {
              re[i] = *(const V *)(br + (l + i) * n + from + j * W);
              im[i] = *(const V *)(bi + (l + i) * n + from + j * W);
            }
          }
          for (long i = 0; i < some; i++) {
            const long to = (l + i) * wide + j;
            b1[to] = re[i] + sign_b * im[i];
            b2[to] = sign_b * im[i];
            b3[to] = re[i];
          }
        }
      }
      // The next columns: of this matrix, or the first ones of the next.
      const int over = from + wide * W == n, more = !over || e + 1 < f;
      const long next = over ? k * n : (from + wide * W) * (b_turned ? k : 1);
      for (long row = 0; row < m; row += ROWS) {
        if (more) {
          fetch_columns(br + next, k, n, b_turned, row / ROWS, m / ROWS);
          fetch_columns(bi + next, k, n, b_turned, row / ROWS, m / ROWS);
        }
        ALIGNED V t[ROWS * 2];
        V *const re = (V *)(cr + row * n + from), *const im = (V *)(ci + row * n + from);
        if (wide == 2) {
          tile2(ar + row * sm, sm, sk, b1, k, 0, t, 2);
          tile2(a2 + row * sm, sm, sk, b2, k, t, re, n / W);
          tile2(a3 + row * sm, sm, sk, b3, k, t, im, n / W);
        } else {
          tile1(ar + row * sm, sm, sk, b1, k, 0, t, 1);
          tile1(a2 + row * sm, sm, sk, b2, k, t, re, n / W);
          tile1(a3 + row * sm, sm, sk, b3, k, t, im, n / W);
        }
      }
      from += wide * W;
    }
    cr += m * n;
    ci += m * n;
  }
  finish();
  free(a2);
  free(b);
  return 0;
}
