// One convolution of stride 1 with few channels: forward, and the gradients of its weights and of its input.
//
// Compiled for one geometry, given as macros: C_IN, C_OUT; HEIGHT, WIDTH of the input; K_HEIGHT, K_WIDTH of the kernel;
// PAD_Y, PAD_X. Tensors are float32 in plain order: x [n, C_IN, HEIGHT, WIDTH], weight [C_OUT, C_IN, K_HEIGHT, K_WIDTH],
// bias [C_OUT], y and g [n, C_OUT, ROWS, COLUMNS].
//
// A plane is one long vector: with outputs at the pitch of the padded input, a tap of the kernel is a shift, and a vector
// is a run of neighbours. What is computed between the rows is dropped. Sums stay in registers: those of a block of
// channels times some vectors.

#include "vectors.h"

namespace {

constexpr int PADDED = HEIGHT + 2 * PAD_Y, PITCH = WIDTH + 2 * PAD_X;
constexpr int ROWS = PADDED - K_HEIGHT + 1, COLUMNS = PITCH - K_WIDTH + 1, TAPS = K_HEIGHT * K_WIDTH;
constexpr int SLACK = (SUMS + 1) * LANES + K_WIDTH;  // numbers read behind the last plane, of no effect

// Channels whose sums are made together: few are wasted if they divide the channels, and eight share each load.
constexpr int block_of(int channels, int largest) {
  int best = 1;
  for (int block = 1; block <= largest; block++)
    if (up(channels, block) <= up(channels, best)) best = block;
  return best;
}

void rows_copied(float *to, int to_pitch, const float *from, int from_pitch, int rows, int width) {
  for (int row = 0; row < rows; row++) std::memcpy(to + row * to_pitch, from + row * from_pitch, sizeof(float) * width);
}

// The correlation of C_FROM planes, each FROM numbers, of which the first and last ZEROS rows are zero, with kernels
// w [C_FROM, TAPS, C_TO], to C_TO planes of LENGTH numbers, each kept in the next multiple of LANES.
template <int C_FROM, int FROM, int ZEROS, int C_TO, int LENGTH>
struct Correlation {
  static constexpr int BLOCK = block_of(C_TO, 8), WIDE = SUMS / BLOCK;
  static constexpr int CHANNELS = up(C_TO, BLOCK), VECTORS = up(LENGTH, LANES) / LANES, TO = VECTORS * LANES;
  static constexpr int WEIGHTS = C_FROM * TAPS * CHANNELS;

  // Rows of taps from `first` up to `last` meet numbers that are not zero.
  template <int N>
  static void tile(const float *from, const float *w, const float *bias, float *to, int first, int last) {
    Vector sums[BLOCK][N];
    UNROLLED(int c = 0; c < BLOCK; c++) UNROLLED(int v = 0; v < N; v++) sums[c][v] = spread(bias ? bias[c] : 0.0f);
    for (int i = 0; i < C_FROM; i++)
      for (int ky = first; ky < last; ky++) {
        const float *x = from + i * FROM + ky * PITCH, *taps = w + (i * TAPS + ky * K_WIDTH) * CHANNELS;
        UNROLLED(int kx = 0; kx < K_WIDTH; kx++) {
          Vector moved[N];
          UNROLLED(int v = 0; v < N; v++) moved[v] = loaded(x + kx + v * LANES);
          UNROLLED(int c = 0; c < BLOCK; c++) {
            const Vector tap = spread(taps[kx * CHANNELS + c]);
            UNROLLED(int v = 0; v < N; v++) sums[c][v] += moved[v] * tap;
          }
        }
      }
    UNROLLED(int c = 0; c < BLOCK; c++) UNROLLED(int v = 0; v < N; v++) store(to + c * TO + v * LANES, sums[c][v]);
  }

