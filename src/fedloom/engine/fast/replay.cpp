// Training steps as flat lists of ATen calls, replayed on threads that need no Python. README.md explains the whole.
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/custom_class.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace {

using at::Tensor;
using c10::IValue;
using Registers = std::vector<IValue>;
using Tensors = std::vector<Tensor>;

// How an operand is made; recording.py uses the same numbers.
enum Kind : int64_t { CONSTANT, REGISTER, TENSORS, OPTIONAL_TENSORS, INTEGERS, STEP_NUMBER, GENERATOR };

struct Operand {
  int64_t kind;
  std::vector<int64_t> registers;
  IValue value;
};

struct Call {
  c10::OperatorHandle op;
  std::vector<Operand> operands;
  std::vector<int64_t> outputs;  // -1: not needed
  std::vector<int64_t> dead;     // registers that no later call reads
  bool returns_list;
};

// A Python number where the schema has a tensor: a wrapped number, which does not promote the other operand.
Tensor wrapped(const IValue& number) {
  Tensor tensor = number.isDouble() ? at::scalar_tensor(number.toDouble(), at::kDouble)
                  : number.isBool() ? at::scalar_tensor(number.toBool(), at::kBool)
                                    : at::scalar_tensor(number.toInt(), at::kLong);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

c10::TypePtr without_optional(const c10::TypePtr& type) {
  auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

IValue converted(const IValue& value, const c10::TypePtr& type) {
  bool is_number = value.isDouble() || value.isInt() || value.isBool();
  if (is_number && type->kind() == c10::TypeKind::TensorType) return wrapped(value);
  if (value.isInt() && type->kind() == c10::TypeKind::FloatType) return static_cast<double>(value.toInt());
  return value;
}

IValue integers(const std::vector<int64_t>& values, const c10::TypePtr& type) {
  auto list = type->cast<c10::ListType>();
  if (!list || list->getElementType()->kind() != c10::TypeKind::BoolType) return c10::List<int64_t>(values);
  c10::List<bool> flags;
  for (int64_t value : values) flags.push_back(value != 0);
  return flags;
}

// The calls of one step. Registers 0, 1, ... hold the inputs: weights, rates, optimiser state, constants, samples.
struct Program : torch::CustomClassHolder {
  std::vector<Call> calls;
  std::vector<std::pair<int64_t, Tensor>> captured;
  std::vector<int64_t> results;  // `scalars` numbers, then `taps` tensors, then new state that the next step finds
  std::vector<bool> copied;      // of each tensor of new state: whether others may have it
  int64_t scalars = 0, taps = 0, registers = 0, numbers = 0;

  void capture(int64_t index, Tensor tensor) { captured.emplace_back(index, std::move(tensor)); }

  void call(const std::string& name, const std::string& overload, std::vector<int64_t> kinds,
            std::vector<std::vector<int64_t>> operand_registers, const c10::List<IValue>& constants,
            std::vector<int64_t> outputs, std::vector<int64_t> dead) {
    auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
    const auto& schema = op.schema();
    Call added{op, {}, std::move(outputs), std::move(dead), false};
    added.returns_list = schema.returns().size() == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::ListType;
    TORCH_CHECK(kinds.size() == schema.arguments().size(), name, ": wrong number of operands");
    for (size_t i = 0; i < kinds.size(); i++) {
      auto type = without_optional(schema.arguments()[i].type());
      Operand operand{kinds[i], std::move(operand_registers[i]), IValue()};
      if (operand.kind == INTEGERS) operand.value = integers(operand.registers, type), operand.kind = CONSTANT;
      else if (operand.kind == CONSTANT) operand.value = converted(constants.get(i), type);
      else if (operand.kind == STEP_NUMBER) operand.value = type->kind() == c10::TypeKind::TensorType;
      added.operands.push_back(std::move(operand));
    }
    calls.push_back(std::move(added));
  }

  void finish(int64_t register_count, std::vector<int64_t> result_registers, int64_t scalar_count, int64_t tap_count,
              int64_t number_count, const c10::List<bool>& copied_state) {
    registers = register_count, results = std::move(result_registers);
    copied.assign(copied_state.begin(), copied_state.end());
    scalars = scalar_count, taps = tap_count, numbers = number_count;
  }

  void push(const Operand& operand, const Registers& values, const double* step_numbers, const IValue& generator,
            torch::jit::Stack& stack) const {
    switch (operand.kind) {
      case CONSTANT: stack.push_back(operand.value); return;
      case REGISTER: stack.push_back(values[operand.registers[0]]); return;
      case STEP_NUMBER: {
        IValue number(step_numbers[operand.registers[0]]);
        stack.push_back(operand.value.toBool() ? IValue(wrapped(number)) : number);
        return;
      }
      case GENERATOR: stack.push_back(generator); return;
      case TENSORS: {
        c10::List<Tensor> list;
        list.reserve(operand.registers.size());
        for (int64_t index : operand.registers) list.push_back(values[index].toTensor());
        stack.emplace_back(std::move(list));
        return;
      }
      default: {
        c10::List<std::optional<Tensor>> list;
        for (int64_t index : operand.registers)
          list.push_back(index < 0 ? std::nullopt : std::optional<Tensor>(values[index].toTensor()));
        stack.emplace_back(std::move(list));
      }
    }
  }

  // Runs the calls on registers whose inputs are set.
  void run(Registers& values, const double* step_numbers, const IValue& generator, torch::jit::Stack& stack) const {
    if (static_cast<int64_t>(values.size()) < registers) values.resize(registers);
    for (const auto& [index, tensor] : captured) values[index] = tensor;
    for (const Call& call : calls) {
      stack.clear();
      for (const Operand& operand : call.operands) push(operand, values, step_numbers, generator, stack);
      call.op.callBoxed(stack);
      if (call.returns_list) {
        auto list = stack[0].toTensorVector();
        for (size_t i = 0; i < call.outputs.size(); i++)
          if (call.outputs[i] >= 0) values[call.outputs[i]] = std::move(list[i]);
      } else {
        for (size_t i = 0; i < call.outputs.size(); i++)
          if (call.outputs[i] >= 0) values[call.outputs[i]] = std::move(stack[i]);
      }
      for (int64_t index : call.dead) values[index] = IValue();
    }
  }
};

// The training set, from which threads gather and normalise batches as `Dataset.gather` does.
struct Samples : torch::CustomClassHolder {
  Tensor x, y;
  std::vector<float> mean, deviation;
  int64_t numbers, width;  // in one sample, and labels of it

  Samples(Tensor inputs, Tensor labels, const std::vector<double>& means, const std::vector<double>& deviations)
      : x(std::move(inputs)), y(std::move(labels)), mean(means.begin(), means.end()),
        deviation(deviations.begin(), deviations.end()), numbers(x.numel() / std::max<int64_t>(1, x.size(0))),
        width(y.dim() == 2 ? y.size(1) : 1) {}

  Tensor buffer(int64_t rows) const {
    auto shape = x.sizes().vec();
    shape[0] = rows;
    return at::empty(shape, at::TensorOptions(x.scalar_type() == at::kLong ? at::kLong : at::kFloat));
  }

  template <typename Stored>
  void normalise(const Stored* from, float* to) const {
    if (mean.empty()) {
      for (int64_t i = 0; i < numbers; i++) to[i] = static_cast<float>(from[i]);
      return;
    }
    int64_t plane = numbers / static_cast<int64_t>(mean.size());
    for (size_t channel = 0; channel < mean.size(); channel++, from += plane, to += plane) {
      float centre = mean[channel], spread = deviation[channel];
      for (int64_t i = 0; i < plane; i++) to[i] = (static_cast<float>(from[i]) - centre) / spread;
    }
  }

  void gather(const int64_t* order, int64_t rows, Tensor& batch, Tensor& labels) const {
    const int64_t* all_labels = y.const_data_ptr<int64_t>();
    int64_t* to_labels = labels.mutable_data_ptr<int64_t>();
    for (int64_t row = 0; row < rows; row++) {
      int64_t from = order[row] * numbers, to = row * numbers;
      std::copy_n(all_labels + order[row] * width, width, to_labels + row * width);
      if (x.scalar_type() == at::kLong)
        std::memcpy(batch.mutable_data_ptr<int64_t>() + to, x.const_data_ptr<int64_t>() + from, numbers * 8);
      else if (x.scalar_type() == at::kByte)
        normalise(x.const_data_ptr<uint8_t>() + from, batch.mutable_data_ptr<float>() + to);
      else
        normalise(x.const_data_ptr<float>() + from, batch.mutable_data_ptr<float>() + to);
    }
  }
};

// Steps of one program. order: samples to gather from `first` on, rows for each step; else data: those of a single step.
struct Segment {
  c10::intrusive_ptr<Program> program;
  Tensor order;
  int64_t first, rows, steps, slot;  // slot: the first step's place in the block of batches that are gathered together
  bool recorded;                     // whether the results of its steps are wanted
  Tensors data;
  std::vector<double> step_numbers;
};

// Consecutive steps of one client on its tensors, which they update in place.
struct Replay : torch::CustomClassHolder {
  c10::intrusive_ptr<Samples> samples;
  Tensors weights, fixed, state, taps;  // fixed: rates, then constants; state: an optimiser's moments, or sums
  std::vector<double> values;           // the scalars of each recorded step
  bool borrowed;                        // whether the weights are copied first
  int64_t rates, batch_size, slots;
  IValue generator;
  std::vector<Segment> segments;
  std::string error;

  Replay(c10::intrusive_ptr<Samples> training_set, Tensors weight_tensors, bool weights_are_borrowed,
         Tensors rate_tensors, Tensors state_tensors, Tensors constants, int64_t samples_per_batch,
         int64_t batches_per_block)
      : samples(std::move(training_set)), weights(std::move(weight_tensors)), fixed(std::move(rate_tensors)),
        state(std::move(state_tensors)), borrowed(weights_are_borrowed), rates(fixed.size()),
        batch_size(samples_per_batch), slots(batches_per_block) {
    for (Tensor& weight : weights) weight = weight.detach();
    for (Tensor& constant : constants) fixed.push_back(std::move(constant));
  }

  void draw_from(IValue random) { generator = std::move(random); }

  // Adds steps of an epoch. plan: for each program the first sample in `order`, the rows of a step, the number of
  // steps, the slot, and whether results are wanted. numbers: the step numbers of all steps.
  void gather(std::vector<c10::intrusive_ptr<Program>> programs, Tensor order, const std::vector<int64_t>& plan,
              const std::vector<double>& numbers) {
    order = order.contiguous();
    auto next = numbers.begin();
    for (size_t i = 0; i < programs.size(); i++) {
      const int64_t* entry = plan.data() + 5 * i;
      auto end = next + entry[2] * programs[i]->numbers;
      segments.push_back({std::move(programs[i]), order, entry[0], entry[1], entry[2], entry[3], entry[4] != 0, {},
                          std::vector<double>(next, end)});
      next = end;
    }
  }

  void feed(c10::intrusive_ptr<Program> program, Tensors data, bool recorded, std::vector<double> numbers) {
    int64_t rows = data[0].size(0);
    segments.push_back({std::move(program), Tensor(), 0, rows, 1, 0, recorded, std::move(data), std::move(numbers)});
  }

  // Runs all steps in this thread. An exception ends it, and `error` has its text.
  void run() {
    try {
      at::AutoDispatchBelowADInplaceOrView below;
      if (borrowed)
        for (Tensor& weight : weights) weight = weight.clone();
      Registers registers;
      torch::jit::Stack stack;
      Tensor x, y;
      for (const Segment& segment : segments) run_segment(segment, registers, stack, x, y);
    } catch (const std::exception& exception) {
      error = exception.what();
    } catch (...) {
      error = "an unknown C++ exception";
    }
    error = error.substr(0, error.find('\n'));
  }

  void run_segment(const Segment& segment, Registers& registers, torch::jit::Stack& stack, Tensor& x, Tensor& y) {
    const Program& program = *segment.program;
    if (segment.data.empty() && !x.defined()) {
      x = samples->buffer(batch_size * slots);
      auto shape = samples->y.sizes().vec();
      shape[0] = batch_size * slots;
      y = at::empty(shape, at::TensorOptions(at::kLong));
    }
    const int64_t* order = segment.data.empty() ? segment.order.const_data_ptr<int64_t>() + segment.first : nullptr;
    for (int64_t step = 0; step < segment.steps; step++) {
      size_t index = set_inputs(registers);
      if (segment.data.empty()) {
        int64_t first = (segment.slot + step) % slots * batch_size;
        Tensor batch = x.narrow(0, first, segment.rows), labels = y.narrow(0, first, segment.rows);
        samples->gather(order + step * segment.rows, segment.rows, batch, labels);
        set(registers, index++, batch), set(registers, index++, labels);
      } else {
        for (const Tensor& tensor : segment.data) set(registers, index++, tensor);
      }
      program.run(registers, segment.step_numbers.data() + step * program.numbers, generator, stack);
      keep_results(program, registers, segment.recorded);
    }
  }

  static void set(Registers& registers, size_t index, const Tensor& tensor) {
    if (registers.size() <= index) registers.resize(index + 1);
    registers[index] = tensor;
  }

  size_t set_inputs(Registers& registers) const {
    size_t index = 0;
    for (const Tensor& tensor : weights) set(registers, index++, tensor);
    for (int64_t i = 0; i < rates; i++) set(registers, index++, fixed[i]);
    for (const Tensor& tensor : state) set(registers, index++, tensor);
    for (size_t i = rates; i < fixed.size(); i++) set(registers, index++, fixed[i]);
    return index;
  }

  void keep_results(const Program& program, Registers& registers, bool recorded) {
    size_t count = program.results.size(), first_state = program.scalars + program.taps;
    if (recorded) {
      for (int64_t i = 0; i < program.scalars; i++) {
        const Tensor& value = registers[program.results[i]].toTensor();
        bool single = value.scalar_type() == at::kFloat;
        values.push_back(single ? *value.const_data_ptr<float>() : value.item<double>());
      }
      for (size_t i = program.scalars; i < first_state; i++)  // a copy, because batches share a buffer
        taps.push_back(registers[program.results[i]].toTensor().clone());
    }
    if (count > first_state) state.clear();
    for (size_t i = first_state; i < count; i++) {
      const Tensor& tensor = registers[program.results[i]].toTensor();
      state.push_back(program.copied[i - first_state] ? tensor.clone() : tensor);
    }
    for (int64_t index : program.results) registers[index] = IValue();
  }
};

// total += weights[k] * tree k, for trees whose entries stand one tree after another in `entries`. Each sum is taken in
// the order of the trees and with a fused multiply-add, as torch takes it. False, before anything is added, for entries
// of other dtypes or layouts.
bool add_weighted(Tensor total, const Tensors& entries, const std::vector<double>& weights) {
  size_t trees = weights.size(), names = trees ? entries.size() / trees : 0;
  if (total.scalar_type() != at::kDouble || !total.is_contiguous() || entries.size() != trees * names) return false;
  int64_t left = total.numel() * static_cast<int64_t>(trees);
  for (size_t i = 0; i < entries.size(); i++) {
    const Tensor& entry = entries[i];
    if (entry.scalar_type() != at::kFloat || !entry.is_contiguous() || !entry.device().is_cpu()) return false;
    if (entry.numel() != entries[i % names].numel()) return false;
    left -= entry.numel();
  }
  if (left) return false;
  double* sums = total.mutable_data_ptr<double>();
  constexpr int64_t block = 16384;  // sums that stay in the second cache, in reads long enough to be foreseen
  for (size_t name = 0; name < names; name++) {
    int64_t numbers = entries[name].numel();
    for (int64_t start = 0; start < numbers; start += block) {
      int64_t end = std::min(numbers, start + block);
      for (size_t tree = 0; tree < trees; tree++) {
        const float* values = entries[tree * names + name].const_data_ptr<float>();
        double weight = weights[tree];
        for (int64_t i = start; i < end; i++) sums[i] = std::fma(static_cast<double>(values[i]), weight, sums[i]);
      }
    }
    sums += numbers;
  }
  return true;
}

// What the threads of a pool share. It lasts as long as one of them.
struct Queues {
  using Entry = std::pair<int64_t, c10::intrusive_ptr<Replay>>;
  std::mutex mutex;
  std::condition_variable queued, finished;
  std::deque<Entry> queue, done;
  int64_t running = 0;
  bool closed = false;

  void work() {
    at::set_num_threads(1);
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      queued.wait(lock, [this] { return closed || !queue.empty(); });
      if (closed) return;
      run_first(lock);
      finished.notify_one();
    }
  }

  void run_first(std::unique_lock<std::mutex>& lock) {
    Entry entry = std::move(queue.front());
    queue.pop_front();
    running++;
    lock.unlock();
    entry.second->run();
    lock.lock();
    running--;
    done.push_back(std::move(entry));
  }
};

// Threads that run replays. Whoever waits for a result runs one meanwhile.
struct Pool : torch::CustomClassHolder {
  std::shared_ptr<Queues> queues = std::make_shared<Queues>();
  std::vector<std::thread> threads;
  pid_t process = getpid();

  explicit Pool(int64_t helpers) {
    try {
      for (int64_t i = 0; i < helpers; i++) threads.emplace_back([shared = queues] { shared->work(); });
    } catch (...) {  // the system allows no more threads
      close();
      throw;
    }
  }

  // Waits for no thread: Python may hold its lock here, and a thread may wait for that lock to free a tensor of Python.
  ~Pool() override {
    for (std::thread& thread : end()) thread.detach();
  }

  void close() {
    for (std::thread& thread : end()) thread.join();
    std::lock_guard<std::mutex> lock(queues->mutex);
    queues->done.clear();
  }

  // Asks the threads to end, and returns them. In a forked process they do not exist, and may have had the lock.
  std::vector<std::thread> end() {
    if (getpid() != process) {
      for (std::thread& thread : threads) thread.detach();
      threads.clear();
      queues = std::make_shared<Queues>();
    }
    std::lock_guard<std::mutex> lock(queues->mutex);
    queues->closed = true;
    queues->queue.clear();
    queues->queued.notify_all();
    return std::exchange(threads, {});
  }

  void submit(int64_t id, c10::intrusive_ptr<Replay> replay) {
    {
      std::lock_guard<std::mutex> lock(queues->mutex);
      queues->queue.emplace_back(id, std::move(replay));
    }
    queues->queued.notify_one();
  }

  // The id of a finished replay; -1 if there is none and none is queued or runs.
  int64_t next() {
    Queues& shared = *queues;
    std::unique_lock<std::mutex> lock(shared.mutex);
    while (shared.done.empty()) {
      if (!shared.queue.empty()) shared.run_first(lock);
      else if (shared.running)
        shared.finished.wait(lock, [&] { return !shared.done.empty() || !shared.queue.empty() || !shared.running; });
      else return -1;
    }
    int64_t id = shared.done.front().first;
    shared.done.pop_front();
    return id;
  }

  int64_t waiting() {
    std::lock_guard<std::mutex> lock(queues->mutex);
    return static_cast<int64_t>(queues->queue.size());
  }

  // Forgets what is queued, and waits for what runs.
  void drain() {
    std::unique_lock<std::mutex> lock(queues->mutex);
    queues->queue.clear();
    queues->finished.wait(lock, [this] { return !queues->running; });
    queues->done.clear();
  }
};

TORCH_LIBRARY(fedloom_replay, library) {
  library.def("add_weighted(Tensor(a!) total, Tensor[] entries, float[] weights) -> bool", add_weighted);
  library.class_<Program>("Program")
      .def(torch::init<>())
      .def("capture", &Program::capture)
      .def("call", &Program::call)
      .def("finish", &Program::finish);
  library.class_<Replay>("Replay")
      .def("draw_from", &Replay::draw_from)
      .def("gather", &Replay::gather)
      .def("feed", &Replay::feed)
      .def("run", &Replay::run)
      .def("results", [](const c10::intrusive_ptr<Replay>& self) {  // error, scalars, taps, optimiser state, own weights
        return std::make_tuple(self->error, self->values, self->taps, self->state,
                               self->borrowed ? self->weights : Tensors());
      });
  library.class_<Samples>("Samples")
      .def(torch::init<Tensor, Tensor, std::vector<double>, std::vector<double>>())
      .def("replay", [](const c10::intrusive_ptr<Samples>& self, Tensors weights, bool borrowed, Tensors rates,
                        Tensors state, Tensors constants, int64_t samples_per_batch, int64_t batches_per_block) {
        return c10::make_intrusive<Replay>(self, std::move(weights), borrowed, std::move(rates), std::move(state),
                                           std::move(constants), samples_per_batch, batches_per_block);
      });
  library.class_<Pool>("Pool")
      .def(torch::init<int64_t>())
      .def("submit", &Pool::submit)
      .def("next", &Pool::next)
      .def("waiting", &Pool::waiting)
      .def("drain", &Pool::drain)
      .def("close", &Pool::close);
}

}  // namespace
