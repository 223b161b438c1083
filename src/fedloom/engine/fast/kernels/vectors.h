// Vectors of float32 as wide as the processor's registers, for GCC and Clang.

#pragma once

#include <cstddef>
#include <cstring>

#if defined(__AVX512F__)
constexpr int LANES = 16, SUMS = 24;  // SUMS: vectors that fit in the registers, beside what is added to them
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#elif defined(__AVX2__)
constexpr int LANES = 8, SUMS = 12;
#define IN_REGISTER(v) __asm__("" : "+x"(v))
#else
constexpr int LANES = 4, SUMS = 12;
#define IN_REGISTER(v) (void)(v)
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef float Unaligned __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));
typedef float Quarter __attribute__((vector_size(4 * sizeof(float)), aligned(sizeof(float)), may_alias));

#define UNROLLED _Pragma("GCC unroll 32") for

static inline Vector loaded(const float *from) {
  Vector v = *reinterpret_cast<const Unaligned *>(from);
  IN_REGISTER(v);  // else each use would load it again
  return v;
}

static inline void store(float *to, Vector v) { *reinterpret_cast<Unaligned *>(to) = v; }

// A number in all lanes. Subtracting zero costs nothing; adding it would, because it changes -0.
static inline Vector spread(float number) { return number - Vector{}; }

static inline float total(Vector v) {
  float lanes[LANES];
  store(lanes, v);
  Quarter sum = {};
  for (int lane = 0; lane < LANES; lane += 4) sum += *reinterpret_cast<const Quarter *>(lanes + lane);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

constexpr int up(int number, int multiple) { return (number + multiple - 1) / multiple * multiple; }
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int most(int a, int b) { return a > b ? a : b; }