  static void run(const float *from, const float *w, const float *bias, float *to) {
    constexpr int rest = VECTORS % WIDE;
    for (int c = 0; c < CHANNELS; c += BLOCK) {
      const float *own = bias ? bias + c : nullptr;
      for (int v = 0; v < VECTORS; v += WIDE) {
        const int at = v * LANES, end = least(at + WIDE * LANES, LENGTH) - 1;
        const int first = ZEROS ? most(0, ZEROS - end / PITCH) : 0;
        const int last = ZEROS ? least(K_HEIGHT, FROM / PITCH - ZEROS - at / PITCH) : K_HEIGHT;
        if (v + WIDE <= VECTORS)
          tile<WIDE>(from + at, w + c, own, to + c * TO + at, first, last);
        else
          tile<rest ? rest : 1>(from + at, w + c, own, to + c * TO + at, first, last);
      }
    }
  }
};

constexpr int IN = PADDED * PITCH;
using Forward = Correlation<C_IN, IN, 0, C_OUT, (ROWS - 1) * PITCH + COLUMNS>;

// The gradient of the input is the correlation of g, rows of zeros around it, with the kernels turned by 180 degrees.
// The numbers between two rows of g are the right margin of one and the left margin of the other.
constexpr int MARGIN = K_HEIGHT - 1, OUT = (ROWS + 2 * MARGIN) * PITCH + K_WIDTH - 1;
using Backward = Correlation<C_OUT, OUT, MARGIN, C_IN, IN>;

// The forward pass with output channels in vectors, where they fill them: no number between two rows is computed.
struct ByChannels {
  static constexpr int WIDE = COLUMNS < SUMS ? COLUMNS : SUMS, HIGH = most(1, least(ROWS, SUMS / COLUMNS));
  static constexpr bool USED = C_OUT % LANES == 0 && COLUMNS % WIDE == 0 && ROWS % HIGH == 0;

  // HIGH x WIDE outputs of LANES channels. w [C_IN, TAPS, CHANNELS], y [C_OUT, ROWS, COLUMNS]
  static void tile(const float *from, const float *w, const float *bias, float *y) {
    Vector sums[HIGH][WIDE];
    const Vector first = loaded(bias);
    UNROLLED(int r = 0; r < HIGH; r++) UNROLLED(int p = 0; p < WIDE; p++) sums[r][p] = first;
    for (int i = 0; i < C_IN; i++)
      for (int ky = 0; ky < K_HEIGHT; ky++) {
        const float *x = from + i * IN + ky * PITCH, *taps = w + (i * TAPS + ky * K_WIDTH) * Forward::CHANNELS;
        for (int kx = 0; kx < K_WIDTH; kx++) {
          const Vector tap = loaded(taps + kx * Forward::CHANNELS);
          UNROLLED(int r = 0; r < HIGH; r++)
            UNROLLED(int p = 0; p < WIDE; p++) sums[r][p] += spread(x[r * PITCH + p + kx]) * tap;
        }
      }
    float numbers[HIGH * WIDE][LANES];
    UNROLLED(int r = 0; r < HIGH; r++) UNROLLED(int p = 0; p < WIDE; p++) store(numbers[r * WIDE + p], sums[r][p]);
    for (int c = 0; c < LANES; c++)
      for (int r = 0; r < HIGH; r++)
        for (int p = 0; p < WIDE; p++) y[(c * ROWS + r) * COLUMNS + p] = numbers[r * WIDE + p][c];
  }

