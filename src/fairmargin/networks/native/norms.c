// Batch norm of maps [positions][channels][samples] and an activation, for norms.py.
// Samples must be a multiple of W; each call does the channels begin … end − 1.

#include <stdlib.h>

#include "vectors.h"

enum { NONE, RELU, TANH };

static inline V every(float x) { return x - (V){0}; }

static inline V choose(I where, V yes, V no) { return (V)((where & (I)yes) | (~where & (I)no)); }

static inline double total(V x) {
  double sum = 0;
  for (int i = 0; i < W; i++) sum += x[i];
  return sum;
}

// tanh y = 1 − 2/(e^2y + 1), within 2e-7. A NaN stays one.
static inline V tangent(V y) {
  y = choose(y < -10, every(-10), y);
  y = choose(y > 10, every(10), y);
  // e^2y = 2^(whole + f); adding 1.5·2²³ rounds to a whole number.
  const V power = 2.8853900817779268f * y, whole = (power + 12582912.0f) - 12582912.0f;
  const V f = power - whole;
  V e = 1.5403530393381609e-4f * f + 1.3333558146428443e-3f;
  e = e * f + 9.6181291076284772e-3f;
  e = e * f + 5.5504108664821580e-2f;
  e = e * f + 2.4022650695910072e-1f;
  e = e * f + 6.9314718055994531e-1f;
  e = e * f + 1.0f;
  const I shifted = (__builtin_convertvector(whole, I) + 127) << 23;
  return 1 - 2 / (e * (V)shifted + 1);
}

static inline V activate(V y, int activation) {
  if (activation == RELU) return choose(y < 0, every(0), y);
  if (activation == TANH) return tangent(y);
  return y;
}

// The gradient before an activation, from the one behind it: with ReLU from y, what the activation
// was given, found again as `apply` found it; with tanh from its result z. So only one of x and z
// is read for it, and x is needed anyway.
static inline V before(V dz, V y, const V *z, int activation) {
  if (activation == RELU) return choose(y > 0, dz, every(0));
  if (activation == TANH) return dz * (1 - *z * *z);
  return dz;
}

// mean and variance [c] of x [p, c, n]. The n numbers of a position have a mean and squares of their
// own; positions are put together in double precision, so that no digits are lost.
// Returns 0, or 1 without memory.
int statistics(const float *x, long p, long c, long n, long begin, long end, float *mean,
               float *variance) {
  double *const means = calloc(3 * c, sizeof(double));
  double *const squared_means = means + c, *const squares = squared_means + c;
  if (!means) return 1;
  for (long q = 0; q < p; q++)
    for (long ch = begin; ch < end; ch++) {
      const V *from = (const V *)(x + (q * c + ch) * n);
      V sum = {0}, square = {0};
      for (long i = 0; i < n / W; i++) sum += from[i];
      const double m = total(sum) / n;
      const V about = every(m);
      for (long i = 0; i < n / W; i++) {
        const V d = from[i] - about;
        square += d * d;
      }
      means[ch] += m;
      squared_means[ch] += m * m;
      squares[ch] += total(square);
    }
  for (long ch = begin; ch < end; ch++) {
    const double whole = means[ch] / p;
    mean[ch] = whole;
    variance[ch] = squares[ch] / (p * n) + (squared_means[ch] / p - whole * whole);
  }
  free(means);
  return 0;
}

// z = activation(x·factor + offset), all [p, c, n] but factor and offset, [c].
void apply(const float *x, long p, long c, long n, long begin, long end, const float *factor,
           const float *offset, int activation, float *z) {
  for (long q = 0; q < p; q++)
    for (long ch = begin; ch < end; ch++) {
      const V *from = (const V *)(x + (q * c + ch) * n);
      V *const to = (V *)(z + (q * c + ch) * n);
      const V a = every(factor[ch]), b = every(offset[ch]);
      for (long i = 0; i < n / W; i++) put(to + i, activate(from[i] * a + b, activation));
    }
  finish();
}

// Sums [c] of g = dz·f′ and of g·(x − mean). Positions of dz are `step` numbers apart; 0 if all
// share one gradient. Only with tanh z is used. Returns 0, or 1 without memory.
int gradient_sums(const float *dz, long step, const float *z, const float *x, long p, long c,
                  long n, long begin, long end, const float *factor, const float *offset,
                  const float *mean, int activation, float *of_g, float *of_gx) {
  V *const g_sums = aligned_alloc(64, 2 * c * sizeof(V)), *const gx_sums = g_sums + c;
  if (!g_sums) return 1;
  for (long ch = 0; ch < 2 * c; ch++) g_sums[ch] = (V){0};
  for (long q = 0; q < p; q++)
    for (long ch = begin; ch < end; ch++) {
      const V *d = (const V *)(dz + q * step + ch * n);
      const V *out = (const V *)(z + (q * c + ch) * n), *in = (const V *)(x + (q * c + ch) * n);
      const V times = every(factor[ch]), plus = every(offset[ch]);
      V of_1 = {0}, of_x = {0};
      for (long i = 0; i < n / W; i++) {
        const V g = before(d[i], in[i] * times + plus, out + i, activation);
        of_1 += g;
        of_x += g * (in[i] - mean[ch]);
      }
      g_sums[ch] += of_1;
      gx_sums[ch] += of_x;
    }
  for (long ch = begin; ch < end; ch++) {
    of_g[ch] = total(g_sums[ch]);
    of_gx[ch] = total(gx_sums[ch]);
  }
  free(g_sums);
  return 0;
}

// dx = a·g + b·x + constant, with a, b and constant [c].
void gradient(const float *dz, long step, const float *z, const float *x, long p, long c, long n,
              long begin, long end, const float *factor, const float *offset, const float *a,
              const float *b, const float *constant, int activation, float *dx) {
  for (long q = 0; q < p; q++)
    for (long ch = begin; ch < end; ch++) {
      const V *d = (const V *)(dz + q * step + ch * n);
      const V *out = (const V *)(z + (q * c + ch) * n), *in = (const V *)(x + (q * c + ch) * n);
      V *const to = (V *)(dx + (q * c + ch) * n);
      const V times = every(factor[ch]), plus = every(offset[ch]);
      const V of_g = every(a[ch]), of_x = every(b[ch]), rest = every(constant[ch]);
      for (long i = 0; i < n / W; i++) {
        const V g = before(d[i], in[i] * times + plus, out + i, activation);
        put(to + i, of_g * g + (of_x * in[i] + rest));
      }
    }
  finish();
}
