// The project's kernels as operators of torch. They need no Python, so threads can run them side by side.
//
// A kernel is compiled for one geometry. Python loads it and passes the addresses of its functions to the registry. Tensors
// are float32 on the CPU.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <tuple>

namespace {

using at::Tensor;

struct Convolution {
  void (*forward)(const float *x, const float *weight, const float *bias, float *y, int n);
  void (*input_gradient)(const float *g, const float *weight, float *gx, int n);
  void (*weight_gradient)(const float *g, const float *x, float *gw, float *gb, int n);
};

struct Pooling {
  void (*forward)(const float *x, float *y, int *argmax, std::ptrdiff_t planes);
  void (*backward)(const float *g, const int *argmax, float *gx, std::ptrdiff_t planes);
};

// Kernels by geometry, which is what they were compiled for: the values of their macros.
template <class Kernel, std::size_t SIZE>
class Kernels {
 public:
  using Geometry = std::array<int64_t, SIZE>;

  void add(at::IntArrayRef values, Kernel kernel) {
    TORCH_CHECK(values.size() == SIZE, "a geometry of ", values.size(), " numbers; need ", SIZE);
    Geometry geometry;
    std::copy(values.begin(), values.end(), geometry.begin());
    std::unique_lock lock(mutex_);
    kernels_[geometry] = kernel;
  }

  Kernel of(const Geometry &geometry) {
    std::shared_lock lock(mutex_);
    const auto entry = kernels_.find(geometry);
    TORCH_CHECK(entry != kernels_.end(), "no kernel was compiled for the geometry ", at::IntArrayRef(geometry));
    return entry->second;
  }

 private:
  std::shared_mutex mutex_;
  std::map<Geometry, Kernel> kernels_;
};

Kernels<Convolution, 8> convolutions;
Kernels<Pooling, 2> poolings;

template <class Function>
void set(Function &function, int64_t address) { function = reinterpret_cast<Function>(address); }

// Not operators, which a recording of steps would contain.
struct Registry : torch::CustomClassHolder {
  void add_convolution(std::vector<int64_t> geometry, int64_t forward, int64_t input_gradient, int64_t weight_gradient) {
    Convolution kernel;
    set(kernel.forward, forward), set(kernel.input_gradient, input_gradient), set(kernel.weight_gradient, weight_gradient);
    convolutions.add(geometry, kernel);
  }

  void add_pooling(std::vector<int64_t> geometry, int64_t forward, int64_t backward) {
    Pooling kernel;
    set(kernel.forward, forward), set(kernel.backward, backward);
    poolings.add(geometry, kernel);
  }
};

const float *read(const Tensor &tensor) { return tensor.const_data_ptr<float>(); }
float *write(const Tensor &tensor) { return tensor.mutable_data_ptr<float>(); }

Tensor convolution(const Tensor &x_, const Tensor &weight_, const std::optional<Tensor> &bias_, int64_t pad_y, int64_t pad_x) {
  const Tensor x = x_.contiguous(), weight = weight_.contiguous(), bias = bias_ ? bias_->contiguous() : Tensor();
  const int64_t n = x.size(0), height = x.size(2), width = x.size(3), k_height = weight.size(2), k_width = weight.size(3);
  const auto kernel = convolutions.of({x.size(1), weight.size(0), height, width, k_height, k_width, pad_y, pad_x});
  Tensor y = at::empty({n, weight.size(0), height + 2 * pad_y - k_height + 1, width + 2 * pad_x - k_width + 1}, x.options());
  kernel.forward(read(x), read(weight), bias.defined() ? read(bias) : nullptr, write(y), n);
  return y;
}

Tensor convolution_input(const Tensor &g_, const Tensor &weight_, int64_t pad_y, int64_t pad_x) {
  const Tensor g = g_.contiguous(), weight = weight_.contiguous();
  const int64_t c_out = weight.size(0), c_in = weight.size(1), k_height = weight.size(2), k_width = weight.size(3);
  const int64_t height = g.size(2) - 2 * pad_y + k_height - 1, width = g.size(3) - 2 * pad_x + k_width - 1;
  const auto kernel = convolutions.of({c_in, c_out, height, width, k_height, k_width, pad_y, pad_x});
  Tensor gx = at::empty({g.size(0), c_in, height, width}, g.options());
  kernel.input_gradient(read(g), read(weight), write(gx), g.size(0));
  return gx;
}

std::tuple<Tensor, Tensor> convolution_weight(
    const Tensor &g_, const Tensor &x_, int64_t k_height, int64_t k_width, int64_t pad_y, int64_t pad_x) {
  const Tensor g = g_.contiguous(), x = x_.contiguous();
  const int64_t c_in = x.size(1), c_out = g.size(1);
  const auto kernel = convolutions.of({c_in, c_out, x.size(2), x.size(3), k_height, k_width, pad_y, pad_x});
  Tensor gw = at::empty({c_out, c_in, k_height, k_width}, g.options()), gb = at::empty({c_out}, g.options());
  kernel.weight_gradient(read(g), read(x), write(gw), write(gb), x.size(0));
  return {gw, gb};
}

std::tuple<Tensor, Tensor> max_pool2(const Tensor &x_) {
  const Tensor x = x_.contiguous();
  const int64_t n = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3);
  Tensor y = at::empty({n, channels, height / 2, width / 2}, x.options());
  Tensor argmax = at::empty(y.sizes(), x.options().dtype(at::kInt));
  poolings.of({height, width}).forward(read(x), write(y), argmax.mutable_data_ptr<int>(), n * channels);
  return {y, argmax};
}

Tensor max_pool2_backward(const Tensor &g_, const Tensor &argmax, int64_t height, int64_t width) {
  const Tensor g = g_.contiguous();
  Tensor gx = at::empty({g.size(0), g.size(1), height, width}, g.options());
  poolings.of({height, width}).backward(read(g), argmax.const_data_ptr<int>(), write(gx), g.size(0) * g.size(1));
  return gx;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fedloom, library) {
  library.class_<Registry>("Registry")
      .def(torch::init<>())
      .def("add_convolution", &Registry::add_convolution)
      .def("add_pooling", &Registry::add_pooling);
  library.def("convolution(Tensor x, Tensor weight, Tensor? bias, int pad_y, int pad_x) -> Tensor");
  library.def("convolution_input(Tensor g, Tensor weight, int pad_y, int pad_x) -> Tensor");
  library.def(
      "convolution_weight(Tensor g, Tensor x, int k_height, int k_width, int pad_y, int pad_x) -> (Tensor, Tensor)");
  library.def("max_pool2(Tensor x) -> (Tensor, Tensor)");
  library.def("max_pool2_backward(Tensor g, Tensor argmax, int height, int width) -> Tensor");
}

TORCH_LIBRARY_IMPL(fedloom, CPU, library) {
  library.impl("convolution", convolution);
  library.impl("convolution_input", convolution_input);
  library.impl("convolution_weight", convolution_weight);
  library.impl("max_pool2", max_pool2);
  library.impl("max_pool2_backward", max_pool2_backward);
}