  static void run(const float *from, const float *w, const float *bias, float *y) {
    for (int c = 0; c < C_OUT; c += LANES)
      for (int row = 0; row < ROWS; row += HIGH)
        for (int column = 0; column < COLUMNS; column += WIDE)
          tile(from + row * PITCH + column, w + c, bias + c, y + (c * ROWS + row) * COLUMNS + column);
  }
};

void put(const float *x, float *planes) {
  for (int i = 0; i < C_IN; i++)
    rows_copied(planes + i * IN + PAD_Y * PITCH + PAD_X, PITCH, x + i * HEIGHT * WIDTH, WIDTH, HEIGHT, WIDTH);
}

// Channels whose weight gradients are summed at once. Loads cost too: shifted ones cross lines of the cache.
constexpr int weight_block() {
  int best = 1, price = 1 << 30;
  for (int block = 1; block == 1 || block * K_WIDTH <= SUMS - 4; block++) {
    const int all = up(C_OUT, block) / block * most(block * K_WIDTH, block + 2 * K_WIDTH);
    if (all <= price) best = block, price = all;
  }
  return best;
}

// The gradient of the weights: sums over places of g [c] times x, shifted; K_WIDTH shifts of a block of channels at once.
struct Weights {
  static constexpr int BLOCK = weight_block(), CHANNELS = up(C_OUT, BLOCK), VECTORS = Forward::VECTORS, PLANE = Forward::TO;
  static constexpr int TOGETHER = most(1, 32 / VECTORS);  // samples, where few vectors hide what keeping sums costs

  static void add(const float *g, const float *x, Vector *kept, int samples) {
    Vector sums[BLOCK][K_WIDTH];
    UNROLLED(int c = 0; c < BLOCK; c++) UNROLLED(int kx = 0; kx < K_WIDTH; kx++) sums[c][kx] = kept[c * K_WIDTH + kx];
    for (int s = 0; s < samples; s++)
      for (int p = 0; p < PLANE; p += LANES) {
        Vector one[BLOCK];
        UNROLLED(int c = 0; c < BLOCK; c++) one[c] = loaded(g + s * CHANNELS * PLANE + c * PLANE + p);
        UNROLLED(int kx = 0; kx < K_WIDTH; kx++) {
          const Vector moved = loaded(x + s * C_IN * IN + p + kx);
          UNROLLED(int c = 0; c < BLOCK; c++) sums[c][kx] += one[c] * moved;
        }
      }
    UNROLLED(int c = 0; c < BLOCK; c++) UNROLLED(int kx = 0; kx < K_WIDTH; kx++) kept[c * K_WIDTH + kx] = sums[c][kx];
  }
};

thread_local float planes[Weights::TOGETHER * C_IN * IN + SLACK] __attribute__((aligned(64)));
thread_local float gradients[most(Weights::TOGETHER * Weights::CHANNELS * Weights::PLANE, C_OUT * OUT) + SLACK]
    __attribute__((aligned(64)));
thread_local float results[most(Forward::CHANNELS * Forward::TO, Backward::CHANNELS * Backward::TO)]
    __attribute__((aligned(64)));
thread_local float weights[most(Forward::WEIGHTS, Backward::WEIGHTS)], biases[Forward::CHANNELS];
thread_local Vector sums[Weights::CHANNELS * C_IN * TAPS], ones[C_OUT];

}  // namespace

