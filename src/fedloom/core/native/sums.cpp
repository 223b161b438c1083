// Sums of many rows, one row after another: total[i] += weights[r] rows[r][i], each product and sum rounded once.
//
// Several rows in each pass over `total`: one row at a time, it is read and written more often than the rows.

#include <cmath>

namespace {

// A block of `total` stays in the nearest cache.
constexpr long BLOCK = 4096;

inline double added(double total, double weight, float number) {
#if defined(FP_FAST_FMA)
  return std::fma(weight, static_cast<double>(number), total);
#else
  return total + weight * static_cast<double>(number);
#endif
}

template <int ROWS>
void pass(double *total, const float *const *rows, const double *weights, long start, long end) {
#pragma omp simd
  for (long i = start; i < end; i++) {
    double sum = total[i];
    for (int r = 0; r < ROWS; r++) sum = added(sum, weights[r], rows[r][i]);
    total[i] = sum;
  }
}

}  // namespace

extern "C" void add_scaled(double *total, const float *const *rows, const double *weights, int count, long size) {
  for (long start = 0; start < size; start += BLOCK) {
    const long end = start + BLOCK < size ? start + BLOCK : size;
    int row = 0;
    for (; row + 4 <= count; row += 4) pass<4>(total, rows + row, weights + row, start, end);
    for (; row < count; row++) pass<1>(total, rows + row, weights + row, start, end);
  }
}
