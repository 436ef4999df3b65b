// Transforms between maps and their spectra, for convolution.py.
//
// Maps are [positions][P]: P = channels × samples numbers that lie next to each other, so that a
// vector holds the same pixel of W samples. codelets.h, which codelets.py writes, has N, L, dft
// and adjoint. P must be a multiple of W; the numbers begin … end − 1 of it are transformed.

#include "vectors.h"

#include "codelets.h"

#define H (L / 2)
// Vectors that take a step together: neighbours in memory share pages, and few enough leave room
// in the cache for what is read next.
#define B 4
// Columns that a row has room for: a power of two would send all rows to the same places of the cache.
#define ROW (L + 1)
#define ALL(k) for (long j = 0; j < k; j++)

// Of `all` places, a step apart, fetch what `part` of `parts` needs of the next B vectors.
static inline void fetch_next(const V *from, long step, long all, long part, long parts) {
  for (long q = part * all / parts; q < (part + 1) * all / parts; q++)
    ALL(B) fetch(from + q * step + B + j);
}

// x [N, N, p] → re, im [F, p], the half of its L×L spectrum that says everything:
// (u, v) with v = 0 and v = L/2 for u = 0 … L/2, then v = 1 … L/2 − 1 for every u.
//
// dft gives, for k = 0 … L/2, Σ x cos, and behind them, for k = 1 … L/2 − 1, −Σ x sin. Along both
// axes that makes four products of cosines and sines, whose sums and differences are the spectrum.
void spectrum(const float *x, float *re, float *im, long p, long begin, long end) {
  ALIGNED V rows[N][ROW][B], c[L][B], d[L][B];
  const long s = p / W;
  for (long i = begin / W; i < end / W; i += B) {
    const long k = end / W - i < B ? end / W - i : B;
    const int more = i + 2 * B <= end / W;
    const V *from = (const V *)x + i;
    V *r = (V *)re + i, *m = (V *)im + i;
    for (int h = 0; h < N; h++) ALL(k) dft(from + h * N * s + j, s, &rows[h][0][j], B);
    for (int v = 0; v <= H; v += H) {
      ALL(k) dft(&rows[0][v][j], ROW * B, &c[0][j], B);
      for (int u = 0; u <= H; u++, r += s, m += s) {
        ALL(k) put(r + j, c[u][j]);
        ALL(k) put(m + j, u % H ? c[H + u][j] : (V){0});
      }
    }
    for (int v = 1; v < H; v++, r += L * s, m += L * s) {
      if (more) fetch_next(from, s, N * N, v - 1, H - 1);
      ALL(k) {
        dft(&rows[0][v][j], ROW * B, &c[0][j], B);
        dft(&rows[0][H + v][j], ROW * B, &d[0][j], B);
      }
      for (int u = 0; u <= H; u += H) {
        ALL(k) put(r + u * s + j, c[u][j]);
        ALL(k) put(m + u * s + j, d[u][j]);
      }
      for (int u = 1; u < H; u++) {
        ALL(k) put(r + u * s + j, c[u][j] - d[H + u][j]);
        ALL(k) put(m + u * s + j, c[H + u][j] + d[u][j]);
        ALL(k) put(r + (L - u) * s + j, c[u][j] + d[H + u][j]);
        ALL(k) put(m + (L - u) * s + j, d[u][j] - c[H + u][j]);
      }
    }
  }
  finish();
}

// The adjoint of spectrum: re, im [F, p] → x [N, N, p].
void pixels(const float *re, const float *im, float *x, long p, long begin, long end) {
  ALIGNED V rows[N][ROW][B], c[L][B], d[L][B];
  const long s = p / W;
  for (long i = begin / W; i < end / W; i += B) {
    const long k = end / W - i < B ? end / W - i : B;
    const V *r = (const V *)re + i, *m = (const V *)im + i;
    V *to = (V *)x + i;
    const int more = i + 2 * B <= end / W;
    const V *const first_r = r, *const first_m = m;
    for (int v = 0; v <= H; v += H) {
      for (int u = 0; u <= H; u++, r += s, m += s) {
        ALL(k) c[u][j] = r[j];
        if (u % H) ALL(k) c[H + u][j] = m[j];
      }
      ALL(k) adjoint(&c[0][j], B, &rows[0][v][j], ROW * B);
    }
    for (int v = 1; v < H; v++, r += L * s, m += L * s) {
      for (int u = 0; u <= H; u += H) {
        ALL(k) c[u][j] = r[u * s + j];
        ALL(k) d[u][j] = m[u * s + j];
      }
      for (int u = 1; u < H; u++) ALL(k) {
        const V r1 = r[u * s + j], r2 = r[(L - u) * s + j];
        const V m1 = m[u * s + j], m2 = m[(L - u) * s + j];
        c[u][j] = r1 + r2;
        d[H + u][j] = r2 - r1;
        c[H + u][j] = m1 - m2;
        d[u][j] = m1 + m2;
      }
      ALL(k) {
        adjoint(&c[0][j], B, &rows[0][v][j], ROW * B);
        adjoint(&d[0][j], B, &rows[0][H + v][j], ROW * B);
      }
    }
    for (int h = 0; h < N; h++) {
      if (more) {
        fetch_next(first_r, s, L * L / 2 + 2, h, N);
        fetch_next(first_m, s, L * L / 2 + 2, h, N);
      }
      ALL(k) adjoint(&rows[h][0][j], B, &c[0][j], B);
      for (int w = 0; w < N; w++) ALL(k) put(to + (h * N + w) * s + j, c[w][j]);
    }
  }
  finish();
}
