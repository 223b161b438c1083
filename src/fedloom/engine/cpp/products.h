// Products of small matrices of fixed sizes, computed in registers: out = beta start + alpha a b, a [M, K], b [K, N].
//
// `_ROW` are steps from one row of a matrix to the next; `out` [M, N] is in plain order. Sums have a fixed order.

#pragma once

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "vectors.h"

namespace products {

// Parts of at most `limit` that are about alike. The last one overlaps the one before where they do not fit.
constexpr int share(int whole, int limit) { return (whole + up(whole, limit) / limit - 1) / (up(whole, limit) / limit); }

inline void put(float *to, Vector v, bool past) {
#if defined(__AVX512F__)
  if (past) return _mm512_stream_ps(to, (__m512)v);
#elif defined(__AVX__)
  if (past) return _mm256_stream_ps(to, (__m256)v);
#endif
  (void)past;
  store(to, v);
}

// b's rows lie in one piece: vectors of a row, times numbers of a.
template <int ROWS, int VECTORS, int N, int K, int A_ROW, int A_STEP, int B_ROW, int START_ROW>
void rows_tile(const float *a, const float *b, const float *start, float *out, float beta, float alpha, bool past) {
  Vector sums[ROWS][VECTORS] = {};
  for (int k = 0; k < K; k++) {
    Vector x[VECTORS];
    UNROLLED(int v = 0; v < VECTORS; v++) x[v] = loaded(b + k * B_ROW + v * LANES);
    UNROLLED(int m = 0; m < ROWS; m++) {
      const Vector one = spread(a[m * A_ROW + k * A_STEP]);
      UNROLLED(int v = 0; v < VECTORS; v++) sums[m][v] += one * x[v];
    }
  }
  UNROLLED(int m = 0; m < ROWS; m++) UNROLLED(int v = 0; v < VECTORS; v++) {
    Vector sum = alpha * sums[m][v];
    if (start) sum += beta * loaded(start + m * START_ROW + v * LANES);
    put(out + m * N + v * LANES, sum, past);
  }
}

// `past`: past the cache, for results that are not read again here.
template <int M, int N, int K, int A_ROW, int A_STEP, int B_ROW, int START_ROW>
void by_rows(const float *a, const float *b, const float *start, float *out, float beta, float alpha, bool past) {
  if constexpr (N < LANES) {
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) {
        float sum = 0;
        for (int k = 0; k < K; k++) sum += a[m * A_ROW + k * A_STEP] * b[k * B_ROW + n];
        out[m * N + n] = alpha * sum + (start ? beta * start[m * START_ROW + n] : 0);
      }
  } else {
    constexpr int ROWS = share(M, 8), WIDE = least(SUMS / ROWS, N / LANES);
    past = past && N % LANES == 0 && reinterpret_cast<std::uintptr_t>(out) % sizeof(Vector) == 0;
    for (int column = 0, wide; column < N; column += wide) {
      wide = column + WIDE * LANES <= N ? WIDE * LANES : LANES;
      const int n = least(column, N - LANES);
      auto *const tile = wide > LANES ? rows_tile<ROWS, WIDE, N, K, A_ROW, A_STEP, B_ROW, START_ROW>
                                      : rows_tile<ROWS, 1, N, K, A_ROW, A_STEP, B_ROW, START_ROW>;
      for (int row = 0; row < M; row += ROWS) {
        const int m = least(row, M - ROWS);
        tile(a + m * A_ROW, b + n, start ? start + m * START_ROW + n : nullptr, out + m * N + n, beta, alpha, past);
      }
    }
  }
}

// b's columns lie in one piece, and so do a's rows: vectors of one, times vectors of the other.
template <int ROWS, int COLUMNS, int N, int K, int A_ROW, int B_COLUMN, int START_ROW, int START_STEP>
void columns_tile(const float *a, const float *b, const float *start, float *out, float beta, float alpha) {
  Vector sums[ROWS][COLUMNS] = {};
  for (int k = 0; k + LANES <= K; k += LANES) {
    Vector x[COLUMNS];
    UNROLLED(int n = 0; n < COLUMNS; n++) x[n] = loaded(b + n * B_COLUMN + k);
    UNROLLED(int m = 0; m < ROWS; m++) {
      const Vector one = loaded(a + m * A_ROW + k);
      UNROLLED(int n = 0; n < COLUMNS; n++) sums[m][n] += one * x[n];
    }
  }
  UNROLLED(int m = 0; m < ROWS; m++) UNROLLED(int n = 0; n < COLUMNS; n++) {
    float sum = total(sums[m][n]);
    for (int k = K / LANES * LANES; k < K; k++) sum += a[m * A_ROW + k] * b[n * B_COLUMN + k];
    out[m * N + n] = alpha * sum + (start ? beta * start[m * START_ROW + n * START_STEP] : 0);
  }
}

template <int M, int N, int K, int A_ROW, int B_COLUMN, int START_ROW, int START_STEP>
void by_columns(const float *a, const float *b, const float *start, float *out, float beta, float alpha) {
  constexpr int COLUMNS = share(N, 4), ROWS = share(M, SUMS / 4);
  for (int row = 0; row < M; row += ROWS)
    for (int column = 0; column < N; column += COLUMNS) {
      const int m = least(row, M - ROWS), n = least(column, N - COLUMNS);
      columns_tile<ROWS, COLUMNS, N, K, A_ROW, B_COLUMN, START_ROW, START_STEP>(
          a + m * A_ROW, b + n * B_COLUMN, start ? start + m * START_ROW + n * START_STEP : nullptr, out + m * N + n,
          beta, alpha);
    }
}

// After results that went past the cache, before other processes read them.
inline void written() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

}  // namespace products
