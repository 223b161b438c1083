// Maxima of 2x2 windows and their gradients. Compiled for one geometry, given as macros: HEIGHT, WIDTH of the input.
//
// Tensors are in plain order: x [planes, HEIGHT, WIDTH], y, g and places [planes, ROWS, COLUMNS]; a last odd row or column
// is in no window. `places`: which of a window's four numbers, row after row, is the maximum.

#include <utility>

#include "vectors.h"

namespace {

constexpr int ROWS = HEIGHT / 2, COLUMNS = WIDTH / 2;
constexpr int REACH = up(COLUMNS, LANES);  // a row of windows is taken in whole vectors

typedef int Places __attribute__((vector_size(LANES * sizeof(int))));
typedef int UnalignedPlaces __attribute__((vector_size(LANES * sizeof(int)), aligned(sizeof(int)), may_alias));
using Lanes = std::make_integer_sequence<int, LANES>;

// Every second number of two vectors, from the one at FIRST.
template <int FIRST, int... LANE>
Vector every_second(Vector a, Vector b, std::integer_sequence<int, LANE...>) {
  return __builtin_shufflevector(a, b, (2 * LANE + FIRST)...);
}

// The numbers of two vectors in turns, from half HALF of both.
template <int HALF, int... LANE>
Vector in_turns(Vector a, Vector b, std::integer_sequence<int, LANE...>) {
  return __builtin_shufflevector(a, b, ((HALF * LANES + LANE) / 2 + LANE % 2 * LANES)...);
}

// Not a number is larger than all numbers; of equal ones the first counts.
Places larger(Vector a, Vector b) { return (a > b) | (a != a); }

void maxima(const float *upper, const float *lower, float *y, int *places) {
  for (int i = 0; i < REACH; i += LANES) {
    const Vector u0 = loaded(upper + 2 * i), u1 = loaded(upper + 2 * i + LANES);
    const Vector l0 = loaded(lower + 2 * i), l1 = loaded(lower + 2 * i + LANES);
    const Vector a = every_second<0>(u0, u1, Lanes{}), b = every_second<1>(u0, u1, Lanes{});
    const Vector c = every_second<0>(l0, l1, Lanes{}), d = every_second<1>(l0, l1, Lanes{});
    const Places right = larger(b, a), right_below = larger(d, c);
    const Vector above = right ? b : a, below = right_below ? d : c;
    const Places lies_below = larger(below, above);
    store(y + i, lies_below ? below : above);
    *reinterpret_cast<UnalignedPlaces *>(places + i) = lies_below ? 2 - right_below : -right;
  }
}

// One row of gradients from two of its numbers' places, FIRST and the next.
template <int FIRST>
void spread_out(const float *g, const int *places, float *row) {
  for (int i = 0; i < REACH; i += LANES) {
    const Vector one = loaded(g + i), zero{};
    const Places place = *reinterpret_cast<const UnalignedPlaces *>(places + i);
    const Vector left = place == FIRST ? one : zero, right = place == FIRST + 1 ? one : zero;
    store(row + 2 * i, in_turns<0>(left, right, Lanes{}));
    store(row + 2 * i + LANES, in_turns<1>(left, right, Lanes{}));
  }
}

}  // namespace

extern "C" {

// Vectors that reach behind a row write what the next row then overwrites. Rows near the end go by way of the stack.
void forward(const float *x, float *y, int *places, std::ptrdiff_t planes) {
  const std::ptrdiff_t rows = planes * ROWS;
  const float *end = x + planes * HEIGHT * WIDTH;
  for (std::ptrdiff_t row = 0; row < rows; row++) {
    const float *upper = x + (row / ROWS * HEIGHT + row % ROWS * 2) * WIDTH, *lower = upper + WIDTH;
    if (end - lower >= 2 * REACH && (rows - row) * COLUMNS >= REACH) {
      maxima(upper, lower, y + row * COLUMNS, places + row * COLUMNS);
    } else {
      float above[2 * REACH] = {}, below[2 * REACH] = {}, found[REACH];
      int at[REACH];
      std::memcpy(above, upper, sizeof(float) * 2 * COLUMNS);
      std::memcpy(below, lower, sizeof(float) * 2 * COLUMNS);
      maxima(above, below, found, at);
      std::memcpy(y + row * COLUMNS, found, sizeof(float) * COLUMNS);
      std::memcpy(places + row * COLUMNS, at, sizeof(int) * COLUMNS);
    }
  }
}

// gx as x
void backward(const float *g, const int *places, float *gx, std::ptrdiff_t planes) {
  const std::ptrdiff_t rows = planes * ROWS;
  const float *end = gx + planes * HEIGHT * WIDTH;
  for (std::ptrdiff_t row = 0; row < rows; row++) {
    float *upper = gx + (row / ROWS * HEIGHT + row % ROWS * 2) * WIDTH, *lower = upper + WIDTH;
    if (end - lower >= 2 * REACH && (rows - row) * COLUMNS >= REACH) {
      spread_out<0>(g + row * COLUMNS, places + row * COLUMNS, upper);
      spread_out<2>(g + row * COLUMNS, places + row * COLUMNS, lower);
    } else {
      float given[REACH] = {}, above[2 * REACH], below[2 * REACH];
      int at[REACH] = {};
      std::memcpy(given, g + row * COLUMNS, sizeof(float) * COLUMNS);
      std::memcpy(at, places + row * COLUMNS, sizeof(int) * COLUMNS);
      spread_out<0>(given, at, above);
      spread_out<2>(given, at, below);
      std::memcpy(upper, above, sizeof(float) * 2 * COLUMNS);
      std::memcpy(lower, below, sizeof(float) * 2 * COLUMNS);
    }
    if (WIDTH % 2) upper[WIDTH - 1] = lower[WIDTH - 1] = 0.0f;
    if (HEIGHT % 2 && row % ROWS == ROWS - 1) std::memset(lower + WIDTH, 0, sizeof(float) * WIDTH);
  }
}

}  // extern "C"
