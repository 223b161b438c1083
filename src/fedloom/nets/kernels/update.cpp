// Weights of several clients after updates of low rank: out[k] = beta start[k] + alpha left[k]^T right[k].
//
// Compiled for one geometry, given as macros: M, N of a weight, at least BLOCK and LANES; S, the rank. Tensors are float32 in
// plain order: left [clients, S, M], right [clients, S, N], out [clients, M, N]; start [M, N] for all, or [clients, M, N].
//
// A product leaves its result in memory that is not read again here: it goes there past the cache, where it may.

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "vectors.h"

namespace {

constexpr int BLOCK = 8, WIDE = SUMS / BLOCK;

void put(float *to, Vector v, bool past) {
#if defined(__AVX512F__)
  if (past) return _mm512_stream_ps(to, (__m512)v);
#elif defined(__AVX__)
  if (past) return _mm256_stream_ps(to, (__m256)v);
#endif
  (void)past;
  store(to, v);
}

template <int VECTORS>
void tile(const float *start, const float *left, const float *right, float *out, float beta, float alpha, bool past) {
  Vector sums[BLOCK][VECTORS] = {};
  for (int s = 0; s < S; s++) {
    Vector x[VECTORS];
    UNROLLED(int v = 0; v < VECTORS; v++) x[v] = loaded(right + s * N + v * LANES);
    UNROLLED(int m = 0; m < BLOCK; m++) {
      const Vector one = spread(left[s * M + m]);
      UNROLLED(int v = 0; v < VECTORS; v++) sums[m][v] += one * x[v];
    }
  }
  UNROLLED(int m = 0; m < BLOCK; m++) UNROLLED(int v = 0; v < VECTORS; v++)
      put(out + m * N + v * LANES, beta * loaded(start + m * N + v * LANES) + alpha * sums[m][v], past);
}

}  // namespace

extern "C" {

// `step`: numbers from one client's start to the next, 0 for one that all have in common. The last tiles overlap the ones
// before where a weight's sides are no multiples of a tile's.
void updated(const float *start, std::ptrdiff_t step, const float *left, const float *right, float *out, int clients,
             float beta, float alpha) {
  const bool past = reinterpret_cast<std::uintptr_t>(out) % sizeof(Vector) == 0 && N % LANES == 0;
  for (int k = 0; k < clients; k++, start += step, left += S * M, right += S * N, out += M * N)
    for (int column = 0, wide; column < N; column += wide) {
      wide = column + WIDE * LANES <= N ? WIDE * LANES : LANES;
      const int n = least(column, N - LANES);
      for (int row = 0; row < M; row += BLOCK) {
        const int m = least(row, M - BLOCK);
        auto *const tiled = wide > LANES ? tile<WIDE> : tile<1>;
        tiled(start + m * N + n, left + m, right + n, out + m * N + n, beta, alpha, past);
      }
    }
#if defined(__AVX__)
  _mm_sfence();  // other processes read it
#endif
}

}  // extern "C"
