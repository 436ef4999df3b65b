// Vectors of W numbers, in GCC's notation.

#include <immintrin.h>

#ifdef __AVX512F__
#define W 16
#else
#define W 8
#endif

typedef float V __attribute__((vector_size(4 * W), aligned(4), may_alias));
// An array whose vectors do not lie across two lines of the cache.
#define ALIGNED __attribute__((aligned(64)))
// Keep a value in a register instead of reading it again.
#define HOLD(x) __asm__("" : "+v"(x))
typedef int I __attribute__((vector_size(4 * W), aligned(4), may_alias));

// Write past the cache what will not be read soon.
static inline void put(V *to, V value) {
#ifdef __AVX512F__
  if (((unsigned long)to & 63) == 0) {
    _mm512_stream_ps((float *)to, (__m512)value);
    return;
  }
#endif
  *to = value;
}

// Begin to bring what will be read soon into the cache. GCC leaves out functions that do nothing but
// call __builtin_prefetch.
static inline void fetch(const V *from) { __asm__ volatile("prefetcht1 %0" : : "m"(*from)); }

// Let other threads see what was put.
static inline void finish(void) { _mm_sfence(); }