extern "C" {

// bias may be null.
void forward(const float *x, const float *weight, const float *bias, float *y, int n) {
  std::memset(weights, 0, sizeof(float) * Forward::WEIGHTS);
  for (int c = 0; c < C_OUT; c++) {
    biases[c] = bias ? bias[c] : 0.0f;
    for (int t = 0; t < C_IN * TAPS; t++) weights[t * Forward::CHANNELS + c] = weight[c * C_IN * TAPS + t];
  }
  if (PAD_Y || PAD_X) std::memset(planes, 0, sizeof planes);
  for (int s = 0; s < n; s++) {
    put(x + std::size_t(s) * C_IN * HEIGHT * WIDTH, planes);
    float *to = y + std::size_t(s) * C_OUT * ROWS * COLUMNS;
    if constexpr (ByChannels::USED) {
      ByChannels::run(planes, weights, biases, to);
      continue;
    }
    Forward::run(planes, weights, biases, results);
    for (int c = 0; c < C_OUT; c++)
      rows_copied(to + c * ROWS * COLUMNS, COLUMNS, results + c * Forward::TO, PITCH, ROWS, COLUMNS);
  }
}

// gx [n, C_IN, HEIGHT, WIDTH]
void input_gradient(const float *g, const float *weight, float *gx, int n) {
  std::memset(weights, 0, sizeof(float) * Backward::WEIGHTS);
  for (int c = 0; c < C_OUT; c++)
    for (int i = 0; i < C_IN; i++)
      for (int t = 0; t < TAPS; t++)
        weights[(c * TAPS + TAPS - 1 - t) * Backward::CHANNELS + i] = weight[(c * C_IN + i) * TAPS + t];
  std::memset(gradients, 0, sizeof(float) * C_OUT * OUT);
  for (int s = 0; s < n; s++) {
    const float *from = g + std::size_t(s) * C_OUT * ROWS * COLUMNS;
    for (int c = 0; c < C_OUT; c++)
      rows_copied(gradients + c * OUT + MARGIN * PITCH + K_WIDTH - 1, PITCH, from + c * ROWS * COLUMNS, COLUMNS, ROWS, COLUMNS);
    Backward::run(gradients, weights, nullptr, results);
    float *to = gx + std::size_t(s) * C_IN * HEIGHT * WIDTH;
    for (int i = 0; i < C_IN; i++)
      rows_copied(to + i * HEIGHT * WIDTH, WIDTH, results + i * Backward::TO + PAD_Y * PITCH + PAD_X, PITCH, HEIGHT, WIDTH);
  }
}

// gw as weight, gb [C_OUT]
void weight_gradient(const float *g, const float *x, float *gw, float *gb, int n) {
  constexpr int CHANNELS = Weights::CHANNELS, PLANE = Weights::PLANE;
  std::memset(sums, 0, sizeof sums);
  std::memset(ones, 0, sizeof ones);
  std::memset(gradients, 0, sizeof(float) * Weights::TOGETHER * CHANNELS * PLANE);
  if (PAD_Y || PAD_X) std::memset(planes, 0, sizeof planes);
  for (int first = 0; first < n; first += Weights::TOGETHER) {
    const int samples = least(Weights::TOGETHER, n - first);
    // Numbers behind the last plane meet zeros in g; what another batch has left there might be infinite.
    std::memset(planes + samples * C_IN * IN, 0, sizeof(float) * SLACK);
    for (int s = 0; s < samples; s++) {
      put(x + std::size_t(first + s) * C_IN * HEIGHT * WIDTH, planes + s * C_IN * IN);
      const float *from = g + std::size_t(first + s) * C_OUT * ROWS * COLUMNS;
      for (int c = 0; c < C_OUT; c++) {
        float *own = gradients + (s * CHANNELS + c) * PLANE;
        rows_copied(own, PITCH, from + c * ROWS * COLUMNS, COLUMNS, ROWS, COLUMNS);
        for (int p = 0; p < PLANE; p += LANES) ones[c] += loaded(own + p);
      }
    }
    Vector *kept = sums;
    for (int c = 0; c < CHANNELS; c += Weights::BLOCK)
      for (int i = 0; i < C_IN; i++)
        for (int ky = 0; ky < K_HEIGHT; ky++, kept += Weights::BLOCK * K_WIDTH)
          Weights::add(gradients + c * PLANE, planes + i * IN + ky * PITCH, kept, samples);
  }
  for (int c = 0; c < C_OUT; c++) {
    gb[c] = total(ones[c]);
    const Vector *block = sums + c / Weights::BLOCK * C_IN * K_HEIGHT * Weights::BLOCK * K_WIDTH;
    for (int row = 0; row < C_IN * K_HEIGHT; row++)
      for (int kx = 0; kx < K_WIDTH; kx++)
        gw[(c * C_IN * K_HEIGHT + row) * K_WIDTH + kx] =
            total(block[(row * Weights::BLOCK + c % Weights::BLOCK) * K_WIDTH + kx]);
  }
}

}  // extern "C"
